"""Values while a computation is lowered: nested tuples of tensors, and stacks of clients' values.

A structure is a tuple; the names of its elements are in its TFF type. A sequence is a variant
tensor, as TensorFlow's data sets are, or `Elements`.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff


class CannotLowerError(NotImplementedError):
    """An error for a computation that the graph executor does not support."""


@dataclasses.dataclass(frozen=True)
class Function:
    """A function in a computation.

    Attributes:
        call: The Python function from the argument (`None` without a parameter) to the result.
        type_signature: The TFF type of the function.
        is_deterministic: Whether equal arguments give equal results.
        is_structural: Whether it only selects and packs elements, which then may be any objects.
        appends: Whether it appends rows to each tensor of the first element of its argument, and
            these rows depend on the second element only.
    """

    call: Callable[[Any], Any]
    type_signature: tff.types.FunctionType
    is_deterministic: bool = True
    is_structural: bool = False
    appends: bool = False


_MAX_RANK = 8  # the limit of most TensorFlow operations


def rank(leaf_type: tff.types.TensorType) -> int:
    """Returns the length of a row of `Ragged.shapes`."""
    return _MAX_RANK if leaf_type.shape is None else len(leaf_type.shape)


def leaf_types(type_spec: tff.types.Type) -> list[tff.types.Type]:
    """Returns the tensor and sequence types in a type without placements, in order."""
    if not isinstance(type_spec, tff.types.StructType):
        return [type_spec]
    return [leaf for element in type_spec for leaf in leaf_types(element)]


flatten = tf.nest.flatten


def pack(type_spec: tff.types.Type, leaves: Iterator) -> Any:
    """Packs leaves into a value of a type; the inverse of `flatten`."""
    if not isinstance(type_spec, tff.types.StructType):
        return next(leaves)
    return tuple(pack(element, leaves) for element in type_spec)


def may_differ(leaf_type: tff.types.Type) -> bool:
    """Returns whether the shapes of a leaf may differ by client."""
    return (
        isinstance(leaf_type, tff.types.TensorType)
        and not tf.TensorShape(leaf_type.shape).is_fully_defined()
    )


def tensor_spec(type_spec: tff.types.Type) -> tf.TensorSpec:
    """Returns the spec of a leaf in a graph; a sequence is a variant tensor."""
    if isinstance(type_spec, tff.types.SequenceType):
        return tf.TensorSpec([], tf.variant)
    return tf.TensorSpec(type_spec.shape, dtype(type_spec))


def dtype(type_spec: tff.types.TensorType) -> tf.DType:
    """Returns TensorFlow's data type of a tensor type."""
    return tf.dtypes.as_dtype(type_spec.dtype.type)


def zeros(leaf_type: tff.types.TensorType) -> tf.Tensor:
    """Returns the zero of a type, in which unknown dimensions are 0."""
    shape = [0 if dimension is None else dimension for dimension in leaf_type.shape]
    return tf.zeros(shape, dtype(leaf_type))


@dataclasses.dataclass(frozen=True)
class Elements:
    """A sequence given by keys `[num_elements]` and a function from a key to its element."""

    keys: tf.Tensor
    element: Callable[[tf.Tensor], Any]
    element_type: tff.types.Type

    def to_variant(self) -> tf.Tensor:
        """Converts the sequence to a variant tensor."""
        specs = _component_specs(self.element_type)
        if all(spec.shape.is_fully_defined() for spec in specs):
            # Data sets on workers cannot call functions that call functions.
            rows = tf.map_fn(self._components, self.keys, fn_output_signature=specs)
            return to_variant(tf.data.Dataset.from_tensor_slices(rows))
        return to_variant(tf.data.Dataset.from_tensor_slices(self.keys).map(self._components))

    @tf.autograph.experimental.do_not_convert
    def _components(self, key):
        return components(self.element_type, self.element(key))


def is_single(leaf) -> bool:
    """Returns whether a leaf is `Elements` with exactly one element."""
    return isinstance(leaf, Elements) and leaf.keys.shape[0] == 1


def single(leaf) -> Sequence[tf.Tensor]:
    """Returns the components of a single element, or any other leaf in a list."""
    if not is_single(leaf):
        return [leaf]
    return components(leaf.element_type, leaf.element(leaf.keys[0]))


def spec_of_single(leaf, leaf_type) -> tf.TensorSpec | tuple[tf.TensorSpec, ...]:
    """Returns the specs of the tensors of `single`, in the form that `ImportedFunction` takes."""
    if not is_single(leaf):
        return tensor_spec(leaf_type)
    return _component_specs(leaf.element_type)


def components(element_type, element) -> tuple[tf.Tensor, ...]:
    """Returns the leaves of a sequence's element in the order of a data set."""
    leaves = [as_tensor(leaf) for leaf in flatten(element)]
    return tuple(leaves[index] for index in _component_order(element_type))


def from_components(element_type, tensors) -> Any:
    """Packs components into an element of a sequence; the inverse of `components`."""
    leaves = dict(zip(_component_order(element_type), tensors, strict=True))
    return pack(element_type, (leaves[index] for index in range(len(leaves))))


def to_dataset(variant: tf.Tensor, element_type) -> tf.data.Dataset:
    """Returns a sequence as a data set of tuples of components."""
    return tf.data.experimental.from_variant(variant, _component_specs(element_type))


to_variant = tf.data.experimental.to_variant


def _component_specs(element_type) -> tuple[tf.TensorSpec, ...]:
    specs = [tensor_spec(leaf) for leaf in leaf_types(element_type)]
    return tuple(specs[index] for index in _component_order(element_type))


def _component_order(element_type) -> list[int]:
    """Returns the index of the leaf of each component of a data set; dictionaries are sorted."""

    def number(type_spec):
        if not isinstance(type_spec, tff.types.StructType):
            return next(numbers)
        names = tff.structure.name_list_with_nones(type_spec)
        return tff.structure.Struct(zip(names, map(number, type_spec), strict=True))

    numbers = itertools.count()
    return tf.nest.flatten(tff.types.type_to_py_container(number(element_type), element_type))


def as_tensor(leaf) -> tf.Tensor:
    """Converts a leaf to a tensor."""
    return leaf.to_variant() if isinstance(leaf, Elements) else tf.convert_to_tensor(leaf)


# Classes for the values of one leaf of all clients of a shard. `at(index)` returns one client's
# value. `of(rows)` returns it too, given an iterator over the client's rows of the `stacks()`.


@dataclasses.dataclass(frozen=True)
class Shared:
    """A value that all clients share; broadcast values are not copied."""

    value: Any

    def at(self, index):
        """Returns the shared value."""
        del index
        return self.value

    def stacks(self):
        """Returns an empty list."""
        return []

    def of(self, rows):
        """Returns the shared value."""
        del rows
        return self.value

    def tensors(self):
        """Returns the shared value as a tensor."""
        return [as_tensor(self.value)]

    def stacked(self, size) -> "Stacked":
        """Returns a stack of `size` copies."""
        return Stacked(tf.repeat(self.value[tf.newaxis], size, axis=0))


@dataclasses.dataclass(frozen=True)
class Stacked:
    """Tensors of one shape, stacked on a leading axis."""

    tensor: tf.Tensor

    def at(self, index):
        """Returns one client's tensor."""
        return tf.gather(self.tensor, index)

    def stacks(self):
        """Returns the stack."""
        return [self.tensor]

    def of(self, rows):
        """Returns the next row."""
        return next(rows)

    def tensors(self):
        """Returns the stack."""
        return [self.tensor]

    @staticmethod
    def specs(leaf_type) -> list[tf.TensorSpec]:
        """Returns the specs of `tensors()`."""
        spec = tensor_spec(leaf_type)
        return [tf.TensorSpec(tf.TensorShape([None]).concatenate(spec.shape), spec.dtype)]

    @staticmethod
    def take(tensors: Iterator[tf.Tensor]) -> "Stacked":
        """Makes a leaf from the next tensor."""
        return Stacked(next(tensors))


class Listed(Stacked):
    """Large tensors in the array of a loop over clients, which are stacked only where they must be.

    A stack of models takes as much time as several passes over each model.
    """

    def __init__(self, array: tf.TensorArray, size: tf.Tensor):
        """Makes a leaf of the first `size` entries of an array."""
        object.__setattr__(self, "_array", array)
        object.__setattr__(self, "_size", size)

    @functools.cached_property
    def tensor(self) -> tf.Tensor:
        """The stack."""
        with self._array.flow.graph.as_default():
            return self._array.stack()

    def at(self, index):
        """Returns one client's tensor, without a copy."""
        return self._array.read(index)

    def sum(self) -> tf.Tensor:
        """Returns the sum of the tensors, added one by one."""

        def add(index, total):
            return index + 1, total + self._array.read(index)

        start = tf.zeros(self._array.element_shape, self._array.dtype)
        return tf.while_loop(lambda index, _: index < self._size, add, (tf.constant(0), start))[1]


@dataclasses.dataclass(frozen=True)
class Ragged:
    """Tensors whose shapes differ: their concatenated elements and their shapes.

    If a type has unknown rank, shapes are padded with -1 to the length `rank(leaf_type)`.
    """

    elements: tf.Tensor  # [sum of the sizes]
    shapes: tf.Tensor  # int64[num_clients, rank]
    ends: tf.Tensor  # int64[num_clients], the end of each client's elements

    @classmethod
    def make(cls, elements: tf.Tensor, shapes: tf.Tensor) -> "Ragged":
        """Makes a leaf from elements and shapes."""
        sizes = tf.reduce_prod(tf.where(shapes < 0, tf.ones_like(shapes), shapes), axis=1)
        return cls(elements, shapes, tf.cumsum(sizes))

    def at(self, index):
        """Returns one client's tensor."""
        shape, end = self._shape(index), self.ends[index]
        return tf.reshape(self.elements[end - tf.reduce_prod(shape) : end], shape)

    def _shape(self, index):
        row = self.shapes[index]
        return tf.boolean_mask(row, row >= 0) if row.shape[0] == _MAX_RANK else row

    def tensors(self):
        """Returns the elements and the shapes."""
        return [self.elements, self.shapes]

    @staticmethod
    def specs(leaf_type) -> list[tf.TensorSpec]:
        """Returns the specs of `tensors()`."""
        return [
            tf.TensorSpec([None], dtype(leaf_type)),
            tf.TensorSpec([None, rank(leaf_type)], tf.int64),
        ]

    @classmethod
    def take(cls, tensors: Iterator[tf.Tensor]) -> "Ragged":
        """Makes a leaf from the next two tensors."""
        return cls.make(next(tensors), next(tensors))

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


def aligned(leaf: Shared | Stacked | Ragged) -> Shared | Stacked:
    """Converts a `Ragged` leaf to a stack, so that it can be aggregated."""
    return leaf.to_stacked() if isinstance(leaf, Ragged) else leaf


def rows(leaf: Shared | Stacked | Ragged, size: tf.Tensor) -> tf.Tensor:
    """Concatenates the tensors of `size` clients, whose first dimensions may differ."""
    if isinstance(leaf, Ragged):
        first = tf.reduce_sum(leaf.shapes[:, :1], axis=0)
        return tf.reshape(leaf.elements, tf.concat([first, leaf.shapes[0, 1:]], axis=0))
    if isinstance(leaf, Shared):
        leaf = leaf.stacked(size)
    shape = tf.shape(leaf.tensor)
    return tf.reshape(leaf.tensor, tf.concat([[shape[0] * shape[1]], shape[2:]], axis=0))


@dataclasses.dataclass(frozen=True)
class Selected:
    """Sequences of the elements for each client's own keys."""

    keys: Stacked
    element: Callable[[tf.Tensor], Any]
    element_type: tff.types.Type

    def at(self, index):
        """Returns one client's sequence."""
        return Elements(self.keys.at(index), self.element, self.element_type)

    def stacks(self):
        """Returns the stack of keys."""
        return self.keys.stacks()

    def tensors(self):
        """Returns the sequences as a stack of variants."""
        return [
            tf.map_fn(
                lambda keys: Elements(keys, self.element, self.element_type).to_variant(),
                self.keys.tensor,
                fn_output_signature=tf.TensorSpec([], tf.variant),
            )
        ]

    def of(self, rows):
        """Returns the sequence of the next row of keys."""
        return Elements(self.keys.of(rows), self.element, self.element_type)


Leaf = Shared | Stacked | Ragged | Selected


@dataclasses.dataclass(frozen=True)
class Shard:
    """A part of the cohort, `size` clients (an integer tensor), on one device."""

    device: str
    size: tf.Tensor
    leaves: tuple[Leaf, ...]

    def at(self, index, type_spec):
        """Returns one client's value of a type."""
        return pack(type_spec, (leaf.at(index) for leaf in self.leaves))


@dataclasses.dataclass(frozen=True)
class Clients:
    """A value of the type `{member}@CLIENTS`; an empty cohort has no shards."""

    member: tff.types.Type
    shards: tuple[Shard, ...]

    def with_leaves(self, member, leaves: Iterable[Iterable[Leaf]]) -> "Clients":
        """Returns the same clients with the given leaves of each shard."""
        return Clients(
            member,
            tuple(
                dataclasses.replace(shard, leaves=tuple(shard_leaves))
                for shard, shard_leaves in zip(self.shards, leaves, strict=True)
            ),
        )
