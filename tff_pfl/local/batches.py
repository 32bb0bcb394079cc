"""Passes over a client's examples, as scans that any runtime can compile or vectorise."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tff_pfl.local import trees
from tff_pfl.local.examples import Batch, Examples


def scan_batches(
    step: Callable[[Any, Batch], Any],
    carry: Any,
    examples: Examples,
    *,
    epochs: int,
    batch_size: int,
    seed: tf.Tensor | None,
    drop_remainder: bool = False,
) -> Any:
    """Runs `carry = step(carry, batch)` over shuffled mini-batches, `epochs` times over the data.

    Every epoch visits each example once, in an order drawn from `(seed, epoch)`. Orders do not
    depend on the number of padding rows, so a client's result is the same in every cohort it is
    padded for. Batches that hold no example leave `carry` as it was.

    Args:
        step: Pure TensorFlow, keeps the structure, data types and shapes of `carry`.
        carry: Any structure of tensors (or of values that become tensors).
        examples: The client's examples.
        epochs: Number of passes; 0 returns `carry`.
        batch_size: Rows of a batch. The last batch of an epoch may be partial: its surplus rows
            have weight 0.
        seed: `int32[2]`, or `None` to visit the examples in their stored order.
        drop_remainder: Whether to leave out the last batch of an epoch if it is partial. A client
            with fewer examples than `batch_size` then does not train at all.

    Returns:
        The final `carry`.
    """
    if batch_size < 1 or epochs < 0:
        raise ValueError(
            f"Need batch_size >= 1 and epochs >= 0, got batch_size={batch_size}, epochs={epochs}."
        )
    carry = tf.nest.map_structure(tf.convert_to_tensor, carry)
    if epochs == 0:
        return carry
    capacity = tf.shape(examples.y)[0]
    steps_per_epoch = (capacity + batch_size - 1) // batch_size
    orders = _epoch_orders(examples, epochs, steps_per_epoch * batch_size, seed)
    rows = tf.reshape(orders, [-1, batch_size])

    def batch_seed(epoch, index):
        # 0..epochs-1 are folded in for the orders. The index counts within the epoch, since the
        # number of steps of an epoch depends on the padding.
        return _fold_in(seed, epoch + epochs * (1 + index))

    def masked_step(i, carry):
        epoch, index = i // steps_per_epoch, i % steps_per_epoch
        offset = index * batch_size
        is_example = offset + tf.range(batch_size) < examples.size
        # An example fills a batch up: padding may hold NaN, which times a weight of 0 is NaN.
        indices = tf.where(is_example, rows[i], rows[0, 0])
        batch = Batch(
            x=tf.gather(examples.x, indices),
            y=tf.where(is_example, tf.gather(examples.y, indices), 0),
            weight=tf.cast(is_example, tf.float32),
            seed=tf.zeros([2], tf.int32) if seed is None else batch_seed(epoch, index),
        )
        last = offset + batch_size - 1 if drop_remainder else offset
        return i + 1, trees.select(last < examples.size, step(carry, batch), carry)

    _, carry = tf.while_loop(
        lambda i, _: i < epochs * steps_per_epoch, masked_step, (tf.constant(0), carry)
    )
    return carry


def _epoch_orders(examples, epochs, length, seed):
    """`int32[epochs, length]`: row indices, a permutation of the examples first, then anything."""
    capacity = tf.shape(examples.y)[0]
    rows = tf.range(capacity)
    padding = [[0, length - capacity]]
    if seed is None:
        return tf.tile(tf.pad(rows, padding)[tf.newaxis], [epochs, 1])

    def order(epoch):
        # Random int32 keys, sorted: key i depends on the seed and on i alone, not on capacity.
        keys = tf.random.stateless_uniform(
            [capacity], _fold_in(seed, epoch), minval=None, maxval=None, dtype=tf.int32
        )
        keys = tf.where(rows < examples.size, keys, tf.int32.min)
        return tf.pad(tf.math.top_k(keys, k=capacity).indices, padding)

    return tf.stack([order(epoch) for epoch in range(epochs)])


def _fold_in(seed, data):
    return tf.random.experimental.stateless_fold_in(seed, data)
