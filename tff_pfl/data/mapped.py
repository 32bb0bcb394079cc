"""Applies a function to all rows of an array, batch by batch."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tff_pfl.data.checks import ExamplesError


def mapped(x: np.ndarray, function: Callable[[np.ndarray], Any], batch_size: int) -> np.ndarray:
    """Returns the results of a function for all rows of `x`.

    Args:
        x: `[n, ...]`.
        function: `([batch, ...]) -> [batch, ...]`, row by row.
        batch_size: The number of rows in a call.

    Raises:
        ExamplesError: There is no result for each row, or results depend on other rows.
    """
    first = _results(function, x[:batch_size])
    _check_rows(function, x[:batch_size], first)
    results = np.empty((len(x), *first.shape[1:]), first.dtype)
    results[:batch_size] = first
    for start in range(batch_size, len(x), batch_size):
        results[start : start + batch_size] = _results(function, x[start : start + batch_size])
    return results


def _results(function, rows):
    results = np.asarray(function(rows))
    if results.shape[:1] != rows.shape[:1]:
        raise ExamplesError(
            f"The function to map must return one result for each row, got shape {results.shape} "
            f"for {len(rows)} rows."
        )
    return results


def _check_rows(function, rows, results):
    """Checks with half of a batch that results do not depend on other rows."""
    half = len(rows) // 2
    if not half:
        return
    alone = _results(function, rows[:half])
    scale = np.abs(results[:half].astype(np.float64)).max(initial=0)
    if not np.allclose(alone, results[:half], rtol=1e-3, atol=1e-4 * scale, equal_nan=True):
        raise ExamplesError(
            "The results of the function to map depend on the other rows of a batch. Compute each "
            "row from its own input: call Keras models with training=False."
        )
