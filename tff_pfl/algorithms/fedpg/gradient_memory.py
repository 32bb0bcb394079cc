"""The server's memory of the last gradients of absent clients, of a fixed size."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tff_pfl.algorithms.fedpg.common_descent import CommonDescent, Grams
from tff_pfl.numerics.host import on_host

_BLOCK = 16384  # columns that are converted to float64 at a time
_EXACT = 100.0  # the largest sigma at which float32 sums still descend for all gradients


class GradientMemory(NamedTuple):
    """The last gradient of each client, in slots.

    When all slots are taken, a new gradient replaces the one that was received the longest ago.

    Attributes:
        gradients: float32 `[size, n]`, as they were uploaded.
        gram: float64 `[size, size]`, their inner products.
        client_ids: int32 `[size]`, the clients that sent them; -1 for a free slot.
        rounds: int32 `[size]`, the rounds in which they were received; -1 for a free slot.
    """

    gradients: tf.Tensor
    gram: tf.Tensor
    client_ids: tf.Tensor
    rounds: tf.Tensor


def empty_memory(size: int, num_weights: int) -> GradientMemory:
    """Makes a memory of `size` free slots, of `4 size (num_weights + 2 size + 2)` bytes."""
    return GradientMemory(
        gradients=tf.zeros([size, num_weights]),
        gram=tf.zeros([size, size], tf.float64),
        client_ids=tf.fill([size], -1),
        rounds=tf.fill([size], -1),
    )


def remembers(memory: GradientMemory, client_ids) -> tf.Tensor:
    """Returns which of these clients have a slot, as bool `[k]`."""
    return tf.reduce_any(_same(client_ids, memory.client_ids), axis=1)


def absent(memory: GradientMemory, cohort_ids, round_num, window) -> tf.Tensor:
    """Finds the recent gradients of clients that are not in the cohort.

    Args:
        memory: The memory before the cohort's gradients are stored.
        cohort_ids: int32 `[k]`.
        round_num: int32 scalar, this round.
        window: Scalar, the age in rounds up to which a gradient counts.

    Returns:
        bool `[size]`, the slots of these gradients.
    """
    in_cohort = tf.reduce_any(_same(memory.client_ids, cohort_ids), axis=1)
    age = tf.cast(round_num - memory.rounds, window.dtype)
    return (memory.client_ids >= 0) & ~in_cohort & (age <= window)


def remember(
    memory: GradientMemory, gradients, grams: Grams, client_ids, live, round_num
) -> GradientMemory:
    """Stores the gradients of a cohort, replacing older ones of the same clients.

    Clients of the cohort that are not live leave the memory.

    Args:
        memory: The memory before.
        gradients: float32 `[k, n]`.
        grams: Inner products of these gradients and the memory before.
        client_ids: int32 `[k]`, distinct where `live`.
        live: bool `[k]`, which gradients to store.
        round_num: int32 scalar, this round.
    """
    with on_host():
        leaving = tf.boolean_mask(client_ids, ~live)
        leaves = tf.reduce_any(_same(memory.client_ids, leaving), axis=1)
        forgotten = tf.where(leaves)
        memory, grams = _without(leaves, memory, grams)
        slots, keep = _slots(memory, client_ids, live)
        # Rows of the new Gram matrix: products with the gradients that stay, and with one another.
        rows = tf.tensor_scatter_nd_update(
            tf.transpose(tf.gather(grams.cross, keep)),
            slots,
            tf.gather(tf.gather(grams.online, keep), keep, axis=1),
        )
        gram = tf.tensor_scatter_nd_update(memory.gram, slots, tf.transpose(rows))
        gram = tf.tensor_scatter_nd_update(tf.transpose(gram), slots, tf.transpose(rows))
        client_ids = tf.tensor_scatter_nd_update(
            memory.client_ids, slots, tf.gather(client_ids, keep)
        )
        rounds = tf.fill(tf.shape(keep), round_num)
        rounds = tf.tensor_scatter_nd_update(memory.rounds, slots, rounds)
    zeros = tf.zeros(tf.stack([tf.size(forgotten), memory.gradients.shape[1]]))
    rest = tf.tensor_scatter_nd_update(memory.gradients, forgotten, zeros)
    stored = tf.tensor_scatter_nd_update(rest, slots, tf.gather(gradients, keep))
    return GradientMemory(stored, gram, client_ids, rounds)


def _without(leaves, memory: GradientMemory, grams: Grams) -> tuple[GradientMemory, Grams]:
    """Frees slots, and removes their gradients from inner products."""
    stays = tf.cast(~leaves, tf.float64)
    memory = memory._replace(
        gram=memory.gram * stays[:, tf.newaxis] * stays,
        client_ids=tf.where(leaves, -1, memory.client_ids),
        rounds=tf.where(leaves, -1, memory.rounds),
    )
    return memory, grams._replace(cross=grams.cross * stays, absent=memory.gram)


def _slots(memory: GradientMemory, client_ids, live) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns `(slots, keep)`: the slots of new gradients, int32 `[?, 1]`, and which get one."""
    size = memory.client_ids.shape[0]
    match = _same(client_ids, memory.client_ids) & live[:, tf.newaxis]
    known = tf.reduce_any(match, axis=1)
    taken = tf.reduce_any(match, axis=0)
    oldest_first = tf.argsort(tf.where(taken, np.iinfo(np.int32).max, memory.rounds), stable=True)
    is_new = live & ~known
    rank = tf.cumsum(tf.cast(is_new, tf.int32)) - 1
    has_room = rank < size - tf.reduce_sum(tf.cast(taken, tf.int32))
    keep = tf.where(known | (is_new & has_room))[:, 0]
    slots = tf.where(
        known,
        tf.argmax(match, axis=1, output_type=tf.int32),
        tf.gather(oldest_first, tf.clip_by_value(rank, 0, size - 1)),
    )
    return tf.gather(slots, keep)[:, tf.newaxis], keep


def gram_matrices(gradients, memory: GradientMemory) -> Grams:
    """Computes inner products of float32 vectors in float64, one block of columns at a time.

    Args:
        gradients: float32 `[k, n]`.
        memory: The memory, which knows the inner products of its own gradients.
    """
    remembered = memory.gradients
    k, size, num_weights = tf.shape(gradients)[0], remembered.shape[0], gradients.shape[1]

    def add_block(start, gram, cross):
        columns = slice(start, start + _BLOCK)
        block = tf.cast(gradients[:, columns], tf.float64)
        old = tf.cast(remembered[:, columns], tf.float64)
        gram += tf.matmul(block, block, transpose_b=True)
        cross += tf.matmul(block, old, transpose_b=True)
        return start + _BLOCK, gram, cross

    zeros = [tf.zeros(tf.stack([k, columns]), tf.float64) for columns in (k, size)]
    _, gram, cross = tf.while_loop(
        lambda start, *_: start < num_weights,
        add_block,
        (tf.constant(0), *zeros),
        parallel_iterations=2,
    )
    return Grams(gram, cross, memory.gram)


def direction(descent: CommonDescent, gradients, memory: GradientMemory) -> tf.Tensor:
    """Computes `d` of a `CommonDescent`, float32 `[n]`.

    If `sigma` is large, most of the sum of gradients times coefficients cancels. In float32, about
    `sigma 2^-24` of `d` would be lost, while the slopes are `1 / sigma` of it or less. The sum is
    therefore computed in float64 if `sigma` is large, one block of columns at a time.

    Args:
        descent: The direction as coefficients of these gradients and the memory.
        gradients: float32 `[k, n]`.
        memory: The memory before these gradients are stored.
    """
    terms = (descent.online, gradients), (descent.absent, memory.gradients)
    num_weights = gradients.shape[1]

    def combination(dtype, columns=slice(None)):
        return -tf.add_n(
            tf.matmul(tf.cast(coefficients, dtype)[tf.newaxis], tf.cast(rows[:, columns], dtype))[0]
            for coefficients, rows in terms
        )

    def add_block(start, blocks):
        block = tf.cast(combination(tf.float64, slice(start, start + _BLOCK)), tf.float32)
        return start + _BLOCK, blocks.write(blocks.size(), block)

    def in_float64():
        blocks = tf.TensorArray(tf.float32, 0, dynamic_size=True, infer_shape=False)
        _, blocks = tf.while_loop(
            lambda start, _: start < num_weights,
            add_block,
            (tf.constant(0), blocks),
            parallel_iterations=2,
        )
        return tf.ensure_shape(blocks.concat(), [num_weights])

    is_exact = descent.sigma <= _EXACT
    return tf.cond(is_exact, lambda: combination(tf.float32), in_float64)


def _same(ids, other_ids):
    return tf.equal(ids[:, tf.newaxis], other_ids)
