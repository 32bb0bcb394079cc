"""Passes over a client's examples, as scans that any runtime can compile or vectorise."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tff_pfl.local import trees
from tff_pfl.local.examples import Batch, Examples, random_order

# Epochs whose orders are drawn side by side; more would make a graph of thousands of operations.
_AT_A_TIME = 8


def scan_batches(
    step: Callable[[Any, Batch], Any],
    carry: Any,
    examples: Examples,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int,
    seed: tf.Tensor | None,
    drop_remainder: bool = False,
    after_epoch: Callable[[tf.Tensor, Any], Any] | None = None,
) -> Any:
    """Runs `carry = step(carry, batch)` over shuffled mini-batches.

    It makes `epochs` passes over the data, or `steps` steps in as many passes as they take. Every
    pass visits each example once, in an order drawn from `(seed, epoch)`. Orders do not depend on
    the number of padding rows, so a client's result is the same in every cohort it is padded for.
    Batches without an example leave `carry` as it was.

    Args:
        step: Pure TensorFlow, keeps the structure, data types and shapes of `carry`.
        carry: Any structure of tensors (or of values that become tensors).
        examples: The client's examples.
        epochs: Number of passes; 0 returns `carry`.
        steps: Number of steps, instead of `epochs`.
        batch_size: Rows of a batch. The last batch of a pass may be partial: its surplus rows
            have weight 0.
        seed: `int32[2]`, or `None` to visit the examples in their stored order.
        drop_remainder: Whether to leave out the last batch of a pass if it is partial, unless it
            is the only one: a client with fewer examples than `batch_size` has them as its batch.
        after_epoch: `(epoch, carry) -> carry`, called after each pass, counted from 0; also for
            clients without examples, if `epochs` are given.

    Returns:
        The final `carry`.

    Raises:
        ValueError: If not exactly one of `epochs` and `steps` is given.
    """
    if (epochs is None) == (steps is None):
        raise ValueError(f"Need either epochs or steps, got epochs={epochs}, steps={steps}.")
    carry = tf.nest.map_structure(tf.convert_to_tensor, carry)
    most_epochs = steps if epochs is None else epochs  # enough even if a pass is one batch
    if most_epochs == 0:
        return carry
    capacity = tf.shape(examples.y)[0]
    steps_per_epoch = (capacity + batch_size - 1) // batch_size
    length = steps_per_epoch * batch_size
    if steps is None:
        end = epochs * steps_per_epoch
    else:  # over the client's own batches of a pass, without those that are padding
        size = tf.convert_to_tensor(examples.size)
        own = (size if drop_remainder else size + batch_size - 1) // batch_size
        steps_per_epoch = tf.maximum(own, 1)
        end = tf.where(size > 0, steps, 0)

    def masked_step(i, batch_rows, filler, carry):
        epoch, index = i // steps_per_epoch, i % steps_per_epoch
        # The numbers 0 .. most_epochs - 1 are folded in for the orders. The index counts within the
        # pass, since the number of steps of a pass depends on the padding.
        number = epoch + most_epochs * (1 + index)
        offset = index * batch_size
        is_visited = offset < examples.size
        if drop_remainder:
            is_visited &= (offset + batch_size <= examples.size) | tf.equal(index, 0)
        batch = _batch(examples, batch_rows, filler, offset, seed, number)
        return trees.select(is_visited, step(carry, batch), carry)

    def through(rows, first, last, carry):
        def next_step(i, carry):
            return i + 1, masked_step(i, tf.gather(rows, i - first), rows[0, 0], carry)

        return tf.while_loop(lambda i, _: i < last, next_step, (first, carry))[1]

    def order(epoch):
        return tf.reshape(_epoch_order(examples, epoch, length, seed), [-1, batch_size])

    if steps is None and after_epoch is None and epochs <= _AT_A_TIME:
        orders = tf.concat([order(epoch) for epoch in range(epochs)], axis=0)
        return through(orders, tf.constant(0), end, carry)

    def next_epoch(epoch, carry):
        first = epoch * steps_per_epoch
        last = tf.minimum(first + steps_per_epoch, end)
        carry = through(order(epoch), first, last, carry)
        return epoch + 1, carry if after_epoch is None else after_epoch(epoch, carry)

    def is_left(epoch, _):
        return epoch < epochs if steps is None else epoch * steps_per_epoch < end

    return tf.while_loop(is_left, next_epoch, (tf.constant(0), carry))[1]


def _batch(examples, rows, filler, offset, seed, number) -> Batch:
    """Returns the rows from `offset` on in the order of a pass; surplus rows have weight 0."""
    is_example = offset + tf.range(rows.shape[0]) < examples.size
    # An example fills a batch up: padding may hold NaN, which times a weight of 0 is NaN.
    indices = tf.where(is_example, rows, filler)
    return Batch(
        x=tf.gather(examples.x, indices),
        y=tf.where(is_example, tf.gather(examples.y, indices), 0),
        weight=tf.cast(is_example, tf.float32),
        seed=tf.zeros([2], tf.int32) if seed is None else _fold_in(seed, number),
    )


def _epoch_order(examples, epoch, length, seed):
    """Returns the rows of one pass, int32 `[length]`: the examples first, then anything."""
    capacity = tf.shape(examples.y)[0]
    is_stored = seed is None
    rows = tf.range(capacity) if is_stored else random_order(examples, _fold_in(seed, epoch))
    return tf.pad(rows, [[0, length - capacity]])


def _fold_in(seed, data):
    return tf.random.experimental.stateless_fold_in(seed, data)
