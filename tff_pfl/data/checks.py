"""Checks arrays of examples."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tree
from absl import logging

from tff_pfl.arguments.ranges import whole
from tff_pfl.tracing.structures import normalized

_CHECKED_AT_A_TIME = 1 << 16  # rows; bounds memory
_COMPARED = 1 << 20  # numbers; bounds time


class ExamplesError(ValueError):
    """An error for arrays that no model can be trained on; it names the first bad example."""


def arrays_of(rows: Any, where: str) -> Any:
    """Returns inputs or labels as NumPy arrays, in a structure that is `normalized`.

    Args:
        rows: The inputs or labels, a structure of arrays.
        where: A name of the arrays, for the message.

    Raises:
        ExamplesError: A leaf has no rows: it is a sparse matrix or a single number, for example.
    """

    def array_of(leaf):
        array = np.asanyarray(leaf)  # It keeps masks, which `check_examples` refuses.
        if array.ndim == 0:
            found = array.item()
            is_sparse = hasattr(found, "toarray")
            raise ExamplesError(
                f"{where}: inputs, labels and weights must be arrays with a row for each example, "
                f"got {f'a {type(found).__name__}' if is_sparse else repr(found)[:40]}."
                + " Make a sparse matrix dense by its toarray()."
                * is_sparse
            )
        return array

    return normalized(rows, array_of)


def check_examples(x: Any, y: Any, num_classes: int | None, where: str = "data set") -> None:
    """Checks that a model can be trained on these arrays.

    Args:
        x: `[n, ...]` inputs, an array or a structure (mappings and tuples) of arrays.
        y: `[n]` class labels; without `num_classes`, `[n, ...]` labels of any structure.
        num_classes: The number of classes, or `None` if labels are not classes.
        where: A name of the arrays, for the message.

    Raises:
        ExamplesError: An array is masked, arrays differ in length, class labels are not integers
            within 0..num_classes-1, others are not real numbers of up to 64 bits, or a number is
            not finite as float32, the type of models. The message names the array and the first bad
            example.
    """
    if num_classes is not None:
        whole(1).check(f"{where}: num_classes", num_classes, ExamplesError)
    inputs, labels = (tree.flatten_with_path(arrays_of(rows, where)) for rows in (x, y))
    if any(np.ma.isMaskedArray(array) for _, array in inputs + labels):
        raise ExamplesError(f"{where}: arrays are masked. Fill them, for example by x.filled(0).")
    if num_classes is not None:
        _check_class_shape(y, num_classes, where)
    _check_lengths(inputs, labels, where)
    named = [("input", *pair) for pair in inputs]
    if num_classes is None:
        named += [("label", *pair) for pair in labels]
    else:
        _check_class_range(np.asarray(y), num_classes, where)
    for kind, path, array in named:
        _check_numbers(array, kind, path, where)


def _check_class_shape(y, num_classes, where):
    """Checks that class labels are one array of integers."""
    if isinstance(normalized(y), tuple | Mapping):
        raise ExamplesError(
            f"{where}: class labels must be one array of integers, got a {type(y).__name__}. Pass "
            "num_classes=None for other labels."
        )
    y = np.asarray(y)
    if y.ndim != 1 or y.dtype.kind not in "iu":
        tip = "num_classes=None for labels that are not classes"
        if y.shape[1:] == (1,):
            tip = "y[:, 0]"
        elif y.shape[1:] == (num_classes,):
            tip = "y.argmax(axis=1) of one-hot labels, or num_classes=None of multi-hot ones"
        raise ExamplesError(
            f"{where}: labels must be integers of shape [n], got {y.dtype} of shape {y.shape}. "
            f"Pass {tip}."
        )


def _check_class_range(y, num_classes, where):
    bad = np.flatnonzero((y < 0) | (y >= num_classes))
    if len(bad):
        raise ExamplesError(
            f"{where}: label {y[bad[0]]} of example {bad[0]} is not within 0..{num_classes - 1} "
            f"({len(bad)} such labels)."
        )


def _check_lengths(inputs, labels, where):
    """Checks that all arrays have the same number of rows."""
    if not inputs:
        raise ExamplesError(f"{where}: there are no inputs: pass at least one array.")
    _, first = (labels + inputs)[0]
    for kind, arrays in (("inputs", inputs), ("labels", labels)):
        for path, array in arrays:
            if len(array) != len(first):
                number = f"{len(first)} labels" if labels else f"{len(first)} rows"
                raise ExamplesError(
                    f"{where}: {kind}{_at(path)} of shape {array.shape} for {number}; each input "
                    "needs one label."
                )


def _check_numbers(array, kind, path, where):
    """Checks that an array has finite real numbers."""
    is_float = array.dtype.kind == "f" or array.dtype.name == "bfloat16"  # bfloat16 has kind "V"
    if not (is_float or array.dtype.kind in "biu") or array.dtype.itemsize > 8:
        raise ExamplesError(
            f"{where}: {kind}s{_at(path)} must be real numbers of up to 64 bits, got {array.dtype}."
        )
    for start in range(0, len(array) if is_float else 0, _CHECKED_AT_A_TIME):
        rows = array[start : start + _CHECKED_AT_A_TIME].reshape(-1, max(1, array[0].size))
        with np.errstate(over="ignore"):
            bad = np.flatnonzero(~np.isfinite(rows.astype(np.float32, copy=False)).all(axis=1))
        if len(bad):
            raise ExamplesError(
                f"{where}: {kind}{_at(path)} of example {start + bad[0]} is not finite as float32, "
                "the type of models."
            )


def warn_of_rounding(x: Any, y: Any, where: str) -> None:
    """Warns of numbers of which float32 has at most half of the different values.

    Models compute in float32. Integers among inputs are kept, as ids, and class labels are small.

    Args:
        x: The inputs, a structure of arrays.
        y: The labels, a structure of arrays.
        where: A name of the arrays, for the message.
    """
    for kind, rows, kinds in (("input", x, "f"), ("label", y, "fiu")):
        for path, array in tree.flatten_with_path(arrays_of(rows, where)):
            if array.dtype.kind in kinds and array.dtype.itemsize > 2:
                different, left = _numbers_of_values(array)
                if (merged := np.flatnonzero(2 * left <= different)).size:
                    column = merged[0]
                    logging.warning(
                        "%s: float32, the type in which models compute, has only %d of the %d "
                        "different values of %ss%s%s that were compared. Subtract a fixed number "
                        "in float64 from the stored numbers%s.",
                        *(where, left[column], different[column], kind, _at(path)),
                        f", column {column}," if len(left) > 1 else "",
                        ", or in preprocess before it casts them" if kind == "input" else "",
                    )


def _numbers_of_values(array) -> tuple[np.ndarray, np.ndarray]:
    """Returns the numbers of different values of each column, as stored and as float32."""
    width = max(1, math.prod(array.shape[1:]))
    step = -(-len(array) * width // _COMPARED) or 1
    ordered = np.sort(array[::step].reshape(-1, width), axis=0)
    as_float32 = ordered.astype(np.float32)
    return tuple((rows[1:] != rows[:-1]).sum(axis=0) + 1 for rows in (ordered, as_float32))


def checked_weights(weights: Any, num_rows: int, where: str) -> np.ndarray:
    """Returns the weights of examples as float32 `[num_rows]`.

    Args:
        weights: The weights, an array.
        num_rows: The number of examples.
        where: A name of the arrays, for the message.

    Raises:
        ExamplesError: They are not finite numbers of 0 or more, one for each example.
    """
    weights = arrays_of(weights, where)
    if not isinstance(weights, np.ndarray) or weights.shape != (num_rows,):
        found = getattr(weights, "shape", type(weights).__name__)
        raise ExamplesError(
            f"{where}: weights must be one number for each of the {num_rows} examples, got {found}."
        )
    if np.ma.isMaskedArray(weights):
        raise ExamplesError(f"{where}: weights are masked. Fill them, with 0 for no weight.")
    _check_numbers(weights, "weight", (), where)
    if len(bad := np.flatnonzero(weights < 0)):
        raise ExamplesError(
            f"{where}: weight {weights[bad[0]]} of example {bad[0]} is negative. Weights are 0 or "
            "more."
        )
    return weights.astype(np.float32, copy=False)


def _at(path) -> str:
    """Returns the place of an array in a structure, for messages; "" for a single array."""
    return f" {'/'.join(map(str, path))!r}" if path else ""


def alike(pairs: Sequence[tuple[Any, Any]], num_classes: int | None) -> list[tuple[Any, Any]]:
    """Checks the `(x, y)` of each client's two splits, and that they can be concatenated.

    An empty list, for no examples, gets the structure, shapes and types of the others. Class labels
    become int32.

    Args:
        pairs: `(x, y)` as in `arrays_of`, of client 0's training and test split, then client 1's.
        num_classes: See `check_examples`.

    Raises:
        ExamplesError: See `check_examples`; or shapes or data types differ.
    """
    known = next((i for i, pair in enumerate(pairs) if not all(map(_is_empty_list, pair))), 0)
    first, found = pairs[known], []
    for i, (x, y) in enumerate(pairs):
        where = f"client {i // 2}, {'test' if i % 2 else 'train'}"
        if not len(tree.flatten(x)[0]):
            x = _no_rows(first[0]) if _is_empty_list(x) else x
            y = _no_rows(first[1]) if _is_empty_list(y) else y
        if num_classes is not None and isinstance(y, np.ndarray) and not y.size:
            y = y.astype(np.int32)
        check_examples(x, y, num_classes, where)
        for kind, rows, others in (("inputs", x, first[0]), ("labels", y, first[1])):
            if kind == "labels" and num_classes is not None:
                continue
            check_same(kind, rows, others, where, f"client {known // 2}")
        if num_classes is not None:
            y = y.astype(np.int32, copy=False)
        found.append((x, y))
    return found


def _is_empty_list(rows) -> bool:
    return isinstance(rows, np.ndarray) and rows.shape == (0,)


def _no_rows(rows):
    return tree.map_structure(lambda array: array[:0], rows)


def check_same(kind: str, rows: Any, others: Any, where: str, where_others: str) -> None:
    """Raises an `ExamplesError` if the rows of two arrays differ in data type or shape."""
    if _described(rows) != _described(others):
        raise ExamplesError(
            f"{where}: {kind} are {_described(rows)}, but {kind} of {where_others} are "
            f"{_described(others)}. Give all examples the same type, scale and shape."
        )


def _described(rows) -> str:
    """Returns the data types and the shapes of rows, with their places in the structure."""
    return ", ".join(
        f"{array.dtype} of shape {array.shape[1:]}{_at(path)}"
        for path, array in tree.flatten_with_path(rows)
    )
