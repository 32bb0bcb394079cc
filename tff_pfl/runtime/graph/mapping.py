"""Applies a function to every client of a shard: compiled, vectorized or in a loop."""

import contextlib
import contextvars
from collections.abc import Callable, Iterable, Iterator, Sequence

import absl.logging
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.runtime.graph import (
    client_values,
    compilation,
    compiled_loops,
    devices,
    groups,
    loops,
    pfor_convolutions,
    values,
    vectorization,
)

AUTO, ALWAYS, NEVER = "auto", "always", "never"
VECTORIZE = (AUTO, ALWAYS, NEVER)
# The least mean number of clients in a group with which `AUTO` stacks groups instead of looping.
_LEAST_GROUP, _LEAST_GROUP_ON_GPUS = 8, 2
# The number of elements in a tensor from which CPUs loop over clients of different shapes.
_LARGE_IN_GROUPS = 1 << 15

_pays_to_compile = contextvars.ContextVar("pays_to_compile", default=False)


@contextlib.contextmanager
def compiling(pays: bool) -> Iterator[None]:
    """Says whether compilation of client work on CPUs pays, where a context leaves it open."""
    token = _pays_to_compile.set(pays)
    try:
        yield
    finally:
        _pays_to_compile.reset(token)


class ClientMap:
    """A map of functions over clients' values; `create_graph_context` explains the options."""

    def __init__(
        self, vectorize: str, max_concurrent_clients: int | None, jit_compile: bool | None
    ):
        """Makes the map; see `create_graph_context`. `jit_compile=None`: see `compiling`."""
        self._vectorize = vectorize
        self._max_concurrent_clients = max_concurrent_clients
        self.jit_compile = jit_compile
        self._announced: set[str] = set()
        self._chosen: dict[bool, ClientMap] | None = None

    def chosen(self) -> "ClientMap":
        """Returns the map to use now, which may depend on `compiling`."""
        if self.jit_compile is not None:
            return self
        if self._chosen is None:
            options = self._vectorize, self._max_concurrent_clients
            self._chosen = {flag: ClientMap(*options, flag) for flag in (False, True)}
        return self._chosen[_pays_to_compile.get()]

    def simpler(self) -> "ClientMap | None":
        """Returns the map to use where graphs of this one fail: without XLA, then with loops."""
        if self.jit_compile:
            return self._without_xla()
        if self._vectorize == AUTO:
            return ClientMap(NEVER, self._max_concurrent_clients, False)
        return None

    def _without_xla(self) -> "ClientMap":
        return ClientMap(self._vectorize, self._max_concurrent_clients, False)

    def compiles_loops(self, on_devices: Iterable[str]) -> bool:
        """Returns whether client work on devices is compiled as loops, see `compiled_loops`."""
        on_gpus = any(map(devices.is_gpu, on_devices))
        return bool(self.jit_compile) and self._vectorize != ALWAYS and not on_gpus

    def grouped(
        self, shards: Sequence[groups.Rows], forms: Sequence[tuple], largest: int
    ) -> tuple[Sequence[groups.Rows], type[client_values.Leaf]]:
        """Groups the clients of each shard by the shapes of their tensors, or leaves them.

        Args:
            shards: The clients of each shard.
            forms: The shapes of the tensors of each client of the cohort.
            largest: The number of elements of the largest tensor of one shape, such as a layer of a
                model.

        Returns:
            The shards, and the class of leaves whose shapes differ.
        """
        num_groups = sum(len({forms[client] for client in shard.clients}) for shard in shards)
        if self.jit_compile and groups.are_on_a_ladder(forms):
            is_faster = True
        elif self.jit_compile or all(devices.is_gpu(shard.device) for shard in shards):
            is_faster = len(forms) >= _LEAST_GROUP_ON_GPUS * num_groups
        else:
            is_faster = len(forms) >= _LEAST_GROUP * num_groups and largest < _LARGE_IN_GROUPS
        if self._vectorize == NEVER or (self._vectorize == AUTO and not is_faster):
            return shards, client_values.Ragged
        limit = self._max_concurrent_clients
        return [groups.grouped(shard, forms, limit) for shard in shards], client_values.Grouped

    def __call__(
        self,
        function: Callable[[Iterable, bool], list],
        shard: client_values.Shard,
        result: tff.types.Type,
        work: values.Function,
        compiled: list[compiled_loops.CompiledLoop],
    ) -> tuple[tuple[client_values.Leaf, ...], bool]:
        """Applies a function to the clients of a shard.

        Args:
            function: A function from the leaves of a client's value, and whether the client is
                computed alone, to the leaves of its result.
            shard: The clients and their leaves.
            result: The type of a client's result.
            work: The function and its properties.
            compiled: The compiled loops so far, to which new ones are appended.

        Returns:
            The leaves of `{result}@CLIENTS`, and whether the function was vectorized.
        """

        def call(leaves, alone=False):
            return [values.as_tensor(leaf) for leaf in function(leaves, alone)]

        name, uncompiled = str(work), ""
        result_types = values.leaf_types(result)
        if self.compiles_loops([shard.device]):
            try:
                leaves = self._compiled(call, shard, result_types, work, compiled)
            except Exception as error:  # TensorFlow's rules fail in many ways
                self._announce(name, shard.device, f"not compiled by XLA ({_summary(error)})")
            else:
                if leaves is not None:
                    self._announce(name, shard.device, "a loop over clients, compiled by XLA")
                    return leaves, True
            return self._without_xla()(function, shard, result, work, compiled)
        reason = self._not_vectorizable(shard, result_types)
        if reason is None and self.jit_compile:
            try:
                leaves = self._vectorized(call, shard, result_types, compiles=True)
            except Exception as error:  # TensorFlow's rules fail in many ways
                uncompiled = f"not compiled by XLA ({_summary(error)})"
                self._announce(name, shard.device, uncompiled)
            else:
                self._announce(name, shard.device, f"{_described(shard)}, compiled by XLA")
                return leaves, True
        if reason is None and self._vectorize != NEVER:
            try:
                leaves = self._vectorized(call, shard, result_types, compiles=False)
            except Exception as error:
                reason = _summary(error)
            else:
                self._announce(name, shard.device, _described(shard))
                return leaves, True
        reason = reason or f"vectorize={NEVER!r}"
        if self._vectorize == ALWAYS:
            raise vectorization.NotVectorizableError(
                f"Client work cannot be vectorized, as vectorize={ALWAYS!r} requires: {reason}. It "
                f"is {name}{', ' * bool(uncompiled)}{uncompiled}."
            )
        self._announce(name, shard.device, f"a loop over clients ({reason})")
        limit = self._max_concurrent_clients
        if (
            any(map(_is_list, shard.leaves))
            and not any(map(client_values.may_differ, result_types))
            and work.is_deterministic()
            and not work.has_loops()
        ):
            return loops.deferred(call, shard, result_types, limit), False
        return loops.looped(call, shard, result_types, limit), False

    def _compiled(
        self, call, shard, result_types, work, compiled
    ) -> tuple[client_values.Leaf, ...] | None:
        """Adds work to the shard's last loop if it has results of that alone, or to a new one.

        Only the last loop takes work, since later loops may wait for results of earlier ones.
        Work without loops of its own is not worth a new one.
        """
        found = {leaf.loop for leaf in shard.leaves if isinstance(leaf, compiled_loops.Result)}
        if found and found == {[loop for loop in compiled if loop.is_of(shard)][-1]}:
            with contextlib.suppress(compilation.NotCompilableError):
                return found.pop().add(call, shard.leaves, result_types)
        if shard.groups is None or not work.has_loops():
            return None
        loop = compiled_loops.CompiledLoop(shard, self._max_concurrent_clients)
        leaves = loop.add(call, shard.leaves, result_types)
        compiled.append(loop)
        return leaves

    def _not_vectorizable(self, shard, result_types) -> str | None:
        """Returns the reason why vectorization is not even tried, or `None`."""
        if self._vectorize == NEVER and not self.jit_compile:
            return f"vectorize={NEVER!r}"
        for leaf in shard.leaves:
            if isinstance(leaf, client_values.Ragged) and not _is_grouped(leaf):
                return "shapes differ by client"
            if _is_list(leaf):
                return "large results of a loop"
        stacks = [leaf.tensor for leaf in shard.leaves if isinstance(leaf, client_values.Stacked)]
        if any(isinstance(kind, tff.types.SequenceType) for kind in result_types) or any(
            stack.dtype == tf.variant for stack in stacks
        ):
            return "sequences"
        return None

    def _vectorized(
        self, call, shard, result_types, compiles: bool
    ) -> tuple[client_values.Leaf, ...]:
        names: dict[str, int] | None = {} if compiles else None

        def one(*rows):
            rows = iter(rows)
            return call(leaf.of(rows) for leaf in shard.leaves)

        def vectorized(size, *stacks):
            return vectorization.vectorize(function, size, stacks, compiles, names)

        specs = [spec for leaf in shard.leaves for spec in leaf.row_specs()]
        limit = 1 if self._vectorize == NEVER else self._max_concurrent_clients
        are_grouped = any(map(_is_grouped, shard.leaves))
        is_gpu = devices.is_gpu(shard.device)
        ways = [pfor_convolutions.GROUPED] * (compiles or is_gpu)
        ways += [pfor_convolutions.PATCHES] * (compiles and not is_gpu)
        with pfor_convolutions.own_filters(*ways):
            # In separate functions, so that a failure leaves no operations in the graph.
            function = tf.function(one, autograph=False).get_concrete_function(*specs)
            mapped = tf.function(vectorized, autograph=False, jit_compile=compiles)
            if names is not None:
                graph = mapped.get_concrete_function(*_stack_specs(specs)).graph
                compilation.check_compilable(graph, shard.device)
                mapped = compilation.with_few_sizes(mapped, names, are_grouped, limit)
            if are_grouped:
                return _in_parts(mapped, shard, specs, result_types, shard.groups.ends)
            if limit is None:
                stacks = [stack for leaf in shard.leaves for stack in leaf.stacks()]
                return tuple(map(client_values.Stacked, mapped(shard.size, *stacks)))
            ends = _chunk_ends(shard.size, limit)
            return _in_parts(mapped, shard, specs, result_types, ends)

    def _announce(self, name, device, method):
        choice = name, device, method
        if choice not in self._announced:
            self._announced.add(choice)
            absl.logging.info("Client work, %s, on %s: %s.", *choice)


def _is_list(leaf: client_values.Leaf) -> bool:
    """Returns whether a leaf has large results of a loop."""
    return isinstance(leaf, client_values.Stacked) and leaf.is_list


def _is_grouped(leaf: client_values.Leaf) -> bool:
    """Returns whether a leaf can be stacked in each group of clients."""
    return isinstance(leaf, client_values.Grouped) and leaf.static_shape.rank is not None


def _described(shard: client_values.Shard) -> str:
    """Describes how vectorized client work of a shard is computed."""
    members = "clients of equal shapes" if any(map(_is_grouped, shard.leaves)) else "clients"
    return f"vectorized over {members}"


def _summary(error: Exception) -> str:
    """Returns the first line of an error's message, without a full stop."""
    return str(error).split("\n", 1)[0].removesuffix(".")


def _stack_specs(specs: Iterable[tf.TensorSpec]) -> list[tf.TensorSpec]:
    """Returns the specs of a number of clients and of the stacks of their tensors."""
    stacks = [tf.TensorSpec([None, *spec.shape], spec.dtype) for spec in specs]
    return [tf.TensorSpec([], tf.int32), *stacks]


def _chunk_ends(size: tf.Tensor, length: int) -> tf.Tensor:
    """Returns the ends of the chunks of at most `length` of `size` clients."""
    return tf.minimum(tf.range(length, size + length, length), size)


def _in_parts(function, shard, specs, result_types, ends) -> tuple[client_values.Leaf, ...]:
    """Calls a function of stacks on the clients up to each of `ends`, one part after the other."""
    outputs = function.get_concrete_function(*_stack_specs(specs)).structured_outputs
    differ = any(map(_is_grouped, shard.leaves))
    columns = [
        groups.Column(leaf_type, output, tf.size(ends), differ)
        for leaf_type, output in zip(result_types, outputs, strict=True)
    ]

    def body(index, first, arrays):
        last = ends[index]
        stacks = [stack for leaf in shard.leaves for stack in leaf.stacks(first, last)]
        results = zip(columns, function(last - first, *stacks), strict=True)
        cells = [cell for column, stack in results for cell in column.cells(stack)]
        written = zip(arrays, cells, strict=True)
        return index + 1, last, [array.write(index, cell) for array, cell in written]

    arrays = [array for column in columns for array in column.arrays]
    *_, arrays = tf.while_loop(
        lambda index, *_: index < tf.size(ends),
        body,
        (tf.constant(0), tf.constant(0), arrays),
        parallel_iterations=1,
    )
    collected = iter(arrays)
    return tuple(column.leaf(collected) for column in columns)
