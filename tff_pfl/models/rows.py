"""A check that values of a row of a batch depend on that row alone."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf


def depends_on_other_rows(
    values: Callable[[Any, Any], Mapping[str, tf.Tensor]],
    weights: Callable[[], Any],
    batch: Any,
    num_classes: int | None,
) -> str | None:
    """Finds a value of a row that changes when other rows of its batch change.

    It computes, eagerly and on a CPU, the values of a random batch, and of two batches that keep
    one half of its rows each; then the same with other random numbers. Values that cannot be
    computed on random inputs, or differ from call to call, pass.

    Args:
        values: `(weights, Batch) -> {name: [batch]}`, called with batches of one size, so that it
            is traced once.
        weights: Returns a structure of tensors; only shapes and types are used.
        batch: A `Batch`; only shapes and types are used.
        num_classes: Number of labels, or `None` if it is not known.

    Returns:
        The name of such a value, or `None`.
    """
    # A scope would trace functions once more; without a GPU, none is needed.
    on_cpu = tf.device("CPU") if tf.config.list_logical_devices("GPU") else contextlib.nullcontext()
    for high in (256, 2):  # bytes; and small numbers, for tables without rows for large ones
        with tf.__internal__.eager_context.eager_mode(), on_cpu, contextlib.suppress(Exception):
            for seed in range(2):
                rng = np.random.default_rng(seed)
                if name := _dependent(rng, high, values, weights(), batch, num_classes):
                    return name
            return None
    return None


def _dependent(rng, high, values, weights, batch, num_classes):
    num_rows = batch.x.shape[0] or 4
    weights = tf.nest.map_structure(lambda spec: _random_weight(rng, spec), weights)

    def of_rows(x, y):
        x, y = (tf.constant(rows, spec.dtype) for rows, spec in ((x, batch.x), (y, batch.y)))
        weight, seed = tf.ones([num_rows]), tf.zeros([2], tf.int32)
        found = values(weights, batch._replace(x=x, y=y, weight=weight, seed=seed))
        return {name: value.numpy() for name, value in found.items()}

    inputs = _inputs(rng, batch.x, num_rows, high)
    labels = _labels(rng, batch.y, num_rows, num_classes or 2)
    before = of_rows(inputs[0], labels[0])
    for kept in np.split(np.arange(num_rows), [num_rows // 2]):
        is_kept = np.isin(np.arange(num_rows), kept)
        after = of_rows(*(_chosen(is_kept, *pair) for pair in (inputs, labels)))
        for name, value in before.items():
            if not _equal(after[name][kept], value[kept]):
                again = of_rows(inputs[0], labels[0])
                return name if _equal(again[name], value) else None
    return None


def _random_weight(rng, spec):
    """Returns weights with which signals neither grow nor shrink from layer to layer."""
    fan_in = np.prod(spec.shape[:-1]) if len(spec.shape) > 1 else 4
    return tf.constant(rng.normal(0, np.sqrt(2 / max(fan_in, 1)), spec.shape), spec.dtype)


def _equal(one, other):
    return np.allclose(one, other, rtol=1e-6, atol=1e-9, equal_nan=True)


def _inputs(rng, spec, num_rows, high):
    """Returns two batches that differ everywhere: of floats up to 2, or integers below `high`."""
    one, other = rng.uniform(0, 2, [2, num_rows, *spec.shape[1:]])
    if not spec.dtype.is_floating:
        high = 2 if spec.dtype == tf.bool else min(high, spec.dtype.max + 1)
        one = np.floor(one * high / 2)
        other = high - 1 - one
    return one.astype(spec.dtype.as_numpy_dtype), other.astype(spec.dtype.as_numpy_dtype)


def _labels(rng, spec, num_rows, num_labels):
    """Returns a batch of small and a batch of large labels, all below `num_labels`."""
    one, other = rng.uniform(0, num_labels / 2, [2, num_rows, *spec.shape[1:]])
    other = num_labels / 2 + other
    if not spec.dtype.is_floating:
        one, other = (np.minimum(np.floor(labels), num_labels - 1) for labels in (one, other))
    return one.astype(spec.dtype.as_numpy_dtype), other.astype(spec.dtype.as_numpy_dtype)


def _chosen(condition, one, other):
    """Returns rows of `one` where a condition `[rows]` holds, else of `other`."""
    return np.where(condition.reshape([-1, *[1] * (one.ndim - 1)]), one, other)
