"""The inputs of client work: a client's examples as tensors, and the context of its round."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.ranges import takes, whole


class Examples(NamedTuple):
    """The examples of one client, TFF type `<x=T[?,...], y=int32[?], size=int32>`.

    Attributes:
        x: Inputs, one row an example, in the data type they are stored in (images: uint8). They
            become floats inside the client's graph.
        y: int32 class labels, one a row.
        size: int32 scalar, how many rows are examples. Rows past `size` are padding, so that
            clients of different sizes can share a shape; they never influence a result.
    """

    x: tf.Tensor
    y: tf.Tensor
    size: tf.Tensor


class Batch(NamedTuple):
    """A mini-batch, always of the full batch size.

    Attributes:
        x: `[batch_size, ...]` inputs.
        y: `[batch_size]` int32 labels.
        weight: `[batch_size]` float32, 1 for an example and 0 for a row that only fills the
            batch up. Losses and gradients weigh examples by it, which makes partial batches exact.
        seed: `int32[2]`, the randomness of this batch for stateless ops (dropout).
    """

    x: tf.Tensor
    y: tf.Tensor
    weight: tf.Tensor
    seed: tf.Tensor


class ClientContext(NamedTuple):
    """The round and the client that client work is done for.

    Attributes:
        round_num: int32 scalar, the number of rounds done before this one. Work for an evaluation
            alone, such as fine-tuning, has the number, and so the learning rate, of the last round.
        client_id: int32 scalar.
        seed: `int32[2]`, a function of (run seed, round, client id, exchange). Client work draws
            all random numbers from it by stateless ops, so that a round is a pure function.
        carry: `ClientOutput.carry` of the client's previous exchange in this round; `()` in the
            first one.
    """

    round_num: tf.Tensor
    client_id: tf.Tensor
    seed: tf.Tensor
    carry: Any = ()

    def of_evaluation(self) -> "ClientContext":
        """Returns the context of the last round, or of the first before there was one."""
        return self._replace(round_num=tf.maximum(self.round_num - 1, 0))


@takes(capacity=whole(0))
def examples_type(x_shape, x_dtype=np.uint8, capacity=None) -> tff.types.StructWithPythonType:
    """The TFF type of a client's `Examples`.

    Args:
        x_shape: Shape of one input, without the leading axis.
        x_dtype: Data type of the inputs as they are stored.
        capacity: Number of rows, or `None` where it differs between clients.
    """
    return tff.types.StructWithPythonType(
        [
            ("x", tff.types.TensorType(x_dtype, (capacity, *x_shape))),
            ("y", tff.types.TensorType(np.int32, (capacity,))),
            ("size", tff.types.TensorType(np.int32)),
        ],
        Examples,
    )


def readable(examples: Examples) -> tuple[Examples, tf.Tensor]:
    """Returns a client's examples, none if `size` is not in 0 .. rows, and whether it is."""
    rows = tf.minimum(tf.shape(examples.x)[0], tf.shape(examples.y)[0])
    is_sound = tf.logical_and(examples.size >= 0, examples.size <= rows)
    return examples._replace(size=tf.where(is_sound, examples.size, 0)), is_sound


def random_order(examples: Examples, seed: tf.Tensor) -> tf.Tensor:
    """Returns the rows in random order, the examples first; int32 `[capacity]`.

    The order does not depend on the number of padding rows.

    Args:
        examples: The client's examples.
        seed: `int32[2]`.
    """
    capacity = tf.shape(examples.y)[0]
    # Random int32 keys, sorted: key i depends on the seed and on i alone, not on capacity.
    keys = tf.random.stateless_uniform([capacity], seed, minval=None, maxval=None, dtype=tf.int32)
    keys = tf.where(tf.range(capacity) < examples.size, keys, tf.int32.min)
    return tf.math.top_k(keys, k=capacity).indices


def sample_examples(examples: Examples, share: float, *, seed: tf.Tensor) -> Examples:
    """Draws a share of a client's examples; the number of rows stays.

    Args:
        examples: The client's examples.
        share: In [0, 1], of the examples; rounded down, but to one example if there is one.
        seed: `int32[2]`.
    """
    order = random_order(examples, seed)
    size = tf.convert_to_tensor(examples.size)
    number = tf.maximum(_part(size, share), tf.minimum(size, 1))
    return Examples(tf.gather(examples.x, order), tf.gather(examples.y, order), number)


def _part(size: tf.Tensor, share: float) -> tf.Tensor:
    """Returns `share * size`, rounded down."""
    part = tf.floor(share * tf.cast(size, tf.float64) + 1e-9)  # 0.7 * 10 is 7
    return tf.cast(part, tf.int32)


def split_examples(
    examples: Examples, share: float, *, seed: tf.Tensor
) -> tuple[Examples, Examples]:
    """Splits a client's examples at random into two parts.

    Args:
        examples: The client's examples.
        share: In (0, 1), the second part's share, rounded up; but the first part has an example if
            there is one.
        seed: `int32[2]`.

    Returns:
        `(first, second)`; together they are `examples`, padding apart.
    """
    order = random_order(examples, seed)
    capacity = tf.shape(examples.y)[0]

    def first_size(size):
        return tf.maximum(_part(size, 1 - share), tf.minimum(size, 1))

    size = tf.convert_to_tensor(examples.size)
    cut = first_size(size)
    # No client's parts are larger than those of a client with `capacity` examples.
    first = order[: first_size(capacity)]
    second = order[cut : cut + capacity - first_size(capacity)]
    return tuple(
        Examples(tf.gather(examples.x, rows), tf.gather(examples.y, rows), number)
        for rows, number in ((first, cut), (second, size - cut))
    )
