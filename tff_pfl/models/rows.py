"""Checks that what is computed of a row of a batch is a function of that row alone."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf


def depends_on_other_rows(
    values: Callable[[Any, Any], Mapping[str, tf.Tensor]],
    weights: Any,
    batch: Any,
    num_classes: int | None,
) -> str | None:
    """Finds a value of the first row of a batch that changes where the other rows do.

    It computes, eagerly, the values of two random batches that have their first row in common.
    Values that cannot be computed of random inputs are not judged.

    Args:
        values: `(weights, Batch) -> {name: [batch]}`. It is called with batches of the same size,
            so that a function in it that is traced for each shape is traced once.
        weights: A structure of tensors, whose shapes and types alone are used.
        batch: A `Batch`, of which the same is true.
        num_classes: Number of labels, or `None` where it is not known.

    Returns:
        The name of such a value, or `None`.
    """
    rng = np.random.default_rng(0)
    num_rows = batch.x.shape[0] or 4
    num_labels = 2 if num_classes is None else num_classes

    def of_values(x, y):
        weight, seed = tf.ones([num_rows]), tf.zeros([2], tf.int32)
        return values(own, batch._replace(x=x, y=y, weight=weight, seed=seed))

    with tf.__internal__.eager_context.eager_mode(), contextlib.suppress(Exception):
        own = tf.nest.map_structure(
            lambda spec: tf.constant(rng.normal(0, 0.1, spec.shape), spec.dtype), weights
        )
        xs, ys = (
            _two_batches(rng, spec, num_rows, high)
            for spec, high in ((batch.x, 2), (batch.y, num_labels))
        )
        one, other = map(of_values, xs, ys)
        for name in one:
            if not np.allclose(one[name][0], other[name][0], 1e-4, 1e-6, equal_nan=True):
                return name
    return None


def _two_batches(rng, spec, num_rows, high):
    """Numbers from 0 to `high`; the rows that differ have small ones in one, large in the other."""
    one = rng.uniform(0, high / 2, [num_rows, *spec.shape[1:]])
    other = np.concatenate([one[:1], one[1:] + high / 2])
    if not spec.dtype.is_floating:
        one, other = (np.minimum(np.floor(rows), high - 1) for rows in (one, other))
    return [tf.constant(rows, spec.dtype) for rows in (one, other)]
