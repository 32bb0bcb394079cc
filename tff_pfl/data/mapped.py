"""Applies a function to all rows of arrays, batch by batch."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tree

from tff_pfl.data.checks import ExamplesError
from tff_pfl.tracing.structures import normalized


def mapped(x: Any, function: Callable[[Any], Any], batch_size: int) -> Any:
    """Returns the results of a function for all rows of `x`.

    Args:
        x: `[n, ...]`, an array or a structure of arrays.
        function: `([batch, ...]) -> [batch, ...]`, row by row, of such structures.
        batch_size: The number of rows in a call.

    Raises:
        ExamplesError: There is no result for each row, or results depend on other rows.
    """
    num_rows = len(tree.flatten(x)[0])
    rows = _rows(x, 0, batch_size)
    first = _results(function, rows)
    _check_rows(function, rows, first)
    results = tree.map_structure(
        lambda leaf: np.empty((num_rows, *leaf.shape[1:]), leaf.dtype), first
    )
    for start in range(0, num_rows, batch_size):
        found = _results(function, _rows(x, start, batch_size)) if start else first
        for stored, new in zip(tree.flatten(results), tree.flatten(found), strict=True):
            stored[start : start + batch_size] = new
    return results


def _rows(x, start, number):
    return tree.map_structure(lambda leaf: leaf[start : start + number], x)


def _results(function, rows):
    number = len(tree.flatten(rows)[0])
    results = normalized(function(rows), np.asanyarray)
    for leaf in tree.flatten(results):
        if leaf.shape[:1] != (number,):
            raise ExamplesError(
                f"The function to map must return one result for each row, got shape {leaf.shape} "
                f"for {number} rows."
            )
    return results


def _check_rows(function, rows, results):
    """Checks with half of a batch that results do not depend on other rows."""
    half = len(tree.flatten(rows)[0]) // 2
    if not half:
        return
    alone = _results(function, _rows(rows, 0, half))
    for one, whole in zip(tree.flatten(alone), tree.flatten(results), strict=True):
        scale = np.abs(whole[:half].astype(np.float64)).max(initial=0)
        if not np.allclose(one, whole[:half], rtol=1e-3, atol=1e-4 * scale, equal_nan=True):
            raise ExamplesError(
                "The results of the function to map depend on the other rows of a batch. Compute "
                "each row from its own input: call Keras models with training=False."
            )
