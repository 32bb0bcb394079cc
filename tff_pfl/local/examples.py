"""The inputs of client work: a client's examples as tensors, and the context of the round."""

import functools
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.arguments.ranges import takes, whole
from tff_pfl.models.example_weights import labels_of
from tff_pfl.tracing.padding import may_be_padded


@may_be_padded
class Examples(NamedTuple):
    """The examples of one client, of TFF type `<x=X, y=Y, size=int32>`.

    `X` and `Y` are one tensor each, such as `uint8[?,28,28,1]` and `int32[?]`, or a structure (a
    mapping, or a tuple) of tensors. All tensors have the same rows, one for each example.

    Attributes:
        x: The inputs, in the data types in which they are stored (images: uint8). They become
            floats inside the client's graph.
        y: The labels: int32 `[?]` if they are classes, otherwise in the types in which they are
            stored. If the data set has weights, a mapping of "label" and "sample_weight".
        size: int32 scalar, the number of rows that are examples. Rows from `size` on are padding,
            so that clients of different sizes can share a shape. Padding never changes a result.
    """

    x: Any
    y: Any
    size: tf.Tensor

    @property
    def labels(self) -> Any:
        """The labels alone, without the weights of a data set that has some."""
        return labels_of(self.y)


class Batch(NamedTuple):
    """A mini-batch; all of a client have the same number of rows or half of it, see `scan_batches`.

    Attributes:
        x: `[batch_size, ...]` inputs, in the structure of `Examples.x`.
        y: `[batch_size, ...]` labels, in the structure of `Examples.y`. Surplus rows have zeros.
            If the data set has weights, these are a mapping of "label" and "sample_weight"; see
            `labels`.
        weight: `[batch_size]` float32, 1 for an example and 0 for a surplus row. Losses and
            gradients are weighted by it, which makes partial batches exact. `Task.weights_of`
            multiplies it by the weights of examples.
        seed: `int32[2]`, the seed of this batch for stateless operations (dropout).
    """

    x: Any
    y: Any
    weight: tf.Tensor
    seed: tf.Tensor

    @property
    def labels(self) -> Any:
        """The labels alone, without the weights of a data set that has some."""
        return labels_of(self.y)


class ClientContext(NamedTuple):
    """The round, the client and the seed of client work.

    Attributes:
        round_num: int32 scalar, the number of rounds before this one. Client work for evaluation,
            such as fine-tuning, has the number, and thus the learning rate, of the last round.
        client_id: int32 scalar.
        seed: `int32[2]`, a function of (run seed, round, client id, exchange). Client work draws
            all random numbers from it by stateless operations, so a round is a pure function.
        carry: `ClientOutput.carry` of the client's previous exchange in this round, or `()` in the
            first exchange.
    """

    round_num: tf.Tensor
    client_id: tf.Tensor
    seed: tf.Tensor
    carry: Any = ()

    def of_evaluation(self) -> "ClientContext":
        """Returns the context of the last round, or of the first round before any round."""
        return self._replace(round_num=tf.maximum(self.round_num - 1, 0))


@takes(capacity=whole(0))
def examples_type(x_shape, x_dtype=np.uint8, capacity=None) -> tff.types.StructWithPythonType:
    """Returns the TFF type of a client's `Examples` of one array of inputs and class labels.

    For other examples, use `FederatedDataset.examples_type`.

    Example:
        >>> str(tff_pfl.examples_type((28, 28, 1)))
        '<x=uint8[?,28,28,1],y=int32[?],size=int32>'

    Args:
        x_shape: The shape of one input, without the leading axis.
        x_dtype: The data type of the inputs as they are stored.
        capacity: The number of rows, or `None` if it differs between clients.
    """
    return type_of_examples(
        tff.types.TensorType(x_dtype, (capacity, *x_shape)),
        tff.types.TensorType(np.int32, (capacity,)),
    )


def type_of_examples(x_type: tff.types.Type, y_type: tff.types.Type):
    """Returns the TFF type of `Examples` with inputs and labels of the given types."""
    fields = [("x", x_type), ("y", y_type), ("size", tff.types.TensorType(np.int32))]
    return tff.types.StructWithPythonType(fields, Examples)


def num_rows(examples: Examples | Batch) -> tf.Tensor:
    """Returns the number of rows, padding included, as an int32 scalar."""
    return _num_rows(tf.nest.flatten((examples.y, examples.x))[0])


def _num_rows(leaf):
    leaf = tf.convert_to_tensor(leaf)
    return tf.size(leaf) if leaf.shape.rank == 1 else tf.shape(leaf)[0]


def static_num_rows(examples: Examples) -> int | None:
    """Returns the number of rows, padding included, or `None` if the shapes leave it open."""
    return tf.convert_to_tensor(tf.nest.flatten((examples.y, examples.x))[0]).shape[0]


def gather_rows(rows: Any, indices: tf.Tensor) -> Any:
    """Returns the rows with the given indices of each tensor of a structure."""
    return tf.nest.map_structure(lambda leaf: tf.gather(leaf, indices), rows)


def readable(examples: Examples) -> tuple[Examples, tf.Tensor]:
    """Returns `(examples, is_sound)`, where unsound examples, with an invalid `size`, get size 0.

    A size is valid if it is in 0 .. rows.
    """
    numbers = map(_num_rows, tf.nest.flatten((examples.x, examples.y)))
    rows = functools.reduce(tf.minimum, numbers)
    is_sound = tf.logical_and(examples.size >= 0, examples.size <= rows)
    return examples._replace(size=tf.where(is_sound, examples.size, 0)), is_sound


def random_order(examples: Examples, seed: tf.Tensor) -> tf.Tensor:
    """Returns the rows in random order, int32 `[capacity]`, with the examples before padding.

    The order does not depend on the number of padding rows.

    Args:
        examples: The client's examples.
        seed: `int32[2]`.
    """
    capacity = num_rows(examples)
    return order_of(tf.range(capacity) < examples.size, capacity, seed)


def order_of(is_example: tf.Tensor, capacity: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Returns `random_order` of `capacity` rows, the first of which are examples."""
    # Sorts random int32 keys; key i depends only on the seed and on i, not on the capacity.
    keys = tf.random.stateless_uniform([capacity], seed, minval=None, maxval=None, dtype=tf.int32)
    keys = tf.where(is_example, keys, tf.int32.min)
    return tf.math.top_k(keys, k=capacity).indices


def sample_examples(examples: Examples, share: float, *, seed: tf.Tensor) -> Examples:
    """Draws a share of a client's examples, without changing the number of rows.

    Args:
        examples: The client's examples.
        share: The share of the examples, in [0, 1]. Their number is rounded down, but is at least
            one if the client has examples.
        seed: `int32[2]`.
    """
    order = random_order(examples, seed)
    size = tf.convert_to_tensor(examples.size)
    number = tf.maximum(_part(size, share), tf.minimum(size, 1))
    return Examples(gather_rows(examples.x, order), gather_rows(examples.y, order), number)


def _part(size: tf.Tensor, share: float) -> tf.Tensor:
    """Returns `share * size`, rounded down."""
    part = tf.floor(share * tf.cast(size, tf.float64) + 1e-9)  # Makes 0.7 * 10 at least 7.
    return tf.cast(part, tf.int32)


def split_examples(
    examples: Examples, share: float, *, seed: tf.Tensor
) -> tuple[Examples, Examples]:
    """Splits a client's examples at random into two parts.

    Args:
        examples: The client's examples.
        share: The second part's share of the examples, in (0, 1). Their number is rounded up, but
            the first part has at least one example if the client has examples.
        seed: `int32[2]`.

    Returns:
        `(first, second)`, which together have all examples of the client.
    """
    order = random_order(examples, seed)
    capacity = num_rows(examples)

    def first_size(size):
        return tf.maximum(_part(size, 1 - share), tf.minimum(size, 1))

    size = tf.convert_to_tensor(examples.size)
    cut = first_size(size)
    # Parts have the shapes of the largest possible client, with `capacity` examples.
    first = order[: first_size(capacity)]
    # Not a slice, whose shape XLA would not know.
    second = tf.gather(order, cut + tf.range(capacity - first_size(capacity)))

    def part(rows, number):
        return Examples(gather_rows(examples.x, rows), gather_rows(examples.y, rows), number)

    return part(first, cut), part(second, size - cut)
