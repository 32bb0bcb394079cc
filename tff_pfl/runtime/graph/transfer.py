"""Python's values into a graph's tensors, and back."""

import collections
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.runtime.graph import internals, values

_copies = itertools.count()
_STRING = tff.types.TensorType(np.str_).dtype.type


class ResidentArray(np.ndarray):
    """A read-only array that knows the tensor whose memory it shows.

    Given to a computation, the tensor is taken, and nothing is copied. What is computed from it
    is an ordinary array.
    """

    tensor: tf.Tensor | None = None


# Arguments.


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a value lies in a list of tensors; arguments of equal layouts share a graph.

    Attributes:
        kind: `leaf`, `struct`, `clients` (with a value each) or `function`.
        parts: Of a struct, its layouts; of clients, the class of each leaf; of a function, its
            building block.
    """

    kind: str
    parts: tuple = ()

    def specs(self, type_spec, num_shards: int) -> list[tf.TensorSpec]:
        """The specifications of the tensors."""
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
        """The value in a graph that is being built."""
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
                shards = lowering.no_values().shards
                leaves = [[leaf.take(tensors) for leaf in self.parts] for _ in shards]
                return lowering.no_values().with_leaves(type_spec, leaves)
        return lowering.evaluate(self.parts[0], {})


def ingest(value, type_spec: tff.types.Type, server: str, shards) -> tuple[Layout, list[tf.Tensor]]:
    """An argument's layout and tensors, on the devices where they are needed.

    Args:
        value: As TFF's stock runtime takes it.
        type_spec: Its type.
        server: The device of what is not placed at clients.
        shards: `(device, slice of the clients)` of each.

    Raises:
        TypeError: `value` is not of the type.
    """
    if isinstance(type_spec, tff.types.FunctionType):
        return Layout("function", (value.to_building_block(),)), []
    if isinstance(type_spec, tff.types.FederatedType):
        if type_spec.placement is tff.CLIENTS and not type_spec.all_equal:
            return _ingest_clients(value, type_spec.member, shards)
        return ingest(value, type_spec.member, server, shards)
    if isinstance(type_spec, tff.types.StructType):
        elements = zip(_elements(value, type_spec), type_spec, strict=True)
        parts = [ingest(element, kind, server, shards) for element, kind in elements]
        tensors = [tensor for _, part in parts for tensor in part]
        return Layout("struct", tuple(layout for layout, _ in parts)), tensors
    with tf.device(server):
        return Layout("leaf"), [_to_tensor(_checked(value, type_spec))]


def _ingest_clients(clients, member, shards) -> tuple[Layout, list[tf.Tensor]]:
    if not isinstance(clients, list):
        raise TypeError(
            f"Values placed at clients are a list with a value a client, not {type(clients)}."
        )
    leaf_types = values.leaf_types(member)
    rows = [list(_leaves(client, member)) for client in clients]
    columns = zip(*rows, strict=True) if rows else [()] * len(leaf_types)
    columns = [
        [_checked(cell, leaf) for cell in column]
        for leaf, column in zip(leaf_types, columns, strict=True)
    ]
    kinds = [_leaf_kind(column) for column in columns]
    tensors = []
    for device, part in shards:
        with tf.device(device):
            for column, kind, leaf_type in zip(columns, kinds, leaf_types, strict=True):
                if kind is values.Ragged:
                    tensors += _ragged(column[part], leaf_type)
                else:
                    tensors += _stacked(column[part])
    return Layout("clients", tuple(kinds)), tensors


def _leaf_kind(column) -> type[values.Leaf]:
    return values.Ragged if len({tuple(cell.shape) for cell in column}) > 1 else values.Stacked


def _ragged(column, leaf_type) -> list[tf.Tensor]:
    elements = np.concatenate([np.ravel(cell) for cell in column])
    shapes = [list(cell.shape) for cell in column]
    if leaf_type.shape is None:
        shapes = [shape + [-1] * (values.MAX_RANK - len(shape)) for shape in shapes]
    return [tf.constant(elements), tf.constant(shapes, tf.int64)]


def _stacked(column) -> list[tf.Tensor]:
    if isinstance(column[0], np.ndarray):
        return [tf.convert_to_tensor(np.stack(column))]
    return [tf.stack([_to_tensor(cell) for cell in column])]


def _leaves(value, type_spec) -> Iterator[Any]:
    if not isinstance(type_spec, tff.types.StructType):
        yield value
        return
    for element, element_type in zip(_elements(value, type_spec), type_spec, strict=True):
        yield from _leaves(element, element_type)


def _elements(value, type_spec) -> Sequence:
    """The elements of a structure, in the order of its type: by name, or else by position."""
    given = None
    if isinstance(value, (tuple, list)):
        elements = value
        given = getattr(value, "_fields", None)
    elif isinstance(value, Mapping):
        elements, given = tuple(value.values()), tuple(value)
    elif isinstance(value, (np.ndarray, np.generic, str, bytes, tf.Tensor)):
        raise TypeError(f"Expected a structure of type {type_spec}, found {type(value)}.")
    else:
        struct = tff.structure.from_container(value)
        elements = tuple(struct)
        given = tuple(tff.structure.name_list_with_nones(struct))
    if len(elements) != len(type_spec):
        raise TypeError(
            f"Expected a structure of {len(type_spec)} elements, of type {type_spec}, found "
            f"{len(elements)} elements."
        )
    if given is None:
        return elements
    names = tuple(tff.structure.name_list_with_nones(type_spec))
    if given != names and None not in names and set(given) == set(names):
        return [elements[given.index(name)] for name in names]
    return elements


def _checked(value, leaf_type):
    """A leaf as an array or tensor of its type, or a `_Sequence`."""
    if isinstance(leaf_type, tff.types.SequenceType):
        return _sequence(value, leaf_type)
    expected = leaf_type.dtype.type
    if (
        type(value) is np.ndarray
        and value.dtype.type is expected
        and _fits(value.shape, leaf_type.shape)
    ):
        return value
    if isinstance(value, ResidentArray) and value.tensor is not None:
        value = value.tensor
    elif isinstance(value, tf.Variable):
        value = value.value()
    if isinstance(value, tf.Tensor):
        if value.dtype == values.dtype(leaf_type) and _fits(value.shape, leaf_type.shape):
            return value
        value = value.numpy()
    if isinstance(value, (list, tuple)):
        cells = tf.nest.flatten(value)
        compatible = all(internals.is_compatible_dtype(cell, expected) for cell in cells)
    else:
        compatible = internals.is_compatible_dtype(value, expected)
    if not compatible:
        found = getattr(value, "dtype", type(value).__name__)
        raise TypeError(f"Expected a value of type {leaf_type}, found one of dtype {found}.")
    array = np.asarray(value, object if expected is _STRING else expected)
    if not _fits(array.shape, leaf_type.shape):
        raise TypeError(f"Expected a value of type {leaf_type}, found one of shape {array.shape}.")
    return array


def _fits(shape, expected) -> bool:
    return expected is None or (
        len(shape) == len(expected)
        and all(want in (None, have) for have, want in zip(shape, expected, strict=True))
    )


@dataclasses.dataclass(frozen=True)
class _Sequence:
    """A data set as a graph, of which a device makes a data set of its own."""

    graph: bytes
    shape: tuple = ()

    def to_variant(self) -> tf.Tensor:
        return tf.raw_ops.DatasetFromGraph(graph_def=self.graph)


def _sequence(value, type_spec) -> _Sequence:
    if isinstance(value, list):
        value = internals.dataset_of_elements(None, value, type_spec.element)
    if not isinstance(value, tf.data.Dataset):
        raise TypeError(f"Expected a list or tf.data.Dataset for {type_spec}, found {type(value)}.")
    given = tff.types.SequenceType(tff.types.tensorflow_to_type(value.element_spec))
    if not type_spec.is_assignable_from(given):
        raise TypeError(f"Expected a sequence of type {type_spec}, found one of type {given}.")
    variant = values.to_variant(value)
    return _Sequence(_without_state(tf.raw_ops.DatasetToGraphV2(input_dataset=variant).numpy()))


def _without_state(graph: bytes) -> bytes:
    """Of data sets, in which random orders begin anew, as they do in the stock runtime."""
    if b"ShuffleDataset" not in graph:
        return graph
    graph_def = tf.compat.v1.GraphDef.FromString(graph)
    for node in graph_def.node:
        for handle in node.attr["value"].tensor.resource_handle_val:
            handle.name += f"_copy_{next(_copies)}"  # a generator of orders that is not there yet
    return graph_def.SerializeToString()


def _to_tensor(leaf) -> tf.Tensor:
    """A leaf on the device of the context; a tensor that is there already is not copied."""
    if isinstance(leaf, _Sequence):
        return leaf.to_variant()
    return tf.identity(leaf) if isinstance(leaf, tf.Tensor) else tf.convert_to_tensor(leaf)


# Results.


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
        kinds = tuple(map(type, value.shards[0].leaves)) if value.shards else ()
        return Layout("clients", kinds), [tensor for leaf in leaves for tensor in leaf.tensors()]
    if isinstance(type_spec, tff.types.StructType):
        parts = [emit(element, kind) for element, kind in zip(value, type_spec, strict=True)]
        tensors = [tensor for _, part in parts for tensor in part]
        return Layout("struct", tuple(layout for layout, _ in parts)), tensors
    if isinstance(type_spec, tff.types.FunctionType):
        raise values.CannotLowerError("The graph executor cannot return a function.")
    return Layout("leaf"), [values.as_tensor(value)]


def results(type_spec, layout: Layout, tensors: Iterator[tf.Tensor], sizes, keep_tensors) -> Any:
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
        return _container(type_spec)(
            [results(kind, part, tensors, sizes, keep_tensors) for kind, part in elements]
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


def _client_results(member, kinds, tensors, sizes) -> list:
    leaf_types = values.leaf_types(member)
    make = _maker(member)
    clients = []
    for size in sizes:
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
    container = _container(type_spec)
    makers = [_maker(element) for element in type_spec]
    return lambda leaves: container([make(leaves) for make in makers])


def _container(type_spec) -> Callable[[list], Any]:
    """A function from the elements of a structure to TFF's container for it."""
    names = tff.structure.name_list_with_nones(type_spec)
    container = getattr(type_spec, "python_container", None)
    if container is tuple or container is list:
        return container
    if container is collections.OrderedDict:
        return lambda elements: collections.OrderedDict(zip(names, elements, strict=True))
    if hasattr(container, "_make"):
        return container._make
    scalars = tff.types.StructType([(name, np.int32) if name else np.int32 for name in names])
    if container is not None:
        scalars = tff.types.StructWithPythonType(list(zip(names, scalars, strict=True)), container)
    return lambda elements: tff.types.type_to_py_container(
        tff.structure.Struct(zip(names, elements, strict=True)), scalars
    )
