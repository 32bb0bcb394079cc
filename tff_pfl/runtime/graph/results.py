"""A graph's tensors into Python's values."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.runtime.graph import values
from tff_pfl.runtime.graph.layout import Layout, ResidentArray
from tff_pfl.structures import container_of


def emit(value, type_spec) -> tuple[Layout, list[tf.Tensor]]:
    """The layout and the tensors of a computation's result, while its graph is built."""
    if isinstance(type_spec, tff.types.FederatedType):
        if type_spec.placement is not tff.CLIENTS:
            return emit(value, type_spec.member)
        if type_spec.all_equal:
            if not value.shards:
                raise ValueError("Of no clients there is no data: no value that is equal at all.")
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


def to_python(type_spec, layout: Layout, tensors: Iterator[tf.Tensor], sizes, keep_tensors) -> Any:
    """A result as the stock runtime returns it, in the containers of its type.

    Args:
        type_spec: Its type.
        layout: Where its leaves are.
        tensors: The tensors of `emit`, computed.
        sizes: The number of clients of each shard.
        keep_tensors: Whether arrays that are not placed at clients stay tensors.
    """
    if isinstance(type_spec, tff.types.FederatedType):
        type_spec = type_spec.member
    if layout.kind == "clients":
        return _client_results(type_spec, layout.parts, tensors, sizes)
    if layout.kind == "struct":
        elements = zip(type_spec, layout.parts, strict=True)
        return container_of(type_spec)(
            [to_python(kind, part, tensors, sizes, keep_tensors) for kind, part in elements]
        )
    return _leaf_result(next(tensors), type_spec, keep_tensors)


def _leaf_result(tensor, type_spec, keep_tensors=False):
    if isinstance(type_spec, tff.types.SequenceType):
        return _dataset(tensor, type_spec.element)
    if tensor.dtype == tf.string or tensor.shape.rank == 0:
        return tensor.numpy()
    if keep_tensors:
        return tensor
    array = np.asarray(tensor).view(ResidentArray)
    array.tensor = tensor
    return array


def _client_results(member, shards, tensors, sizes) -> list:
    """Of each client, from the classes of the leaves of each shard."""
    leaf_types = values.leaf_types(member)
    make = _maker(member)
    clients = []
    for kinds, size in zip(shards, sizes, strict=True):
        columns = [
            _column(kind, leaf_type, tensors, size)
            for kind, leaf_type in zip(kinds, leaf_types, strict=True)
        ]
        rows = zip(*columns, strict=True) if columns else [()] * size
        clients += [make(iter(row)) for row in rows]
    return clients


def _column(kind, leaf_type, tensors, size) -> Sequence:
    """What each client of a shard has of a leaf."""
    if kind is values.Shared:
        return [_leaf_result(next(tensors), leaf_type)] * size
    if kind is values.Ragged:
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


def _maker(type_spec) -> Callable[[Iterator], Any]:
    """A function from an iterator over leaves to a value of the type."""
    if not isinstance(type_spec, tff.types.StructType):
        return next
    container = container_of(type_spec)
    makers = [_maker(element) for element in type_spec]
    return lambda leaves: container([make(leaves) for make in makers])
