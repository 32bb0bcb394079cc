"""Makes integers of the class labels that users have: names, truth values and whole floats."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tff_pfl.data.checks import ExamplesError
from tff_pfl.tracing.structures import normalized


def as_classes(
    labels: Sequence[Any], num_classes: int | None
) -> tuple[list[Any], np.ndarray | None]:
    """Returns class labels as integers, and the names of the classes.

    The categories of a pandas Categorical, also those without examples, are classes in their order.
    Text is numbered in sorted order; text of numbers by these, so "2" comes before "10". Labels of
    other kinds stay as they are, for `check_examples`.

    Args:
        labels: Arrays, structures of arrays or Categoricals, such as the labels of each client.
        num_classes: The number of classes, or `None` if labels are not classes.

    Returns:
        `(labels, names)`: the labels as integers, and the names of the classes by number, or
        `None` if they have no names.

    Raises:
        ExamplesError: There are more or fewer names than classes; or Categoricals lack values or
            differ in their categories.
    """
    if any(map(is_categorical, labels)):
        numbers, names = _of_categories(labels)
    else:
        labels = [normalized(y, np.asanyarray) for y in labels]
        arrays = [y for y in labels if isinstance(y, np.ndarray) and y.size]
        if not (arrays and all(map(are_names, arrays))):
            return [y if num_classes is None else _as_integers(y) for y in labels], None
        numbers, names = _of_text([np.asarray(y).astype(np.str_) for y in labels])
    if num_classes != len(names):
        raise ExamplesError(
            f"The labels have {len(names)} names ({', '.join(names[:10])}), but num_classes is "
            f"{num_classes}. Pass num_classes={len(names)}, or if some classes have no example, "
            "labels that name them all in order: pandas.Categorical(labels, NAMES)."
        )
    return numbers, names


def is_categorical(y: Any) -> bool:
    """Returns whether labels are a pandas Categorical, or a column or an index of this type."""
    return getattr(getattr(y, "dtype", None), "name", None) == "category"


def _of_categories(labels):
    """Returns the numbers and the names of the categories, which all labels must share."""
    categories = next(y.dtype.categories for y in labels if is_categorical(y))
    names, numbers = np.array(list(map(str, categories))), []
    for y in labels:
        if not is_categorical(y) and not len(y):
            numbers.append(np.zeros(0, np.int32))
            continue
        if not is_categorical(y) or list(y.dtype.categories) != list(categories):
            raise ExamplesError(
                f"All class labels must be Categoricals of {', '.join(names[:10])} in this order, "
                "as those of the first client with categories are: pandas.Categorical(labels, "
                "NAMES)."
            )
        numbers.append(np.asarray(getattr(y, "cat", y).codes, np.int32))
        if missing := int((numbers[-1] < 0).sum()):
            raise ExamplesError(
                f"The class labels have no value in {missing} rows. Drop them, or add their names "
                "to the categories."
            )
    return numbers, names


def _of_text(texts):
    """Returns the numbers and the names of classes that are text."""
    names = np.unique(np.concatenate(texts))
    try:
        places = np.argsort(names.astype(float), kind="stable")
    except ValueError:
        places = np.arange(len(names))
    number = np.argsort(places).astype(np.int32)
    return [number[np.searchsorted(names, text)] for text in texts], names[places]


def are_names(y: np.ndarray) -> bool:
    """Returns whether labels are names of classes."""
    if y.dtype.kind == "O":
        return all(isinstance(label, str) for label in y.ravel())
    return y.dtype.kind == "U" and y.ndim == 1


def _as_integers(y):
    if not isinstance(y, np.ndarray) or isinstance(y, np.ma.MaskedArray):
        return y
    is_whole = y.dtype.kind == "f" and y.size and (np.isfinite(y) & (y == np.rint(y))).all()
    return y.astype(np.int64) if is_whole or y.dtype.kind == "b" else y
