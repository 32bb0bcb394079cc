"""Makes integers of the class labels that users have: names, truth values and whole floats."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tff_pfl.data.checks import ExamplesError


def as_classes(
    labels: Sequence[Any], num_classes: int | None
) -> tuple[list[Any], np.ndarray | None]:
    """Returns class labels as integers; names of classes are numbered in sorted order.

    Labels of other kinds stay as they are, for `check_examples`.

    Args:
        labels: Arrays of labels, such as those of each client.
        num_classes: The number of classes, or `None` if labels are not classes.

    Returns:
        `(labels, names)`: the labels as integers, and the names of the classes by number, or
        `None` if they have no names.

    Raises:
        ExamplesError: There are more or fewer names than classes.
    """
    arrays = [y for y in labels if isinstance(y, np.ndarray) and y.size]
    if not (arrays and all(map(are_names, arrays))):
        return [y if num_classes is None else _as_integers(y) for y in labels], None
    texts = [np.asarray(y).astype(np.str_) for y in labels]
    names = np.unique(np.concatenate(texts))
    if num_classes != len(names):
        raise ExamplesError(
            f"The labels have {len(names)} names ({', '.join(names[:10])}), but num_classes is "
            f"{num_classes}. Pass num_classes={len(names)}, or if some classes have no example, "
            "number them all: pandas.Categorical(labels, NAMES).codes."
        )
    return [np.searchsorted(names, text).astype(np.int32) for text in texts], names


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
