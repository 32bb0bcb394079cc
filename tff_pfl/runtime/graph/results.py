"""Layouts of values in lists of tensors, and conversion of results to Python values."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.runtime.graph import values
from tff_pfl.runtime.graph.clients import client_values
from tff_pfl.runtime.graph.clients.groups import Rows
from tff_pfl.runtime.graph.clients.padded import with_sizes
from tff_pfl.tracing.structures import container_of


class ResidentArray(np.ndarray):
    """A read-only array that keeps the tensor whose memory it shares.

    Computations use the tensor without a copy. Arrays computed from this array have no tensor.
    """

    tensor: tf.Tensor | None = None


@dataclasses.dataclass(frozen=True)
class Layout:
    """The layout of a value in a list of tensors; arguments of equal layouts share a graph.

    Attributes:
        kind: `leaf`, `struct`, `clients` (one value per client) or `function`.
        parts: The layouts of a struct's elements, the classes of clients' leaves, or the building
            block of a function. In a result, each shard has its own classes of leaves, which may
            depend on the type of its device.
    """

    kind: str
    parts: tuple = ()

    def specs(self, type_spec, num_shards: int) -> list[tf.TensorSpec]:
        """Returns the specs of the tensors."""
        if isinstance(type_spec, tff.types.FederatedType):
            type_spec = type_spec.member
        match self.kind:
            case "leaf":
                return [values.tensor_spec(type_spec)]
            case "struct":
                elements = zip(self.parts, type_spec, strict=True)
                return [spec for part, kind in elements for spec in part.specs(kind, num_shards)]
            case "clients":
                leaves = zip(self.parts, values.leaf_types(type_spec), strict=True)
                return [spec for leaf, kind in leaves for spec in leaf.specs(kind)] * num_shards
        return []

    def build(self, type_spec, tensors: Iterator[tf.Tensor], lowering) -> Any:
        """Builds the value from its tensors, in a graph that is being built."""
        if isinstance(type_spec, tff.types.FederatedType):
            if type_spec.placement is tff.CLIENTS and type_spec.all_equal:
                value = self.build(type_spec.member, tensors, lowering)
                return lowering.shared(value, type_spec.member)
            type_spec = type_spec.member
        match self.kind:
            case "leaf":
                return next(tensors)
            case "struct":
                elements = zip(self.parts, type_spec, strict=True)
                return tuple(part.build(kind, tensors, lowering) for part, kind in elements)
            case "clients":
                leaf_types = values.leaf_types(type_spec)
                leaves = [
                    with_sizes(
                        leaf.take(tensors, kind)
                        for leaf, kind in zip(self.parts, leaf_types, strict=True)
                    )
                    for _ in lowering.no_values().shards
                ]
                return lowering.no_values().with_leaves(type_spec, leaves)
        return lowering.evaluate(self.parts[0], {})


def emit(value, type_spec) -> tuple[Layout, list[tf.Tensor]]:
    """Returns the layout and the tensors of a result, while its graph is built."""
    if isinstance(type_spec, tff.types.FederatedType):
        if type_spec.placement is not tff.CLIENTS:
            return emit(value, type_spec.member)
        if type_spec.all_equal:
            if not value.shards:
                raise ValueError("Cannot return an all-equal client value: the cohort is empty.")
            return emit(value.shards[0].at(0, type_spec.member), type_spec.member)
        leaves = [leaf for shard in value.shards for leaf in shard.leaves]
        kinds = tuple(tuple(map(type, shard.leaves)) for shard in value.shards)
        return Layout("clients", kinds), [tensor for leaf in leaves for tensor in leaf.tensors()]
    if isinstance(type_spec, tff.types.StructType):
        parts = [emit(element, kind) for element, kind in zip(value, type_spec, strict=True)]
        tensors = [tensor for _, part in parts for tensor in part]
        return Layout("struct", tuple(layout for layout, _ in parts)), tensors
    if isinstance(type_spec, tff.types.FunctionType):
        raise values.CannotLowerError("The graph executor cannot return a function.")
    return Layout("leaf"), [values.as_tensor(value)]


def packed(tensors: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], Callable[..., Iterator]]:
    """Packs the single numbers among results, so that a GPU sends all of one type at once.

    Returns:
        The other tensors and a vector for each type of numbers; and a function from these, when
        they are computed, to an iterator over the results, in which numbers are NumPy's.
    """
    numbers: dict[tf.DType, list[int]] = {}
    for index, tensor in enumerate(tensors):
        if tensor.shape.rank == 0 and tensor.dtype not in (tf.string, tf.variant):
            numbers.setdefault(tensor.dtype, []).append(index)
    in_vectors = [index for indices in numbers.values() for index in indices]
    others = [index for index in range(len(tensors)) if index not in in_vectors]
    vectors = [tf.stack([tensors[index] for index in indices]) for indices in numbers.values()]

    def unpacked(computed: Iterator[tf.Tensor]) -> Iterator:
        found = list(itertools.islice(computed, len(others)))
        found += [number for vector in computed for number in vector.numpy()]
        return iter([found[place] for place in np.argsort(others + in_vectors)])

    return [tensors[index] for index in others] + vectors, unpacked


Reader = Callable[[Iterator[tf.Tensor], Sequence[Rows]], Any]


def reader(type_spec, layout: Layout, keep_tensors: bool) -> Reader:
    """Returns a function that converts results to Python values, as the stock runtime does.

    The function takes the computed tensors of `emit`, and the shards; it returns the result in the
    containers of its type.

    Args:
        type_spec: The type of the result.
        layout: The layout of the result.
        keep_tensors: Whether arrays that are not placed at clients stay tensors.
    """
    if isinstance(type_spec, tff.types.FederatedType):
        type_spec = type_spec.member
    if layout.kind == "clients":
        return lambda tensors, shards: _client_results(type_spec, layout.parts, tensors, shards)
    if layout.kind == "struct":
        container = container_of(type_spec)
        readers = [
            reader(kind, part, keep_tensors)
            for kind, part in zip(type_spec, layout.parts, strict=True)
        ]
        return lambda tensors, shards: container([read(tensors, shards) for read in readers])
    return lambda tensors, _: _leaf_result(next(tensors), type_spec, keep_tensors)


def _leaf_result(tensor, type_spec, keep_tensors=False):
    if isinstance(type_spec, tff.types.SequenceType):
        return _dataset(tensor, type_spec.element)
    if isinstance(tensor, np.generic):
        return tensor
    if tensor.dtype == tf.string or tensor.shape.rank == 0:
        return tensor.numpy()
    if keep_tensors:
        return tensor
    array = np.asarray(tensor).view(ResidentArray)
    array.tensor = tensor
    return array


def _client_results(member, kinds, tensors, shards) -> list:
    """Returns one value per client, from the classes of the leaves of each shard."""
    leaf_types = values.leaf_types(member)
    make = _maker(member)
    clients = []
    for shard_kinds, shard in zip(kinds, shards, strict=True):
        size = len(shard.clients)
        columns = [
            _column(kind, leaf_type, tensors, size)
            for kind, leaf_type in zip(shard_kinds, leaf_types, strict=True)
        ]
        rows = zip(*columns, strict=True) if columns else [()] * size
        clients += shard.in_order([make(iter(row)) for row in rows])
    return clients


def _column(kind, leaf_type, tensors, size) -> Sequence:
    """Returns the value of a leaf of each client of a shard."""
    if kind is client_values.Shared:
        return [_leaf_result(next(tensors), leaf_type)] * size
    if issubclass(kind, client_values.Ragged):
        elements, shapes = next(tensors).numpy(), next(tensors).numpy()
        shapes = [shape[shape >= 0] for shape in shapes]
        ends = np.cumsum([np.prod(shape, dtype=np.int64) for shape in shapes])
        parts = np.split(elements, ends[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
    stack = next(tensors)
    if isinstance(leaf_type, tff.types.SequenceType):
        return [_dataset(variant, leaf_type.element) for variant in tf.unstack(stack)]
    return stack.numpy() if stack.dtype == tf.string else np.asarray(stack)


def _dataset(variant, element_type) -> tf.data.Dataset:
    specs = map(values.tensor_spec, values.leaf_types(element_type))
    return tf.data.experimental.from_variant(variant, _maker(element_type)(specs))


@functools.lru_cache
def _maker(type_spec) -> Callable[[Iterator], Any]:
    """Returns a function that makes a value of the type from an iterator over leaves."""
    if not isinstance(type_spec, tff.types.StructType):
        return next
    container = container_of(type_spec)
    makers = [_maker(element) for element in type_spec]
    return lambda leaves: container([make(leaves) for make in makers])
