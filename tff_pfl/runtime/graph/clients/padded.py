"""Values of clients whose rows a compiled loop pads: those of examples."""

import functools
import math
from collections.abc import Iterable, Iterator

import tensorflow as tf

from tff_pfl.runtime.graph import values
from tff_pfl.runtime.graph.clients import client_values


class Padded(client_values.Ragged):
    """Rows of examples in a buffer, in which each client may read a part's capacity of rows.

    Rows from its `size` on are padding.

    Attributes:
        buffer: The elements of the rows of all clients.
        capacities: int32 `[num_parts]`, the number of rows that each client of a part may read.
        starts: int32 `[num_clients]`, the row at which each client begins.
        rows: int32 `[num_clients]`, the number of rows of each client.
        size: The leaf of the clients' numbers of examples, see `with_sizes`.
    """

    size: client_values.Stacked | None

    def __init__(self, buffer, capacities, starts, rows, leaf_type):
        """Makes the leaf of a type."""
        self.buffer, self.capacities, self.starts, self.rows = buffer, capacities, starts, rows
        self.static_shape = tf.TensorShape(leaf_type.shape)
        self.size = None

    @functools.cached_property
    def elements(self) -> tf.Tensor:
        """The elements of the clients' own rows."""
        with self.buffer.graph.as_default():
            rows = tf.ragged.range(self.starts, self.starts + self.rows).flat_values
            return tf.reshape(tf.gather(tf.reshape(self.buffer, self._shape_of_rows), rows), [-1])

    @functools.cached_property
    def shapes(self) -> tf.Tensor:
        """The shapes of the clients' own rows."""
        with self.buffer.graph.as_default():
            first = tf.cast(self.rows, tf.int64)[:, tf.newaxis]
            others = tf.constant(self._shape_of_rows[1:], tf.int64)[tf.newaxis]
            return tf.concat([first, tf.repeat(others, tf.size(self.rows), axis=0)], axis=1)

    @functools.cached_property
    def ends(self) -> tf.Tensor:
        """The end of each client's elements."""
        with self.buffer.graph.as_default():
            return tf.cumsum(tf.reduce_prod(self.shapes, axis=1))

    def at(self, index):
        """Returns one client's own rows."""
        rows = self._from(self.starts[index], self.rows[index])
        return tf.reshape(rows, self._shape_of_rows)

    def of_lanes(self, clients: tf.Tensor) -> list[tf.Tensor]:
        """Returns the rows of all clients, the first of each lane's, and a tensor of all rows."""
        rows = tf.reshape(self.buffer, self._shape_of_rows)
        # XLA knows the size of a tensor, but not a number.
        return [rows, tf.gather(self.starts, clients), tf.zeros(self.capacities, tf.int8)]

    def of_part(self, index: tf.Tensor, clients: tf.Tensor) -> list[tf.Tensor]:
        """Returns the rows of a part and, for each of its clients, the first of its own.

        Args:
            index: The index of the part.
            clients: int32, the client of each of the part's places.
        """
        starts = tf.gather(self.starts, clients)
        rows = self._from(starts[0], tf.size(clients) * self.capacities[index])
        return [rows, starts - starts[0]]

    def _from(self, start: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        """Returns a number of rows, each flat; a view of the buffer if a part begins there."""
        length = math.prod(self._shape_of_rows[1:])
        start, number = tf.cast(start, tf.int64), tf.cast(number, tf.int64)
        elements = self.buffer[start * length : (start + number) * length]
        return tf.reshape(elements, [number, length])

    @property
    def _shape_of_rows(self) -> list[int]:
        return [-1, *self.static_shape[1:]]

    def row_specs(self):
        """Returns the spec of a client's rows."""
        return [tf.TensorSpec(self.static_shape, self.buffer.dtype)]

    def of(self, rows):
        """Returns the next rows."""
        return next(rows)

    @staticmethod
    def specs(leaf_type) -> list[tf.TensorSpec]:
        """Returns the specs of the tensors from which `take` makes a leaf."""
        numbers = [tf.TensorSpec([None], tf.int32)] * 3
        return [tf.TensorSpec([None], values.dtype(leaf_type)), *numbers]

    @classmethod
    def take(cls, tensors: Iterator[tf.Tensor], leaf_type) -> "Padded":
        """Makes a leaf from the next four tensors."""
        return cls(next(tensors), next(tensors), next(tensors), next(tensors), leaf_type)


def with_sizes(leaves: Iterable[client_values.Leaf]) -> list[client_values.Leaf]:
    """Lists the leaves of a value; the next scalar after rows of examples is their number."""
    leaves, size = list(leaves), None
    for leaf in reversed(leaves):
        if isinstance(leaf, Padded):
            leaf.size = size
        elif isinstance(leaf, client_values.Stacked) and leaf.tensor.shape.rank == 1:
            size = leaf
    return leaves
