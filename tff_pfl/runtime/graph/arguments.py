"""Checks arguments against their types, and converts them to the tensors of a graph."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.runtime.graph import internals, values
from tff_pfl.runtime.graph.clients import client_values, groups
from tff_pfl.runtime.graph.clients.cohorts import Forms
from tff_pfl.runtime.graph.clients.groups import Rows
from tff_pfl.runtime.graph.clients.mapping import ClientMap
from tff_pfl.runtime.graph.clients.padded import Padded
from tff_pfl.runtime.graph.memory import aligned_array, as_tensor, stack_on, tensor_on
from tff_pfl.runtime.graph.results import Layout, ResidentArray
from tff_pfl.tracing.padding import is_padded
from tff_pfl.tracing.structures import elements_of, names_of

_copies = itertools.count()
_STRING = tff.types.TensorType(np.str_).dtype.type


def ingest(
    value,
    type_spec: tff.types.Type,
    server: str,
    shards: Sequence[Rows],
    client_map: ClientMap,
    forms_of_lanes: Forms,
) -> tuple[Layout, list[tf.Tensor], Sequence[Rows]]:
    """Returns an argument's layout and tensors, on the devices where they are needed, and shards.

    If the clients differ in the shape of one leaf, all leaves whose shapes may differ are ragged,
    or grouped by `ClientMap.grouped`. So a type has three layouts only, instead of three for each
    leaf.

    Args:
        value: An argument in a form that TFF's stock runtime takes.
        type_spec: The type of the argument.
        server: The device of values that are not placed at clients.
        shards: The clients of each shard, in the order of the cohort.
        client_map: The map that computes the clients.
        forms_of_lanes: The lengths of buffers for `lanes` so far.

    Raises:
        TypeError: `value` is not of the type.
        ValueError: The numbers of clients in the shards and in the argument differ.
    """
    num_clients = int(shards[-1].clients[-1]) + 1 if shards else 0
    parts = _checked_parts(value, type_spec, num_clients)
    leaves = tf.nest.flatten(parts)
    clients = [leaf for leaf in leaves if isinstance(leaf, _Clients)]
    forms = _forms(clients)
    kind: type[client_values.Leaf] = client_values.Stacked
    on_devices = [shard.device for shard in shards]
    size = _largest_of(type_spec)
    if client_map.compiles_loops(on_devices) and (rows := _rows(clients, num_clients)) is not None:
        kind = Padded
        shards = [groups.in_parts(shard, rows, size) for shard in shards]
    elif (
        any(any(part.are_padded) for part in clients)
        and client_map.takes_lanes(on_devices)
        and (rows := _rows(clients, num_clients)) is not None
    ):
        kind = Padded
        shards = client_map.in_lanes(shards, rows, forms_of_lanes, size)
    elif forms:
        shards, kind = client_map.grouped(shards, forms, _largest(leaves))
    layout, tensors = _lay_out(parts, kind, server, shards)
    return layout, tensors, shards


def _forms(parts) -> list[tuple]:
    """Returns the shapes of each client's leaves whose shapes differ; nothing if none differ."""
    columns = []
    for part in parts:
        for column in part.columns:
            if not isinstance(column, np.ndarray):
                shapes = [tuple(cell.shape) for cell in column]
                columns += [shapes] * (len(set(shapes)) > 1)
    return list(zip(*columns, strict=True))


def _rows(parts, num_clients: int) -> list[tuple[int, ...]] | None:
    """Returns the numbers of rows of each client's examples, or `None` if other shapes differ.

    Numbers that are the same for all clients, such as those of `x` and `y`, are there once.
    """
    found: dict[tuple[int, ...], None] = {}  # as a set, but in order
    for part in parts:
        for column, may_grow in zip(part.columns, part.are_padded, strict=True):
            if may_grow:
                found[tuple(map(len, column))] = None
            elif not isinstance(column, np.ndarray) and len({cell.shape for cell in column}) > 1:
                return None
    return list(zip(*found, strict=True)) or [(0,)] * num_clients


def _largest(parts) -> int:
    """Returns the number of elements of the largest tensor of one shape for all clients."""
    shapes = [part.shape for part in parts if not isinstance(part, (_Clients, Layout))]
    for part in parts:
        if isinstance(part, _Clients):
            tensors = [t for t in part.leaf_types if isinstance(t, tff.types.TensorType)]
            shapes += [t.shape for t in tensors if not client_values.may_differ(t)]
    return max((math.prod(shape) for shape in shapes), default=0)


@functools.lru_cache
def _largest_of(type_spec: tff.types.Type) -> int:
    """Returns the number of elements of the largest tensor whose type has a shape."""
    if isinstance(type_spec, tff.types.FederatedType):
        type_spec = type_spec.member
    if isinstance(type_spec, tff.types.StructType):
        return max(map(_largest_of, type_spec), default=0)
    shape = tf.TensorShape(getattr(type_spec, "shape", None))
    return shape.num_elements() or 0


def check(value, type_spec: tff.types.Type) -> None:
    """Checks that an argument is of a type.

    Raises:
        TypeError: It is not. The message names the part of a client that is of another type.
    """
    _checked_parts(value, type_spec, None)


@dataclasses.dataclass(frozen=True)
class _Clients:
    """The values of clients, as a column for each leaf, with one value per client."""

    columns: list[Sequence | np.ndarray]
    leaf_types: list[tff.types.Type]
    are_padded: list[bool]

    def kinds(self, kind: type[client_values.Leaf]) -> tuple[type[client_values.Leaf], ...]:
        are_of_kind = self.are_padded
        if kind is not Padded:
            are_of_kind = list(map(client_values.may_differ, self.leaf_types))
        return tuple(kind if is_kind else client_values.Stacked for is_kind in are_of_kind)


def _checked_parts(value, type_spec, num_clients):
    """Checks each leaf; returns the `Layout` of a function, `_Clients`, a leaf, or a tuple."""
    if isinstance(type_spec, tff.types.FunctionType):
        return Layout("function", (value.to_building_block(),))
    if isinstance(type_spec, tff.types.FederatedType):
        if type_spec.placement is tff.CLIENTS and not type_spec.all_equal:
            return _checked_clients(value, type_spec.member, num_clients)
        return _checked_parts(value, type_spec.member, num_clients)
    if isinstance(type_spec, tff.types.StructType):
        elements = zip(elements_of(value, type_spec), type_spec, strict=True)
        return tuple(_checked_parts(element, kind, num_clients) for element, kind in elements)
    return _checked(value, type_spec)


def _checked_clients(clients, member, num_clients) -> _Clients:
    if not isinstance(clients, list):
        raise TypeError(f"Expected a list with a value for each client, found {type(clients)}.")
    if num_clients not in (None, len(clients)):
        raise ValueError(
            f"Expected the values of {num_clients} clients, the cohort, found {len(clients)}."
        )
    leaf_types = values.leaf_types(member)
    try:
        columns = _columns_of(member)(clients)
    except TypeError as error:
        raise _mistaken(clients, member) or error from None
    checked = []
    for column, leaf_type in zip(columns, leaf_types, strict=True):
        try:
            checked.append(_checked_column(column, leaf_type))
        except TypeError as error:
            place = list(_paths(member))[len(checked)]
            raise TypeError(f"A client's {place}: {error}") from error
    return _Clients(checked, leaf_types, _are_padded(member))


def _mistaken(clients, member) -> TypeError | None:
    """Returns the error for the first client whose value has other elements than its type."""
    for index, client in enumerate(clients):
        try:
            elements_of(client, member)
        except TypeError:
            names = ", ".join(name for name, _ in tff.structure.iter_elements(member) if name)
            return TypeError(
                f"The value of client {index} must have the elements {names or len(member)}, found "
                f"{type(client).__name__}."
            )
    return None


@functools.lru_cache
def _are_padded(type_spec: tff.types.Type, is_inside: bool = False) -> list[bool]:
    """Returns for each leaf whether it may have more rows than a client has examples."""
    if isinstance(type_spec, tff.types.StructType):
        container = getattr(type_spec, "python_container", None)
        is_inside |= is_padded(container)
        return [leaf for element in type_spec for leaf in _are_padded(element, is_inside)]
    return [
        is_inside
        and isinstance(type_spec, tff.types.TensorType)
        and client_values.may_differ(type_spec)
        and tf.TensorShape(type_spec.shape)[1:].is_fully_defined()
        and type_spec.dtype.type is not _STRING
    ]


def _paths(type_spec) -> Iterator[str]:
    """Yields the path of each leaf of a type, such as `data.x`."""
    if not isinstance(type_spec, tff.types.StructType):
        yield "value"
        return
    for index, (name, element) in enumerate(tff.structure.iter_elements(type_spec)):
        for rest in _paths(element):
            yield ".".join([str(name or index), rest]).removesuffix(".value")


def _lay_out(part, kind, server: str, shards) -> tuple[Layout, list[tf.Tensor]]:
    """Returns the layout and the tensors of checked parts."""
    if isinstance(part, Layout):
        return part, []
    if isinstance(part, tuple):
        laid_out = [_lay_out(element, kind, server, shards) for element in part]
        tensors = [tensor for _, element in laid_out for tensor in element]
        return Layout("struct", tuple(layout for layout, _ in laid_out)), tensors
    if not isinstance(part, _Clients):
        return Layout("leaf"), [_to_tensor(part, server)]
    kinds = part.kinds(kind)
    tensors = []
    for shard in shards:
        for column, kind, leaf_type in zip(part.columns, kinds, part.leaf_types, strict=True):
            column = _of_clients(column, shard.clients)
            if kind is Padded:
                tensors += _padded(column, leaf_type, shard.parts)
            elif kind is client_values.Stacked:
                tensors.append(_stacked(column, shard.device))
            else:
                arrays = _ragged(column, leaf_type)
                tensors += [tensor_on(shard.device, array) for array in arrays]
    return Layout("clients", kinds), tensors


def _checked_column(column, leaf_type) -> Sequence | np.ndarray:
    """Checks the clients' values of a leaf; values of the same form are checked at once."""
    if isinstance(leaf_type, tff.types.TensorType):
        dtype = leaf_type.dtype.type
        kinds = set(map(type, column))
        if kinds == {dtype} and leaf_type.shape == () and dtype is not _STRING:
            return np.array(column)
        if kinds == {np.ndarray}:
            forms = {(cell.dtype, cell.shape) for cell in column}
            if all(form.type is dtype and _fits(shape, leaf_type.shape) for form, shape in forms):
                return column
    return [_checked(cell, leaf_type) for cell in column]


def _of_clients(column, clients) -> Sequence:
    if isinstance(column, np.ndarray):
        return column[clients]
    return [column[client] for client in clients]


def _ragged(column, leaf_type) -> list[np.ndarray]:
    """Returns the elements and the shapes of `Ragged`."""
    elements = np.concatenate([np.ravel(cell) for cell in column])
    rank = client_values.rank(leaf_type)
    shapes = [[*cell.shape, *[-1] * (rank - len(cell.shape))] for cell in column]
    return [elements, np.array(shapes, np.int64)]


def _padded(column, leaf_type, parts) -> list[tf.Tensor]:
    """Returns the tensors of `Padded`; padding that clients may read is 0."""
    buffer = parts.buffer(list(map(len, column)))
    rows = aligned_array((buffer.length, *leaf_type.shape[1:]), leaf_type.dtype)
    end = 0
    for cell, start in zip(column, buffer.starts.tolist(), strict=True):
        rows[end:start] = 0
        end = start + len(cell)
        rows[start:end] = cell
    rows[end : end + buffer.capacities.max()] = 0
    return [as_tensor(rows.reshape(-1)), *buffer.tensors]


def _stacked(column, device) -> tf.Tensor:
    if isinstance(column, np.ndarray):
        return tensor_on(device, column)
    if isinstance(column[0], np.ndarray):
        return stack_on(device, column)
    with tf.device(device):
        return tf.stack([_to_tensor(cell, device) for cell in column])


@functools.lru_cache
def _columns_of(type_spec) -> Callable[[Sequence], list[Sequence]]:
    """Returns a function that lists the values of each leaf, given values of a type."""
    if not isinstance(type_spec, tff.types.StructType):
        return lambda given: [given]
    container, names = getattr(type_spec, "python_container", None), names_of(type_spec)
    is_ordered = names == getattr(container, "_fields", None) or (
        container is tuple and not any(names)
    )
    parts = list(map(_columns_of, type_spec))

    def columns(given):
        kinds = {(type(value), len(value)) for value in given} if is_ordered else None
        if kinds != {(container, len(names))}:
            given = [elements_of(value, type_spec) for value in given]
        elements = zip(*given, strict=True) if given else [()] * len(parts)
        return [
            column
            for element, part in zip(elements, parts, strict=True)
            for column in part(element)
        ]

    return columns


def _checked(value, leaf_type):
    """Converts a leaf to an array or tensor of its type, or to a `_Sequence`."""
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
    if isinstance(value, np.integer):
        value = int(value)  # so that a client's id fits any integer type
    if isinstance(value, (list, tuple)):
        cells = tf.nest.flatten(value)
        compatible = all(internals.is_compatible_dtype(cell, expected) for cell in cells)
    else:
        compatible = internals.is_compatible_dtype(value, expected)
    if not compatible:
        found = getattr(value, "dtype", type(value).__name__)
        raise TypeError(
            f"Expected a value of type {leaf_type}, found dtype {found}: {value!r:.60}."
        )
    array = np.asarray(value, object if expected is _STRING else expected)
    if not _fits(array.shape, leaf_type.shape):
        raise TypeError(f"Expected a value of type {leaf_type}, found shape {array.shape}.")
    return array


def _fits(shape, expected) -> bool:
    return expected is None or (
        len(shape) == len(expected)
        and all(want in (None, found) for found, want in zip(shape, expected, strict=True))
    )


@dataclasses.dataclass(frozen=True)
class _Sequence:
    """The graph of a data set, from which each device makes its own data set."""

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
        raise TypeError(f"Expected a sequence of type {type_spec}, found type {given}.")
    variant = values.to_variant(value)
    return _Sequence(_without_state(tf.raw_ops.DatasetToGraphV2(input_dataset=variant).numpy()))


def _without_state(graph: bytes) -> bytes:
    """Restarts the random orders of a data set, as the stock runtime does."""
    if b"ShuffleDataset" not in graph:
        return graph
    graph_def = tf.compat.v1.GraphDef.FromString(graph)
    for node in graph_def.node:
        for handle in node.attr["value"].tensor.resource_handle_val:
            handle.name += f"_copy_{next(_copies)}"  # the name of a new generator of orders
    return graph_def.SerializeToString()


def _to_tensor(leaf, device) -> tf.Tensor:
    """Converts a leaf to a tensor on a device; a tensor already there is not copied."""
    if isinstance(leaf, tf.Tensor) and leaf.device.endswith(device):
        return leaf
    with tf.device(device):
        if isinstance(leaf, _Sequence):
            return leaf.to_variant()
        return tf.identity(leaf) if isinstance(leaf, tf.Tensor) else tf.constant(leaf)
