"""Checks that the values of a row of a batch depend only on that row."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tree


def depends_on_other_rows(
    values: Callable[[Any, Any], Mapping[str, tf.Tensor]],
    weights: Callable[[], Any],
    batch: Any,
    num_classes: int | None,
) -> str | None:
    """Finds a value of a row that changes when other rows of its batch change.

    The function computes, eagerly and on a CPU, the values of a random batch and of two batches
    that each keep one half of its rows. It repeats this with other random numbers. Values pass if
    they cannot be computed on random inputs, or if they differ from call to call.

    Args:
        values: `(weights, Batch) -> {name: [batch]}`. All calls have batches of one size, so it is
            traced once.
        weights: Returns a structure of tensors, of which only shapes and types are used.
        batch: A `Batch`, of which only shapes and types are used.
        num_classes: The number of labels, or `None` if it is unknown.

    Returns:
        The name of the first value that depends on other rows, or `None`.
    """
    return _tried(
        lambda seed, high: _dependent(seed, high, values, weights(), batch, num_classes), seeds=2
    )


def depends_on_padding(
    sums: Callable[[Any, Any], Mapping[str, Any]],
    weights: Callable[[], Any],
    batch: Any,
    num_classes: int | None,
) -> str | None:
    """Finds sums over a random batch that rows of weight 0 change, or that do not add up.

    Sums pass if they cannot be computed on random inputs.

    Args:
        sums: `(weights, Batch) -> {name: structure}`.
        weights: See `depends_on_other_rows`.
        batch: See `depends_on_other_rows`.
        num_classes: See `depends_on_other_rows`.

    Returns:
        The name of the first such sums, or `None`.
    """
    return _tried(lambda seed, high: _padded(seed, high, sums, weights(), batch, num_classes))


def types_of(batch: Any) -> list[Any]:
    """Returns the types of the rows of a batch."""
    rows = tree.flatten_with_path((batch.x, batch.y))
    return [(path, leaf.dtype, tuple(leaf.shape[1:])) for path, leaf in rows]


def _tried(check, seeds=1):
    """Returns the first result of `(seed, high) -> name or None` that is a name."""
    # Without a GPU no device scope is needed, which would cause another trace.
    on_cpu = tf.device("CPU") if tf.config.list_logical_devices("GPU") else contextlib.nullcontext()
    # Tries bytes, then small numbers, which fit smaller tables.
    for high in (256, 2):
        with tf.__internal__.eager_context.eager_mode(), on_cpu, contextlib.suppress(Exception):
            for seed in range(seeds):
                if name := check(seed, high):
                    return name
            return None
    return None


def _dependent(seed, high, values, weights, batch, num_classes):
    rng = np.random.default_rng(seed)
    num_rows = batch.weight.shape[0] or 4
    weights = tf.nest.map_structure(lambda spec: _random_weight(rng, spec), weights)

    def row_values(x, y):
        x, y = tf.nest.map_structure(tf.constant, (x, y))
        weight, seed = tf.ones([num_rows]), tf.zeros([2], tf.int32)
        found = values(weights, batch._replace(x=x, y=y, weight=weight, seed=seed))
        return {name: value.numpy() for name, value in found.items()}

    inputs = _two_batches(batch.x, lambda spec: _inputs(rng, spec, num_rows, high))
    labels = _two_batches(batch.y, lambda spec: _labels(rng, spec, num_rows, num_classes or 2))
    before = row_values(inputs[0], labels[0])
    for kept in np.split(np.arange(num_rows), [num_rows // 2]):
        is_kept = np.isin(np.arange(num_rows), kept)
        after = row_values(*(_chosen(is_kept, *pair) for pair in (inputs, labels)))
        for name, value in before.items():
            if not _equal(after[name][kept], value[kept]):
                again = row_values(inputs[0], labels[0])
                return name if _equal(again[name], value) else None
    return None


def _two_batches(specs, draw):
    """Returns two structures of arrays, of the pairs that are drawn for each of the specs."""
    pairs = [draw(spec) for spec in tf.nest.flatten(specs)]
    return tuple(tf.nest.pack_sequence_as(specs, [pair[i] for pair in pairs]) for i in range(2))


def _padded(seed, high, sums, weights, batch, num_classes):
    rng, num_rows = np.random.default_rng(seed), max(batch.weight.shape[0] or 4, 2)
    weights = tf.nest.map_structure(lambda spec: _random_weight(rng, spec), weights)
    inputs = _two_batches(batch.x, lambda spec: _inputs(rng, spec, num_rows, high))
    labels = _two_batches(batch.y, lambda spec: _labels(rng, spec, num_rows, num_classes or 2))
    is_kept = np.arange(num_rows) < num_rows // 2

    def found(x, y, weight):
        x, y, weight = tf.nest.map_structure(tf.constant, (x, y, weight.astype(np.float32)))
        rows = batch._replace(x=x, y=y, weight=weight, seed=tf.zeros([2], tf.int32))
        return {name: tf.nest.flatten(it) for name, it in sums(weights, rows).items()}

    whole, kept, others = (
        found(inputs[0], labels[0], it) for it in (is_kept >= 0, is_kept, ~is_kept)
    )
    changed = found(*(_chosen(is_kept, *pair) for pair in (inputs, labels)), is_kept)
    for name, total in whole.items():
        added = [one + other for one, other in zip(kept[name], others[name], strict=True)]
        pairs = zip([*total, *kept[name]], [*added, *changed[name]], strict=True)
        if not all(np.allclose(*pair, rtol=1e-4, atol=1e-5, equal_nan=True) for pair in pairs):
            return name
    return None


def _random_weight(rng, spec):
    """Returns random weights that keep the scale of signals from layer to layer."""
    fan_in = np.prod(spec.shape[:-1]) if len(spec.shape) > 1 else 4
    return tf.constant(rng.normal(0, np.sqrt(2 / max(fan_in, 1)), spec.shape), spec.dtype)


def _equal(one, other):
    return np.allclose(one, other, rtol=1e-6, atol=1e-9, equal_nan=True)


def _inputs(rng, spec, num_rows, high):
    """Returns two batches that differ everywhere, of floats up to 2 or integers below `high`."""
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
    """Returns the rows of `one` where a condition `[rows]` holds, else the rows of `other`."""

    def chosen(one, other):
        return np.where(condition.reshape([-1, *[1] * (one.ndim - 1)]), one, other)

    return tf.nest.map_structure(chosen, one, other)
