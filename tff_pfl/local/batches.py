"""Passes over a client's examples, as scans that every runtime can compile or vectorise."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tff_pfl.local import trees
from tff_pfl.local.examples import (
    Batch,
    Examples,
    gather_rows,
    num_rows,
    order_of,
    static_num_rows,
)
from tff_pfl.tracing.alone import alone_or, branch_if_alone

# The fewest rows to which a batch is reduced.
_FEWEST_ROWS = 16


def rows_of_batch(batch_size: int, capacity: int | None) -> int:
    """Returns the rows of a batch that suffice for clients of at most `capacity` rows.

    They are `batch_size`, or a smaller power of two from 16 on. Fewer rows of padding change no
    batch, and neither the order in which TensorFlow adds a sum over the rows; they may change the
    last bit of products of matrices.

    Example:
        >>> from tff_pfl.local import rows_of_batch
        >>> [rows_of_batch(128, capacity) for capacity in (5, 20, 100, 300, None)]
        [16, 32, 128, 128, 128]

    Args:
        batch_size: The number of examples in a batch.
        capacity: The most rows of a client, padding included, or `None` if it is unknown.
    """
    if capacity is None:
        return batch_size
    return min(batch_size, max(_FEWEST_ROWS, 1 << max(capacity - 1, 0).bit_length()))


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
    halves: bool = False,
) -> Any:
    """Runs `carry = step(carry, batch)` over shuffled mini-batches.

    The scan makes `epochs` passes over the data, or `steps` steps in as many passes as needed.
    Every pass visits each example once, in an order drawn from `(seed, epoch)`. Orders do not
    depend on the number of padding rows, so padding does not change a client's result. Batches
    without examples do not change `carry`.

    Example:
        >>> def count(total, batch):
        ...     return total + tf.reduce_sum(batch.weight)
        >>> examples, seed = testing.tiny_examples(10), tf.constant([1, 2])
        >>> float(tff_pfl.scan_batches(count, 0.0, examples, epochs=2, batch_size=4, seed=seed))
        20.0

    Args:
        step: A pure TensorFlow function that keeps the structure, data types and shapes of `carry`.
        carry: Any structure of tensors, or of values that become tensors.
        examples: The client's examples.
        epochs: The number of passes. 0 returns `carry`.
        steps: The number of steps, instead of `epochs`.
        batch_size: The number of rows in a batch. The last batch of a pass may be partial; its
            surplus rows have weight 0. Batches have fewer rows if the type of the examples says
            that clients have no more; see `rows_of_batch`.
        seed: `int32[2]`, or `None` to visit the examples in their stored order.
        drop_remainder: Whether to leave out partial batches. The first batch of a pass is always
            kept, so that clients with fewer examples than `batch_size` train too.
        halves: Whether the last batch of a pass has half of the rows where these suffice, for which
            `step` is traced again. It pays for long steps, such as those of convolutions.

    Returns:
        The final `carry`.

    Raises:
        ValueError: Both or neither of `epochs` and `steps` are given.
    """
    if (epochs is None) == (steps is None):
        raise ValueError(f"Pass either epochs or steps, got epochs={epochs}, steps={steps}.")
    carry = tf.nest.map_structure(tf.convert_to_tensor, carry)
    most_epochs = steps if epochs is None else epochs  # Each pass has at least one batch.
    if most_epochs == 0:
        return carry
    batch_size = rows_of_batch(batch_size, static_num_rows(examples))
    size = tf.cast(examples.size, tf.int32)
    padded_steps = _steps(num_rows(examples), batch_size)
    own_steps = _steps(size, batch_size)
    if drop_remainder:
        own_steps = tf.minimum(own_steps, tf.maximum(size // batch_size, 1))
    if steps is None:
        # Clients that are computed together make the steps of the largest, and skip some.
        pass_steps = alone_or(own_steps, padded_steps)
        end = epochs * pass_steps
    else:
        pass_steps = tf.maximum(own_steps, 1)
        end = tf.where(own_steps > 0, steps, 0)
    numbers = tf.range(padded_steps * batch_size)
    is_example = numbers < size

    def order(epoch):
        """Returns the rows of each step of a pass, `[padded_steps, batch_size]`."""
        rows = numbers
        if seed is not None:
            # XLA knows the size of a tensor, but not a number from outside of the loop.
            rows = order_of(is_example, tf.size(numbers), _fold_in(seed, epoch))
        return tf.reshape(_filled(rows, is_example, rows[:1]), [-1, batch_size])

    def stepped(carry, batch, rest):
        """Makes a step, with half of the rows if these are the `rest` of the examples of a pass."""
        half = batch_size // 2
        if not (halves and half):
            return step(carry, batch)
        return branch_if_alone(
            rest <= half,
            lambda: step(carry, _first_rows(batch, half)),
            lambda: step(carry, batch),
        )

    def run_steps(orders, end, epoch, carry):
        """Runs the first `end` steps of a pass."""
        batch_of = _batches(examples, orders, masks)

        def next_step(i, carry):
            # Orders use the numbers 0 .. most_epochs - 1. Steps count within the pass, because
            # the number of steps in a pass may depend on the padding.
            batch = batch_of(i, _fold_in(seed, epoch + most_epochs * (1 + i)))
            is_own = alone_or(True, i < own_steps)
            return i + 1, trees.select(is_own, stepped(carry, batch, size - i * batch_size), carry)

        return tf.while_loop(lambda i, _: i < end, next_step, (tf.constant(0), carry))[1]

    masks = tf.reshape(is_example, [-1, batch_size])
    if epochs == 1:
        return run_steps(order(0), end, tf.constant(0), carry)

    def next_epoch(epoch, carry):
        last = tf.minimum(pass_steps, end - epoch * pass_steps)
        return epoch + 1, run_steps(order(epoch), last, epoch, carry)

    def is_left(epoch, _):
        return epoch < epochs if steps is None else epoch * pass_steps < end

    return tf.while_loop(is_left, next_epoch, (tf.constant(0), carry))[1]


def _first_rows(batch, number):
    x, y, weight = tf.nest.map_structure(lambda rows: rows[:number], batch[:3])
    return batch._replace(x=x, y=y, weight=weight)


def _steps(size, batch_size):
    return (size + (batch_size - 1)) // batch_size


def _filled(rows, is_example, filler):
    """Lets surplus rows repeat an example: padding may hold NaN, and NaN times 0 is NaN."""
    return tf.where(is_example, rows, filler)


def _batches(examples, orders, masks) -> Callable[[tf.Tensor, tf.Tensor], Batch]:
    """Returns `(step, seed) -> Batch`, of the rows and of whether they are examples, by step.

    Labels of one number are gathered before the first step, which leaves less work to each.
    """
    weights = tf.cast(masks, tf.float32)

    def gathered(labels, rows, is_example):
        if labels.shape.rank > 1:
            is_example = tf.reshape(is_example, [-1] + [1] * (labels.shape.rank - 1))
        return tf.where(is_example, tf.gather(labels, rows), tf.zeros([], labels.dtype))

    labels = [
        (leaf, gathered(leaf, orders, masks) if leaf.shape.rank == 1 else None)
        for leaf in map(tf.convert_to_tensor, tf.nest.flatten(examples.y))
    ]

    def batch_of(i, seed):
        rows, weight = tf.gather(orders, i), tf.gather(weights, i)
        y = [
            gathered(leaf, rows, weight > 0) if by_step is None else tf.gather(by_step, i)
            for leaf, by_step in labels
        ]
        return Batch(
            x=gather_rows(examples.x, rows),
            y=tf.nest.pack_sequence_as(examples.y, y),
            weight=weight,
            seed=seed,
        )

    return batch_of


def _fold_in(seed, data):
    if seed is None:
        return tf.zeros([2], tf.int32)
    return tf.random.experimental.stateless_fold_in(seed, data)
