"""Values while a computation is lowered: nested tuples of tensors.

A structure is a tuple; the names of its elements are in its TFF type. A sequence is a variant
tensor, as TensorFlow's data sets are, or `Elements`.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
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
        has_loops: Whether it has loops, so that a call may take long.
        has_frozen: Whether it reads frozen weights, of which models have many.
        appends: Whether it is `(rows, x) -> concat(rows, f(x))`, so that each client's rows can be
            computed alone. This, `is_deterministic` and `has_loops` are found only when they are
            asked for, because that imports graphs.
        block: The name of its block in messages, or "".
    """

    call: Callable[[Any], Any]
    type_signature: tff.types.FunctionType
    is_deterministic: Callable[[], bool] = lambda: True
    is_structural: bool = False
    has_loops: Callable[[], bool] = lambda: False
    has_frozen: Callable[[], bool] = lambda: False
    appends: Callable[[], bool] = lambda: False
    block: Callable[[], str] = lambda: ""

    def __str__(self) -> str:
        """Returns the name of its block, or else the beginning of its type."""
        return self.block() or str(self.type_signature)[:200]


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
