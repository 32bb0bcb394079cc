"""Applies a function to every client of a shard, in the fastest way that takes it."""

import contextlib
import contextvars
from collections.abc import Callable, Iterable, Iterator, Sequence

import absl.logging
import tensorflow_federated as tff

from tff_pfl.runtime.graph import devices, values
from tff_pfl.runtime.graph.clients import (
    client_values,
    cohorts,
    compiled_loops,
    groups,
    vectorization,
)
from tff_pfl.runtime.graph.clients.ways import (
    CompiledLoop,
    DeferredLoop,
    Lanes,
    Loop,
    Stacks,
    UnsuitedError,
    Way,
    Work,
)
from tff_pfl.tracing.alone import Alone

AUTO, ALWAYS, NEVER = "auto", "always", "never"
VECTORIZE = (AUTO, ALWAYS, NEVER)
# The least mean number of clients in a group with which `AUTO` stacks groups instead of looping.
_LEAST_GROUP, _LEAST_GROUP_ON_GPUS = 8, 2
# The number of elements in a tensor from which CPUs loop over clients of different shapes.
_LARGE_IN_GROUPS = 1 << 15

_pays_to_compile = contextvars.ContextVar("pays_to_compile", default=False)
_cohorts = contextvars.ContextVar[cohorts.Cohorts | None]("cohorts", default=None)


@contextlib.contextmanager
def compiling(pays: bool, expected: cohorts.Cohorts | None = None) -> Iterator[None]:
    """Says whether compilation of client work pays, where a context leaves it open.

    Args:
        pays: Whether it does.
        expected: The expected sizes of cohorts. Where clients are computed side by side, most
            cohorts then use the same program, which XLA compiles once. By default, numbers of
            clients are rounded up by at most an eighth, and numbers of examples to powers of 2.
    """
    tokens = _pays_to_compile.set(pays), _cohorts.set(expected)
    try:
        yield
    finally:
        _pays_to_compile.reset(tokens[0])
        _cohorts.reset(tokens[1])


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

    def takes_lanes(self, on_devices: Sequence[str]) -> bool:
        """Returns whether clients on devices are computed in lanes, see `lanes`."""
        on_gpus = all(map(devices.is_gpu, on_devices))
        takes = self._vectorize == ALWAYS or (self._vectorize == AUTO and on_gpus)
        return takes and bool(on_devices)

    def pads_clients(self, on_devices: Sequence[str]) -> bool:
        """Returns whether clients on devices need no padding."""
        return self.compiles_loops(on_devices) or self.takes_lanes(on_devices)

    def in_lanes(
        self,
        shards: Sequence[groups.Rows],
        rows: Sequence[tuple[int, ...]],
        forms: cohorts.Forms,
        size: int,
    ) -> list[groups.Rows]:
        """Sorts the clients of each shard; see `cohorts.in_lanes`."""
        limit, expected = self._max_concurrent_clients, _cohorts.get()
        if expected is not None:
            expected = expected.of_shards(len(shards))
        return [cohorts.in_lanes(shard, rows, forms, size, expected, limit) for shard in shards]

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

        def call(leaves, alone=Alone.NOT):
            return [values.as_tensor(leaf) for leaf in function(leaves, alone)]

        named, task = str(work), Work(call, shard, values.leaf_types(result), work, compiled)
        reason = "frozen weights" if self._vectorize == AUTO else f"vectorize={NEVER!r}"
        uncompiled = ""
        for way in self._ways(shard.device, work):
            try:
                leaves = way(task)
            except UnsuitedError as error:
                reason = str(error) or reason
            except Exception as error:  # TensorFlow's rules fail in many ways
                if way.is_loop:
                    raise
                if way.uses_xla:
                    uncompiled = f"not compiled by XLA ({_summary(error)})"
                    self._announce(named, shard.device, uncompiled)
                else:
                    reason = _summary(error)
            else:
                why = f" ({reason})" * way.is_loop
                self._announce(named, shard.device, way.described(shard) + why)
                return leaves, not way.is_loop
        raise vectorization.NotVectorizableError(
            f"Client work cannot be vectorized, as vectorize={ALWAYS!r} requires: {reason}. It "
            f"is {named}{', ' * bool(uncompiled)}{uncompiled}."
        )

    def _ways(self, device: str, work: values.Function) -> Iterator[Way]:
        """Yields the ways to compute work on a device, the fastest first."""
        limit, never = self._max_concurrent_clients, self._vectorize == NEVER
        if self._vectorize == AUTO and not devices.is_gpu(device) and work.has_frozen():
            # Steps of such models use all cores; several at once would only take more memory.
            limit, never = limit or 1, True
        if self.compiles_loops([device]):
            yield CompiledLoop(limit)
        elif self.jit_compile:
            yield from [Lanes(limit, uses_xla=True)] * (not never)
            yield Stacks(1 if never else limit, uses_xla=True)
        if not never:
            yield from (Lanes(limit), Stacks(limit))
        if self._vectorize != ALWAYS:
            yield from (DeferredLoop(limit), Loop(limit))

    def _announce(self, name, device, method):
        choice = name, device, method
        if choice not in self._announced:
            self._announced.add(choice)
            absl.logging.info("Client work, %s, on %s: %s.", *choice)


def _summary(error: Exception) -> str:
    """Returns the first line of an error's message, without a full stop."""
    return str(error).split("\n", 1)[0].removesuffix(".")
