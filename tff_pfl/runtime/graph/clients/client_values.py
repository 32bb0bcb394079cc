"""Values of clients while a computation is lowered: each leaf of all clients of a shard."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.runtime.graph import values

_MAX_RANK = 8  # the limit of most TensorFlow operations


def rank(leaf_type: tff.types.TensorType) -> int:
    """Returns the length of a row of `Ragged.shapes`."""
    return _MAX_RANK if leaf_type.shape is None else len(leaf_type.shape)


def may_differ(leaf_type: tff.types.Type) -> bool:
    """Returns whether the shapes of a leaf may differ by client."""
    return (
        isinstance(leaf_type, tff.types.TensorType)
        and not tf.TensorShape(leaf_type.shape).is_fully_defined()
    )


def row_of_shape(shape: tf.Tensor, length: int) -> tf.Tensor:
    """Pads a shape, int64 `[rank]`, to a row of `Ragged.shapes`."""
    filled = tf.pad(shape, [[0, length - tf.size(shape)]], constant_values=-1)
    return tf.ensure_shape(filled, [length])


# Classes for the values of one leaf of all clients of a shard. `at(index)` returns one client's
# value. `of(rows)` returns it too, given an iterator over the client's rows of the `stacks`, which
# are those of all clients, or of the clients from `first` to `last - 1`.


@dataclasses.dataclass(eq=False)
class Shared:
    """A value that all clients share; broadcast values are not copied."""

    value: Any

    def at(self, index):
        """Returns the shared value."""
        del index
        return self.value

    def stacks(self, first=None, last=None):
        """Returns an empty list."""
        del first, last
        return []

    def row_specs(self):
        """Returns an empty list."""
        return []

    def of(self, rows):
        """Returns the shared value."""
        del rows
        return self.value

    def tensors(self):
        """Returns the shared value as a tensor."""
        return [values.as_tensor(self.value)]

    def stacked(self, size) -> "Stacked":
        """Returns a stack of `size` copies."""
        return Stacked(tf.repeat(self.value[tf.newaxis], size, axis=0))


@dataclasses.dataclass(eq=False)
class Stacked:
    """Tensors of one shape, stacked on a leading axis.

    Attributes:
        tensor: The stack.
        is_list: Whether the tensors are large results of a loop, which are stacked only where they
            must be.
    """

    tensor: tf.Tensor
    is_list: bool = False

    def at(self, index):
        """Returns one client's tensor."""
        return tf.gather(self.tensor, index)

    def sum(self) -> tf.Tensor:
        """Returns the sum of the tensors."""
        return tf.reduce_sum(self.tensor, axis=0)

    def stacks(self, first=None, last=None):
        """Returns the stack."""
        return [self.tensor if last is None else self.tensor[first:last]]

    def row_specs(self):
        """Returns the spec of a row of the stack."""
        return [tf.TensorSpec(self.tensor.shape[1:], self.tensor.dtype)]

    def of(self, rows):
        """Returns the next row."""
        return next(rows)

    def ordered(self, positions):
        """Returns the leaf of the clients at these positions."""
        return Stacked(tf.gather(self.tensor, positions))

    def tensors(self):
        """Returns the stack."""
        return [self.tensor]

    @staticmethod
    def specs(leaf_type) -> list[tf.TensorSpec]:
        """Returns the specs of `tensors()`."""
        spec = values.tensor_spec(leaf_type)
        return [tf.TensorSpec(tf.TensorShape([None]).concatenate(spec.shape), spec.dtype)]

    @staticmethod
    def take(tensors: Iterator[tf.Tensor], leaf_type) -> "Stacked":
        """Makes a leaf of a type from the next tensor."""
        return Stacked(next(tensors))


@dataclasses.dataclass(eq=False)
class Ragged:
    """Tensors whose shapes differ: their concatenated elements and their shapes.

    If a type has unknown rank, shapes are padded with -1 to the length `rank(leaf_type)`.
    """

    elements: tf.Tensor  # [sum of the sizes]
    shapes: tf.Tensor  # int64[num_clients, rank]
    ends: tf.Tensor  # int64[num_clients], the end of each client's elements
    static_shape: tf.TensorShape  # what is known of all clients' shapes

    @classmethod
    def make(cls, elements: tf.Tensor, shapes: tf.Tensor, leaf_type) -> "Ragged":
        """Makes a leaf of a type from elements and shapes."""
        sizes = tf.reduce_prod(tf.where(shapes < 0, tf.ones_like(shapes), shapes), axis=1)
        return cls(elements, shapes, tf.cumsum(sizes), tf.TensorShape(leaf_type.shape))

    def at(self, index):
        """Returns one client's tensor."""
        shape, end = self._shape(index), self.ends[index]
        return tf.reshape(self.elements[end - tf.reduce_prod(shape) : end], shape)

    def _shape(self, index):
        row = self.shapes[index]
        return tf.boolean_mask(row, row >= 0) if row.shape[0] == _MAX_RANK else row

    def ordered(self, positions):
        """Returns the leaf of the clients at these positions."""
        elements = tf.gather(tf.RaggedTensor.from_row_limits(self.elements, self.ends), positions)
        sizes = elements.row_limits()
        return Ragged(
            elements.flat_values, tf.gather(self.shapes, positions), sizes, self.static_shape
        )

    def tensors(self):
        """Returns the elements and the shapes."""
        return [self.elements, self.shapes]

    @staticmethod
    def specs(leaf_type) -> list[tf.TensorSpec]:
        """Returns the specs of `tensors()`."""
        return [
            tf.TensorSpec([None], values.dtype(leaf_type)),
            tf.TensorSpec([None, rank(leaf_type)], tf.int64),
        ]

    @classmethod
    def take(cls, tensors: Iterator[tf.Tensor], leaf_type) -> "Ragged":
        """Makes a leaf of a type from the next two tensors."""
        return cls.make(next(tensors), next(tensors), leaf_type)

    def to_stacked(self) -> Stacked:
        """Stacks the tensors, and asserts that their shapes are equal."""
        equal = tf.debugging.assert_equal(
            self.shapes,
            self.shapes[0],
            "Tensors whose shapes differ by client cannot be aggregated.",
        )
        with tf.control_dependencies([equal]):
            size = tf.shape(self.shapes, tf.int64)[:1]
            return Stacked(tf.reshape(self.elements, tf.concat([size, self._shape(0)], axis=0)))


def aligned(leaf: Any) -> Any:
    """Converts a `Ragged` leaf to a stack, so that it can be aggregated."""
    return leaf.to_stacked() if isinstance(leaf, Ragged) else leaf


class Grouped(Ragged):
    """Tensors whose shapes are equal within each group of the shard."""

    def stacks(self, first, last):
        """Returns the stack of the clients of a group from `first` to `last - 1`."""
        shape = self._shape(first)
        start = self.ends[first] - tf.reduce_prod(shape)
        count = tf.cast(last - first, tf.int64)[tf.newaxis]
        stack = tf.reshape(self.elements[start : self.ends[last - 1]], tf.concat([count, shape], 0))
        return [tf.ensure_shape(stack, [None, *self.static_shape])]

    def row_specs(self):
        """Returns the spec of a client's tensor."""
        return [tf.TensorSpec(self.static_shape, self.elements.dtype)]

    def of(self, rows):
        """Returns the next row."""
        return next(rows)


@dataclasses.dataclass(eq=False)
class Selected:
    """Sequences of the elements for each client's own keys."""

    keys: Stacked
    element: Callable[[tf.Tensor], Any]
    element_type: tff.types.Type

    def at(self, index):
        """Returns one client's sequence."""
        return values.Elements(self.keys.at(index), self.element, self.element_type)

    def stacks(self, first=None, last=None):
        """Returns the stack of keys."""
        return self.keys.stacks(first, last)

    def row_specs(self):
        """Returns the spec of a client's keys."""
        return self.keys.row_specs()

    def tensors(self):
        """Returns the sequences as a stack of variants."""
        return [
            tf.map_fn(
                lambda keys: values.Elements(keys, self.element, self.element_type).to_variant(),
                self.keys.tensor,
                fn_output_signature=tf.TensorSpec([], tf.variant),
            )
        ]

    def of(self, rows):
        """Returns the sequence of the next row of keys."""
        return values.Elements(self.keys.of(rows), self.element, self.element_type)


Leaf = Shared | Stacked | Ragged | Selected


class Groups(NamedTuple):
    """The groups of a shard, whose clients lie group after group.

    Attributes:
        ends: int32 `[num_groups]`, the end of each group.
        positions: int32 `[num_clients]`, the position of each client, in the order of the cohort.
        places: int32 `[num_groups]`, see `groups.Parts`; or `None`.
    """

    ends: tf.Tensor
    positions: tf.Tensor
    places: tf.Tensor | None = None


@dataclasses.dataclass(frozen=True)
class Shard:
    """A part of the cohort, `size` clients (an integer tensor), on one device.

    Attributes:
        device: The device.
        size: The number of clients, an int32 scalar.
        leaves: The clients' values.
        groups: The groups of clients, or `None` if clients are in the order of the cohort.
        prefixes: See `groups.Parts`.
    """

    device: str
    size: tf.Tensor
    leaves: tuple[Leaf, ...]
    groups: Groups | None = None
    prefixes: tuple[int, ...] = ()

    def at(self, index, type_spec):
        """Returns the value of a type of the client at an index in the order of the cohort."""
        position = index if self.groups is None else self.groups.positions[index]
        return values.pack(type_spec, (leaf.at(position) for leaf in self.leaves))

    def rows(self, leaf: Any) -> tf.Tensor:
        """Concatenates the tensors of all clients, whose first dimensions may differ, in order."""
        if isinstance(leaf, Shared):
            leaf = leaf.stacked(self.size)
        elif self.groups is not None:
            leaf = leaf.ordered(self.groups.positions)
        if isinstance(leaf, Ragged):
            first = tf.reduce_sum(leaf.shapes[:, :1], axis=0)
            return tf.reshape(leaf.elements, tf.concat([first, leaf.shapes[0, 1:]], axis=0))
        row_shape = leaf.tensor.shape[2:]
        if row_shape.num_elements():  # known, and not 0
            return tf.reshape(leaf.tensor, [-1, *row_shape])
        shape = tf.shape(leaf.tensor)
        return tf.reshape(leaf.tensor, tf.concat([[shape[0] * shape[1]], shape[2:]], axis=0))


@dataclasses.dataclass(frozen=True)
class Clients:
    """A value of the type `{member}@CLIENTS`; an empty cohort has no shards."""

    member: tff.types.Type
    shards: tuple[Shard, ...]

    def with_leaves(self, member, leaves: Iterable[Iterable[Leaf]]) -> "Clients":
        """Returns the same clients with the given leaves of each shard."""
        shards = zip(self.shards, leaves, strict=True)
        changed = (dataclasses.replace(shard, leaves=tuple(own)) for shard, own in shards)
        return Clients(member, tuple(changed))
