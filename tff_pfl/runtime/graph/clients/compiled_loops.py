"""Computes client work on CPUs as programs of XLA, each a loop over some clients of a shard.

In such a loop, each client makes its own number of steps. TensorFlow would dispatch some forty
operations in each step.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.runtime.graph import compilation, devices, internals, values
from tff_pfl.runtime.graph.clients import client_values, flat, vectorization
from tff_pfl.runtime.graph.clients.padded import Padded
from tff_pfl.runtime.graph.operations import depends_on, operations
from tff_pfl.tracing.alone import Alone


class CompiledLoop:
    """The work of the clients of a shard, which later work on its results joins.

    It is built when all uses of its results are known. If only the sum of a result is used, the
    clients' tensors are added up as they are computed, and are not written to memory.
    """

    def __init__(self, shard: client_values.Shard, limit: int | None):
        """Makes a loop without work, of which `limit` parts run at a time; `None`: one per core."""
        self._shard, self._limit = shard, limit
        self._graph = tf.compat.v1.get_default_graph()
        self._inputs: list[Any] = []
        self._works: list[_Work] = []
        self._specs: list[tf.TensorSpec] = []  # of results
        self._promises: dict[_Use, _Promise] = {}
        self._names: dict[str, int] = {}

    def add(
        self,
        call: Callable,
        leaves: Sequence[Any],
        result_types: Sequence[tff.types.TensorType],
    ) -> "tuple[Result, ...]":
        """Adds work on a client's values; returns the leaves of its results.

        Args:
            call: A function from a client's leaves to the leaves of its result.
            leaves: Leaves of the shard; among them may be results of this loop.
            result_types: The types of the result's leaves.

        Raises:
            NotCompilableError: XLA cannot compile the work with the same results, or would be slow.
        """
        differ = [isinstance(leaf, client_values.Ragged) for leaf in leaves]
        are_padded = [isinstance(leaf, Padded) for leaf in leaves]
        if differ != are_padded or any(map(client_values.may_differ, result_types)):
            raise compilation.NotCompilableError("shapes differ by client")
        sizes = [leaf.size for leaf in leaves if isinstance(leaf, Padded)]
        if not all(any(size is leaf for leaf in leaves) for size in sizes):
            raise compilation.NotCompilableError("it takes examples without their number")
        specs = [spec for leaf in leaves for spec in leaf.row_specs()]

        def one(*rows):
            rows = iter(rows)
            return call((leaf.of(rows) for leaf in leaves), alone=Alone.FULLY)

        function = tf.function(one, autograph=False).get_concrete_function(*specs)
        kinds = (client_values.Stacked, client_values.Selected)
        others = [leaf for leaf in leaves if isinstance(leaf, kinds) and not self._is_own(leaf)]
        given = [tensor for leaf in others for tensor in leaf.stacks()]
        if any(map(self._awaits, [*function.captured_inputs, *given])):
            raise compilation.NotCompilableError("it needs sums of other results")
        names = dict(self._names)
        compiled = vectorization.alone(function, names)
        compilation.check_compilable(compiled.graph, self._shard.device)
        if any("Conv" in operation.type for operation in operations(compiled.graph)):
            raise compilation.NotCompilableError("XLA's convolutions are slow on CPUs")
        places = []
        for leaf in leaves:
            if self._is_own(leaf):
                places.append(("results", leaf.index))
            elif leaf.row_specs():
                places.append(("rows", len(self._inputs)))
                self._inputs.append(leaf)
        self._names = names
        captured = list(map(flat.flat, function.captured_inputs))
        self._works.append(_Work(compiled, captured, places))
        first, new = len(self._specs), list(map(values.tensor_spec, result_types))
        self._specs += new
        return tuple(Result(self, first + index, spec) for index, spec in enumerate(new))

    @functools.cached_property
    def _failure(self) -> "tuple[_Promise, _Promise, tf.Operation]":
        """The number of an operation that fails, or 0, its name, and an assertion that it is 0.

        TensorFlow runs assertions in the order in which they are made, so that this one is made
        before those of the results.
        """
        failed, reason = _Promise(tf.int32, []), _Promise(tf.string, [])
        return failed, reason, tf.debugging.Assert(tf.equal(failed.tensor, 0), [reason.tensor])

    def is_of(self, shard: client_values.Shard) -> bool:
        """Returns whether the clients are those of a shard."""
        return self._shard.size is shard.size

    def use(self, use: "_Use") -> tf.Tensor:
        """Returns the tensor of a use of a result; it has a value once the loop is built."""
        if use not in self._promises:
            spec = self._specs[use.result]
            shape = spec.shape if use.is_sum else [None, *spec.shape]
            with self._graph.as_default(), tf.control_dependencies([self._failure[-1]]):
                self._promises[use] = _Promise(spec.dtype, shape)
        return self._promises[use].tensor

    def build(self) -> None:
        """Builds the loop, for all uses of its results."""
        with self._graph.as_default(), tf.device(self._shard.device):
            results, failed = self._parts()
            texts = ["", *(f"{compilation.FAILS}{name}." for name in self._names)]
            number, name, _ = self._failure
            number.keep(failed)
            name.keep(tf.gather(tf.constant(texts), failed))
        for promise, result in zip(self._promises.values(), results, strict=True):
            promise.keep(result)

    def _is_own(self, leaf) -> bool:
        return isinstance(leaf, Result) and leaf.loop is self

    def _awaits(self, tensor: tf.Tensor) -> bool:
        """Returns whether a tensor depends on results of this loop."""
        promised = {promise.tensor.op for promise in self._promises.values()}
        return bool(promised) and depends_on(tensor.op, promised)

    def _client(self, rows: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Returns the results of a client, and the number of an operation that fails, or 0."""
        found: dict[str, list] = {"rows": list(rows), "results": []}
        failures = []
        for work in self._works:
            given = [found[kind][index] for kind, index in work.places] + work.captured
            shapes = [tensor.shape for tensor in work.function.inputs]
            *results, failed = work.function(*map(flat.in_shape, given, shapes))
            found["results"] += results
            failures.append(failed)
        return found["results"], tf.reduce_max(tf.stack(failures))

    def _program(self, count: tf.Tensor, clients: tf.Tensor, inputs):
        """Computes the first `count` of the clients of a part, from their rows of the inputs.

        Returns:
            The uses of the results, for all places of the part, and the number of an operation that
            fails, or 0.
        """
        places = tf.size(clients)

        def row(client, tensor, offsets=None):
            if offsets is None:
                return tf.gather(tensor, client)
            # For each place of `tf.slice`, XLA would compile another program.
            begin, size = [offsets[client], 0], [tf.shape(tensor)[0] // places, tensor.shape[1]]
            return internals.xla_dynamic_slice(tensor, begin, size)

        def next_client(client, failed, states):
            results, failure = self._client([row(client, *tensors) for tensors in inputs])
            states = [
                state + flat.flat(results[use.result])
                if use.is_sum
                else state.write(client, flat.flat(results[use.result]))
                for use, state in zip(self._promises, states, strict=True)
            ]
            return client + 1, tf.maximum(failed, failure), states

        start = self._start(places, ())
        _, failed, states = tf.while_loop(
            lambda client, *_: client < count, next_client, (tf.constant(0), tf.constant(0), start)
        )
        states = zip(self._promises, states, strict=True)
        return [state if use.is_sum else state.stack() for use, state in states], failed

    def _start(self, number: tf.Tensor, axes: tuple) -> list[tf.Tensor | tf.TensorArray]:
        """Returns zeros for sums, and arrays of `number` tensors, which have further axes first."""

        def start(use):
            spec = self._specs[use.result]
            if use.is_sum:
                return tf.zeros(flat.flat_shape(spec.shape), spec.dtype)
            shape = tf.TensorShape(axes).concatenate(flat.flat_shape(spec.shape))
            return tf.TensorArray(spec.dtype, number, element_shape=shape, infer_shape=False)

        return [start(use) for use in self._promises]

    def _parts(self) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Computes all parts of the shard; returns the uses, and the number of a failure or 0."""
        groups: Any = self._shard.groups
        number = tf.size(groups.ends)
        program = tf.function(self._program, autograph=False, jit_compile=True)

        def next_part(index, first, failed, states):
            last, places = groups.ends[index], groups.places[index]
            clients = tf.minimum(first + tf.range(places), last - 1)
            inputs = [
                leaf.of_part(index, clients)
                if isinstance(leaf, Padded)
                else [flat.flat(tf.gather(leaf.stacks()[0], clients))]
                for leaf in self._inputs
            ]
            results, failure = program(last - first, clients, inputs)
            states = [
                state + result if use.is_sum else state.write(index, result[: last - first])
                for use, state, result in zip(self._promises, states, results, strict=True)
            ]
            return index + 1, last, tf.maximum(failed, failure), states

        start = self._start(number, (None,))
        *_, failed, states = tf.while_loop(
            lambda index, *_: index < number,
            next_part,
            (tf.constant(0), tf.constant(0), tf.constant(0), start),
            parallel_iterations=self._limit or devices.num_cores(),
        )
        results = []
        for use, state in zip(self._promises, states, strict=True):
            shape = self._specs[use.result].shape
            if not use.is_sum:
                state, shape = state.concat(), tf.TensorShape([None]).concatenate(shape)
            results.append(flat.in_shape(state, shape))
        return results, failed


class _Use(NamedTuple):
    """A use of a result, given by its index: the sum over all clients, or the stack."""

    result: int
    is_sum: bool


class _Work(NamedTuple):
    """A function of a client, its captured tensors, and where to find its other inputs."""

    function: tf.types.experimental.ConcreteFunction
    captured: list[tf.Tensor]
    places: Sequence[tuple[str, int]]


class _Promise:
    """A tensor that is used before it has a value."""

    def __init__(self, dtype: tf.DType, shape):
        self.tensor = tf.identity(tf.compat.v1.placeholder(dtype, shape))

    def keep(self, tensor: tf.Tensor) -> None:
        """Sets the value."""
        self.tensor.op._update_input(0, tensor)


class Result(client_values.Stacked):
    """A leaf of the results of a compiled loop.

    Attributes:
        loop: The loop.
        index: The position among all results of the loop.
    """

    def __init__(self, loop: CompiledLoop, index: int, spec: tf.TensorSpec):
        """Makes the leaf."""
        self.loop, self.index, self._spec = loop, index, spec

    @functools.cached_property
    def tensor(self) -> tf.Tensor:
        """The stack."""
        return self.loop.use(_Use(self.index, is_sum=False))

    def sum(self) -> tf.Tensor:
        """Returns the sum of the tensors."""
        return self.loop.use(_Use(self.index, is_sum=True))

    def row_specs(self):
        """Returns the spec of a client's tensor."""
        return [self._spec]
