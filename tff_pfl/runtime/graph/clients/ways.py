"""The ways to compute client work on the clients of a shard: compiled, vectorized or in a loop."""

import abc
import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.runtime.graph import compilation, devices, values
from tff_pfl.runtime.graph.clients import (
    client_values,
    compiled_loops,
    groups,
    lanes,
    loops,
    pfor_convolutions,
    vectorization,
)
from tff_pfl.runtime.graph.clients.padded import Padded
from tff_pfl.tracing.alone import Alone


class Work(NamedTuple):
    """Work on each client of a shard.

    Attributes:
        call: `(leaves of a client's value, alone=False) -> tensors`, the leaves of its result.
        shard: The clients and their leaves.
        result_types: The types of the result's leaves.
        function: The function of the work and its properties.
        compiled: The compiled loops so far, to which new ones are appended.
    """

    call: Callable[..., list[tf.Tensor]]
    shard: client_values.Shard
    result_types: Sequence[tff.types.Type]
    function: values.Function
    compiled: list[compiled_loops.CompiledLoop]


Leaves = tuple[client_values.Leaf, ...]
"""The leaves of `{result}@CLIENTS`."""


class UnsuitedError(Exception):
    """An error for work that a way does not take; its text is the reason, if it is worth saying."""


class Way(abc.ABC):
    """A way to compute work.

    Attributes:
        limit: The largest number of clients that are computed together; `None`: no limit.
        uses_xla: Whether XLA compiles the work.
        is_loop: Whether clients are computed one by one as TensorFlow's operations.
    """

    uses_xla = is_loop = False

    def __init__(self, limit: int | None):
        """Makes a way; see the attributes."""
        self.limit = limit

    @abc.abstractmethod
    def __call__(self, work: Work) -> Leaves:
        """Computes work.

        Raises:
            UnsuitedError: The way does not take the work.
            Exception: TensorFlow fails, in many ways.
        """

    @abc.abstractmethod
    def described(self, shard: client_values.Shard) -> str:
        """Describes how the work of a shard is computed."""


class CompiledLoop(Way):
    """A loop over clients that XLA compiles; see `compiled_loops`."""

    uses_xla = True

    def __call__(self, work):
        """Adds work to the shard's last loop if it has results of that alone, or to a new one.

        Only the last loop takes work, since later loops may wait for results of earlier ones.
        Work without loops of its own is not worth a new one.
        """
        call, shard, result_types, function, compiled = work
        found = {leaf.loop for leaf in shard.leaves if isinstance(leaf, compiled_loops.Result)}
        if found and found == {[loop for loop in compiled if loop.is_of(shard)][-1]}:
            with contextlib.suppress(compilation.NotCompilableError):
                return found.pop().add(call, shard.leaves, result_types)
        if shard.groups is None or not function.has_loops():
            raise UnsuitedError
        loop = compiled_loops.CompiledLoop(shard, self.limit)
        leaves = loop.add(call, shard.leaves, result_types)
        compiled.append(loop)
        return leaves

    def described(self, shard):
        """See the base class."""
        return "a loop over clients, compiled by XLA"


class Stacks(Way):
    """Operations on the stacked tensors of all clients, or of all clients of a group."""

    def __init__(self, limit: int | None, *, uses_xla: bool = False):
        """Makes a way; see the attributes."""
        super().__init__(limit)
        self.uses_xla = uses_xla

    def __call__(self, work):
        """See the base class."""
        call, shard, result_types = work[:3]
        self._check_worth(work.function)
        if any(isinstance(leaf, Padded) for leaf in shard.leaves):
            raise UnsuitedError("" if shard.prefixes else "shapes differ by client")
        if reason := _not_stackable(shard, result_types):
            raise UnsuitedError(reason)
        compiles, limit = self.uses_xla, self.limit
        names: dict[str, int] | None = {} if compiles else None

        def one(*rows):
            rows = iter(rows)
            return call(leaf.of(rows) for leaf in shard.leaves)

        def vectorized(size, *stacks):
            return vectorization.vectorize(function, size, stacks, compiles, names)

        specs = [spec for leaf in shard.leaves for spec in leaf.row_specs()]
        are_grouped = any(map(_is_grouped, shard.leaves))
        with _own_filters(compiles, shard.device):
            # In separate functions, so that a failure leaves no operations in the graph.
            function = tf.function(one, autograph=False).get_concrete_function(*specs)
            mapped = tf.function(vectorized, autograph=False, jit_compile=compiles)
            if names is not None:
                graph = mapped.get_concrete_function(*_stack_specs(specs)).graph
                compilation.check_compilable(graph, shard.device)
                mapped = compilation.with_few_sizes(mapped, names, are_grouped, limit)
            if limit is None and not are_grouped:
                stacks = [stack for leaf in shard.leaves for stack in leaf.stacks()]
                return tuple(map(client_values.Stacked, mapped(shard.size, *stacks)))

            def part(first, last):
                stacks = [stack for leaf in shard.leaves for stack in leaf.stacks(first, last)]
                return mapped(last - first, *stacks)

            outputs = mapped.get_concrete_function(*_stack_specs(specs)).structured_outputs
            ends = shard.groups.ends if are_grouped else _chunk_ends(shard.size, limit)
            return _in_parts(part, outputs, result_types, ends, are_grouped)

    def _check_worth(self, function) -> None:
        """Checks that work has loops if XLA is to compile it, which takes seconds."""
        if self.uses_xla and not function.has_loops():
            raise UnsuitedError

    def described(self, shard):
        """See the base class."""
        members = "clients of equal shapes" if any(map(_is_grouped, shard.leaves)) else "clients"
        return f"vectorized over {members}" + ", compiled by XLA" * self.uses_xla


class Lanes(Stacks):
    """Operations on clients side by side, each with its own number of steps; see `lanes`."""

    def __call__(self, work):
        """See the base class."""
        call, shard, result_types = work[:3]
        self._check_worth(work.function)
        padded = [leaf for leaf in shard.leaves if isinstance(leaf, Padded)]
        if not shard.prefixes or not padded:
            raise UnsuitedError
        if any(map(client_values.may_differ, result_types)):
            raise UnsuitedError("shapes of results differ by client")
        if not all(any(leaf.size is other for other in shard.leaves) for leaf in padded):
            raise UnsuitedError("it takes examples without their number")
        if reason := _not_stackable(shard, result_types):
            raise UnsuitedError(reason)
        compiles, number = self.uses_xla, shard.prefixes[0]
        names: dict[str, int] | None = {} if compiles else None

        def one(*rows):
            rows = iter(rows)
            return call((leaf.of(rows) for leaf in shard.leaves), alone=Alone.IN_LOOPS)

        def vectorized(given):
            stacks: list = []
            for leaf, tensors in zip(shard.leaves, given, strict=True):
                stacks += [lanes.RowsOf(*tensors)] if isinstance(leaf, Padded) else tensors
            size = tf.constant(number)
            return vectorization.vectorize(
                function, size, stacks, compiles, names, prefixes=shard.prefixes
            )

        def of_clients(clients):
            return [
                leaf.of_lanes(clients)
                if isinstance(leaf, Padded)
                else [tf.gather(stack, clients) for stack in leaf.stacks()]
                for leaf in shard.leaves
            ]

        def part(first, last):
            clients = tf.minimum(first + tf.range(number), last - 1)
            results = mapped(of_clients(clients))
            if names is not None:
                results = compilation.raising(results, names)
            return [result[: last - first] for result in results]

        specs = [spec for leaf in shard.leaves for spec in leaf.row_specs()]
        with _own_filters(compiles, shard.device):
            function = tf.function(one, autograph=False).get_concrete_function(*specs)
            mapped = tf.function(vectorized, autograph=False, jit_compile=compiles)
            if names is not None:
                graph = mapped.get_concrete_function(of_clients(tf.range(number))).graph
                compilation.check_compilable(graph, shard.device)
            if self.limit is None:
                return tuple(map(client_values.Stacked, part(tf.constant(0), shard.size)))
            outputs = [client_values.Stacked.specs(kind)[0] for kind in result_types]
            return _in_parts(part, outputs, result_types, shard.groups.ends)

    def described(self, shard):
        """See the base class."""
        return "clients side by side" + ", compiled by XLA" * self.uses_xla


def _own_filters(compiles: bool, device: str):
    """Returns the context of convolutions whose filters differ by client."""
    is_gpu = devices.is_gpu(device)
    ways = [pfor_convolutions.GROUPED] * (compiles or is_gpu)
    ways += [pfor_convolutions.PATCHES] * (compiles and not is_gpu)
    return pfor_convolutions.own_filters(*ways)


class Loop(Way):
    """A loop over clients."""

    is_loop = True

    def __call__(self, work):
        """See the base class."""
        return loops.looped(work.call, work.shard, work.result_types, self.limit)

    def described(self, shard):
        """See the base class."""
        return "a loop over clients"


class DeferredLoop(Loop):
    """A loop over clients with large results, which are computed where they are used."""

    def __call__(self, work):
        """See the base class."""
        if (
            not any(map(_is_list, work.shard.leaves))
            or any(map(client_values.may_differ, work.result_types))
            or not work.function.is_deterministic()
            or work.function.has_loops()
        ):
            raise UnsuitedError
        return loops.deferred(work.call, work.shard, work.result_types, self.limit)


def _not_stackable(shard, result_types) -> str | None:
    """Returns the reason why vectorization is not even tried, or `None`."""
    for leaf in shard.leaves:
        is_stack = _is_grouped(leaf) or (isinstance(leaf, Padded) and shard.prefixes)
        if isinstance(leaf, client_values.Ragged) and not is_stack:
            return "shapes differ by client"
        if _is_list(leaf):
            return "large results of a loop"
    stacks = [leaf.tensor for leaf in shard.leaves if isinstance(leaf, client_values.Stacked)]
    if any(isinstance(kind, tff.types.SequenceType) for kind in result_types) or any(
        stack.dtype == tf.variant for stack in stacks
    ):
        return "sequences"
    return None


def _is_list(leaf: client_values.Leaf) -> bool:
    """Returns whether a leaf has large results of a loop."""
    return isinstance(leaf, client_values.Stacked) and leaf.is_list


def _is_grouped(leaf: client_values.Leaf) -> bool:
    """Returns whether a leaf can be stacked in each group of clients."""
    return isinstance(leaf, client_values.Grouped) and leaf.static_shape.rank is not None


def _stack_specs(specs: Iterable[tf.TensorSpec]) -> list[tf.TensorSpec]:
    """Returns the specs of a number of clients and of the stacks of their tensors."""
    stacks = [tf.TensorSpec([None, *spec.shape], spec.dtype) for spec in specs]
    return [tf.TensorSpec([], tf.int32), *stacks]


def _chunk_ends(size: tf.Tensor, length: int) -> tf.Tensor:
    """Returns the ends of the chunks of at most `length` of `size` clients."""
    return tf.minimum(tf.range(length, size + length, length), size)


def _in_parts(part, outputs, result_types, ends, differ=False) -> tuple[client_values.Leaf, ...]:
    """Calls `part(first, last)` on the clients up to each of `ends`, one part after the other.

    Args:
        part: The function, which returns stacks.
        outputs: The specs of the stacks.
        result_types: The types of a client's results.
        ends: int32, the end of each part.
        differ: Whether shapes may differ between parts.
    """
    columns = [
        groups.Column(leaf_type, output, tf.size(ends), differ)
        for leaf_type, output in zip(result_types, outputs, strict=True)
    ]

    def body(index, first, arrays):
        results = zip(columns, part(first, ends[index]), strict=True)
        cells = [cell for column, stack in results for cell in column.cells(stack)]
        written = zip(arrays, cells, strict=True)
        return index + 1, ends[index], [array.write(index, cell) for array, cell in written]

    arrays = [array for column in columns for array in column.arrays]
    *_, arrays = tf.while_loop(
        lambda index, *_: index < tf.size(ends),
        body,
        (tf.constant(0), tf.constant(0), arrays),
        parallel_iterations=1,
    )
    collected = iter(arrays)
    return tuple(column.leaf(collected) for column in columns)
