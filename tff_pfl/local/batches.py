"""Passes over a client's examples, as scans that any runtime can compile or vectorise."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tff_pfl.local import trees
from tff_pfl.local.examples import Batch, Examples, random_order

# Epochs whose orders are drawn side by side; those of more in a loop, a graph of thousands of
# operations otherwise.
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

    That is `epochs` times over the data, or `steps` times, over as many epochs as they take. Every
    epoch visits each example once, in an order drawn from `(seed, epoch)`. Orders do not depend on
    the number of padding rows, so a client's result is the same in every cohort it is padded for.
    Batches that hold no example leave `carry` as it was.

    Args:
        step: Pure TensorFlow, keeps the structure, data types and shapes of `carry`.
        carry: Any structure of tensors (or of values that become tensors).
        examples: The client's examples.
        epochs: Number of passes; 0 returns `carry`.
        steps: Number of steps, in place of `epochs`.
        batch_size: Rows of a batch. The last batch of an epoch may be partial: its surplus rows
            have weight 0.
        seed: `int32[2]`, or `None` to visit the examples in their stored order.
        drop_remainder: Whether to leave out the last batch of an epoch if it is partial, unless it
            is the only one: a client with fewer examples than `batch_size` has them as its batch.
        after_epoch: `(epoch, carry) -> carry`, after each of so many `epochs`, the first of which
            is 0; of clients without examples, too.

    Returns:
        The final `carry`.
    """
    epochs = _checked_epochs(epochs, steps, batch_size, after_epoch)
    carry = tf.nest.map_structure(tf.convert_to_tensor, carry)
    if epochs == 0:
        return carry
    capacity = tf.shape(examples.y)[0]
    steps_per_epoch = (capacity + batch_size - 1) // batch_size
    length = steps_per_epoch * batch_size
    if steps is None:
        end = epochs * steps_per_epoch
    else:  # over the client's own batches of an epoch, without those that are padding
        size = tf.convert_to_tensor(examples.size)
        own = (size if drop_remainder else size + batch_size - 1) // batch_size
        steps_per_epoch = tf.maximum(own, 1)
        end = tf.where(size > 0, steps, 0)

    def masked_step(i, batch_rows, filler, carry):
        epoch, index = i // steps_per_epoch, i % steps_per_epoch
        # 0..epochs-1 are folded in for the orders. The index counts within the epoch, since the
        # number of steps of an epoch depends on the padding.
        number = epoch + epochs * (1 + index)
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

    if steps is None and after_epoch is None:
        orders = _epoch_orders(examples, epochs, length, seed)
        return through(tf.reshape(orders, [-1, batch_size]), tf.constant(0), end, carry)

    # The orders of thousands of epochs of which few may be taken are not drawn in advance.
    def next_epoch(epoch, carry):
        rows = tf.reshape(_epoch_order(examples, epoch, length, seed), [-1, batch_size])
        first = epoch * steps_per_epoch
        carry = through(rows, first, tf.minimum(first + steps_per_epoch, end), carry)
        return epoch + 1, carry if after_epoch is None else after_epoch(epoch, carry)

    def is_left(epoch, _):
        return epoch < epochs if steps is None else epoch * steps_per_epoch < end

    return tf.while_loop(is_left, next_epoch, (tf.constant(0), carry))[1]


def _checked_epochs(epochs, steps, batch_size, after_epoch) -> int:
    """How many passes there are at most."""
    if (epochs is None) == (steps is None):
        raise ValueError(f"Need either epochs or steps, got epochs={epochs}, steps={steps}.")
    if after_epoch is not None and epochs is None:
        raise ValueError(f"after_epoch needs epochs, got steps={steps}.")
    if epochs is None:
        epochs = steps  # enough even where an epoch is one batch
    if batch_size < 1 or epochs < 0:
        raise ValueError(
            "Need batch_size >= 1 and epochs >= 0 or steps >= 0, "
            f"got batch_size={batch_size}, epochs={epochs}, steps={steps}."
        )
    return epochs


def _batch(examples, rows, filler, offset, seed, number) -> Batch:
    """The rows from `offset` on in the order of an epoch; behind the examples, of weight 0."""
    is_example = offset + tf.range(rows.shape[0]) < examples.size
    # An example fills a batch up: padding may hold NaN, which times a weight of 0 is NaN.
    indices = tf.where(is_example, rows, filler)
    return Batch(
        x=tf.gather(examples.x, indices),
        y=tf.where(is_example, tf.gather(examples.y, indices), 0),
        weight=tf.cast(is_example, tf.float32),
        seed=tf.zeros([2], tf.int32) if seed is None else _fold_in(seed, number),
    )


def _epoch_orders(examples, epochs, length, seed):
    """`int32[epochs, length]`: row indices, a permutation of the examples first, then anything."""
    if seed is None:
        return tf.tile(_epoch_order(examples, 0, length, None)[tf.newaxis], [epochs, 1])

    def order(epoch, length):
        return _epoch_order(examples, epoch, length, seed)

    if epochs <= _AT_A_TIME:
        return tf.stack([order(epoch, length) for epoch in range(epochs)])
    width = tf.maximum(length, 1)  # into no columns nothing can be scattered

    def next_orders(first, orders):  # not tf.map_fn, whose lists cannot be vectorised over clients
        some = [first + index for index in range(_AT_A_TIME)]
        rows = tf.stack([order(epoch, width) for epoch in some])
        places = tf.stack(some)[:, tf.newaxis]
        return first + _AT_A_TIME, tf.tensor_scatter_nd_update(orders, places, rows)

    none = tf.zeros([-(-epochs // _AT_A_TIME) * _AT_A_TIME, width], tf.int32)
    _, orders = tf.while_loop(lambda first, _: first < epochs, next_orders, (tf.constant(0), none))
    return orders[:epochs, :length]


def _epoch_order(examples, epoch, length, seed):
    """`int32[length]`, that of one epoch."""
    capacity = tf.shape(examples.y)[0]
    is_stored = seed is None
    rows = tf.range(capacity) if is_stored else random_order(examples, _fold_in(seed, epoch))
    return tf.pad(rows, [[0, length - capacity]])


def _fold_in(seed, data):
    return tf.random.experimental.stateless_fold_in(seed, data)
