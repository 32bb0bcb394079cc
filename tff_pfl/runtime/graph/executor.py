"""An executor for TFF that runs a computation as one TensorFlow graph in this process."""

import collections
import dataclasses
import functools
import gc
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import absl.logging
import grpc
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.runtime.graph import (
    arguments,
    compilation,
    internals,
    interruption,
    lowering,
    results,
    values,
)
from tff_pfl.runtime.graph.clients import client_values, mapping
from tff_pfl.runtime.graph.clients.cohorts import Forms
from tff_pfl.runtime.graph.clients.groups import Rows
from tff_pfl.runtime.graph.devices import is_gpu
from tff_pfl.tracing.origins import Origin
from tff_pfl.tracing.shared import SharedTraces

# The numbers of computations whose graphs are kept, and of graphs of each.
_MAX_PROGRAMS = 64
_MAX_GRAPHS = 16
# Graphs of more operations are garbage-collected right after tracing.
_MANY_OPERATIONS = 5000
# While a graph is traced, TensorFlow's rules of vectorization are changed for all threads.
_TRACING = threading.Lock()
# The beginnings of the lines in TensorFlow's messages that say where an operation was made.
_STACK_TRACE = (
    "Graph execution error:",
    "Detected at node ",
    "  File ",
    "<stack traces unavailable>",
)
# Errors that a wrong rule of vectorization or client work itself raises when a graph runs.
_FAILURES = (
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
    tf.errors.InvalidArgumentError,
    tf.errors.NotFoundError,
    tf.errors.OutOfRangeError,
    tf.errors.UnimplementedError,
)
# Texts of errors of XLA, for graphs that it can compile for no cohort.
_NOT_COMPILED = ("compile-time constant", "XLA compilation requires")


class GraphExecutorFactory(tff.framework.ExecutorFactory):
    """A factory of executors that share their graphs; see `create_graph_context`."""

    def __init__(
        self,
        devices: Sequence[str],
        client_map: mapping.ClientMap,
        keep_tensors: bool,
    ):
        """Makes the factory, with the full names of the devices."""
        self.devices = tuple(devices)
        self.client_map = client_map
        self.keep_tensors = keep_tensors
        self._programs: collections.OrderedDict = collections.OrderedDict()
        self._lock = threading.Lock()

    def create_executor(self, cardinalities):
        """Returns an executor for a cohort of the given size."""
        return _GraphExecutor(self, cardinalities.get(tff.CLIENTS, 0))

    def clean_up_executor(self, cardinalities):
        """Does nothing, since executors hold no resources and failed graphs can run again."""

    def run(
        self,
        computation: tff.framework.ConcreteComputation,
        argument: Any,
        num_clients: int | None = None,
    ) -> Any:
        """Runs a computation, whose argument is `None` if it has no parameter.

        Args:
            computation: The computation.
            argument: The argument, as TFF packs it.
            num_clients: The size of the cohort. Default: that of the argument.

        Raises:
            tf.errors.OpError: An operation fails; the error is also one of gRPC.
        """
        signature = computation.type_signature
        if num_clients is None and argument is not None:
            sizes = internals.infer_cardinalities(argument, signature.parameter)
            num_clients = sizes.get(tff.CLIENTS)
        try:
            return self.program(computation).run(argument, signature, num_clients or 0)
        except tf.errors.OpError as error:
            raise _as_of_tff(error) from error

    def program(self, computation: tff.framework.ConcreteComputation) -> "Program":
        """Returns the program of a computation; the programs used last are kept."""
        proto = tff.framework.ConcreteComputation.get_proto(computation)
        with self._lock:
            program = self._programs.pop(id(proto), None)
            if program is None:
                program = Program(self, proto, computation.to_building_block())
            self._programs[id(proto)] = program
            if len(self._programs) > _MAX_PROGRAMS:
                self._programs.popitem(last=False)
        return program


@dataclasses.dataclass
class _Graph:
    """The graph of a computation for arguments of one layout.

    Attributes:
        function: A function from the sizes of the shards and the tensors of the argument to the
            tensors of the result.
        read: A function from these, and the shards, to the result in Python.
        client_map: The map of client work, or `None` if no client work is vectorized.
        simpler: The same computation with the simpler map, or `None` if it was not needed yet.
        compiles: Whether XLA can compile it, as far as is known.
    """

    function: internals.RuntimeFunction
    read: results.Reader
    client_map: mapping.ClientMap | None
    simpler: "_Graph | None" = None
    compiles: bool = True


class Program:
    """A computation and its graphs."""

    def __init__(self, factory: GraphExecutorFactory, proto, block):
        """Makes the program of a building block, without graphs."""
        self._factory = factory
        self._proto = proto  # kept alive, so that its id stays unique
        self._block = block
        self._functions: dict[Any, Any] = {}
        self._graphs: collections.OrderedDict = collections.OrderedDict()
        self._forms = Forms()
        self._lock = threading.Lock()

    def run(self, argument, type_signature: tff.types.FunctionType, num_clients: int) -> Any:
        """Runs the computation for a cohort."""
        devices = self._factory.devices
        shards: Sequence[Rows] = _divided(num_clients, devices)
        client_map = self._factory.client_map.chosen()
        layout, tensors = None, list[tf.Tensor]()
        if type_signature.parameter is not None:
            layout, tensors, shards = arguments.ingest(
                argument, type_signature.parameter, devices[0], shards, client_map, self._forms
            )
        tensors = [tensor for shard in shards for tensor in shard.tensors()] + tensors
        num_vectors = tuple(map(_form, shards))
        graph = self._graph(layout, type_signature, num_vectors, client_map)
        outputs = None
        while outputs is None:
            reason = None
            try:
                outputs = graph.function(tensors)
            except _FAILURES as error:
                if self._is_final(graph.client_map, error):
                    raise
                reason = _cause(error)
                # Sizes of tensors depend on values, whatever the cohort.
                graph.compiles = not any(text in error.message for text in _NOT_COMPILED)
            if reason is not None:  # outside the handler, so that later errors have no context
                graph = self._simpler(graph, layout, type_signature, num_vectors, reason)
        return graph.read(iter(outputs), shards)

    def _graph(self, layout, type_signature, num_vectors, client_map) -> _Graph:
        key = layout, num_vectors, client_map
        with self._lock:
            if key not in self._graphs:
                self._graphs[key] = self._trace(layout, type_signature, num_vectors, client_map)
                if len(self._graphs) > _MAX_GRAPHS:
                    self._graphs.popitem(last=False)
            self._graphs.move_to_end(key)
            graph = self._graphs[key]
            return graph if graph.compiles or graph.simpler is None else graph.simpler

    def _is_final(self, client_map, error) -> bool:
        """Returns whether another map could not do better than one that failed."""
        if client_map is None or client_map.simpler() is None:
            return True
        # Without XLA, operations do not fail on GPUs.
        return compilation.FAILS in error.message and any(map(is_gpu, self._factory.devices))

    def _simpler(self, graph, layout, type_signature, num_vectors, reason) -> _Graph:
        """Returns the same computation without XLA, or with loops, which raise errors of clients.

        It replaces the graph for this call only, so that results do not depend on earlier calls,
        unless XLA cannot compile the graph for any.
        """
        with self._lock:
            if graph.simpler is None:
                client_map = graph.client_map.simpler()
                graph.simpler = self._trace(layout, type_signature, num_vectors, client_map)
                absl.logging.warning(
                    "A round with %s client work fails when it runs (%s). Each call that fails is "
                    "repeated %s.",
                    "compiled" if graph.client_map.jit_compile else "vectorized",
                    reason,
                    "without XLA" if graph.client_map.jit_compile else "with a loop over clients",
                )
            return graph.simpler

    def _trace(self, layout, type_signature, num_vectors, client_map) -> _Graph:
        devices, emitted = self._factory.devices, []

        def lowered(*tensors):
            tensors = iter(tensors)
            shards = [
                _shard(device, tensors, number)
                for device, number in zip(devices, num_vectors, strict=False)
            ]
            context = lowering.Lowering(self._functions, client_map, devices[0], shards)
            with tf.device(devices[0]):
                argument = None
                if layout is not None:
                    argument = layout.build(type_signature.parameter, tensors, context)
                result = context.evaluate(self._block, {})
                if isinstance(result, values.Function):
                    result = result.call(argument)
                result_layout, outputs = results.emit(result, type_signature.result)
                context.finish()
                keeps = self._factory.keep_tensors
                outputs, unpacked = results.packed(outputs) if keeps else (outputs, iter)
            read = results.reader(type_signature.result, result_layout, keeps)
            emitted.append(
                (
                    lambda tensors, shards: read(unpacked(tensors), shards),
                    client_map if context.vectorizes else None,
                )
            )
            return outputs

        specs = []
        for number, _ in num_vectors:
            specs += [tf.TensorSpec([], tf.int32), *[tf.TensorSpec([None], tf.int32)] * number]
        if layout is not None:
            specs += layout.specs(type_signature.parameter, len(num_vectors))
        with _TRACING:
            traced = tf.function(lowered, autograph=False).get_concrete_function(*specs)
        function = interruption.interruptible(traced)
        if internals.num_operations(traced) > _MANY_OPERATIONS:
            del traced
            self._functions.clear()
            SharedTraces.release()
            gc.collect()  # Python's graphs are cycles, of hundreds of megabytes for large networks
        return _Graph(function, *emitted[-1])


def _cause(error: tf.errors.OpError) -> str:
    """Returns the cause of an error and its place, without TensorFlow's stack trace."""
    lines = error.message.partition("[[{{node")[0].splitlines()
    cause = "\n".join(line for line in lines if line.strip() and not line.startswith(_STACK_TRACE))
    origin = Origin.in_message(error.message)
    if origin is None:
        return cause
    return f"{origin.block} failed in {origin.operation}{origin.place}: {cause}"


def _as_of_tff(error: tf.errors.OpError) -> tf.errors.OpError:
    """Returns a TensorFlow error that is also a gRPC error, as errors of TFF's runtime are.

    Both `except tf.errors.InvalidArgumentError` and `except grpc.RpcError` catch it. Its message is
    only the cause and its place. It is raised from TensorFlow's own error, with the stack trace.
    """
    return _class_of_tff(error.__class__)(error.node_def, error.op, _cause(error))


@functools.cache
def _class_of_tff(kind):
    return type(
        kind.__name__,
        (kind, grpc.RpcError),
        {
            "code": lambda self: grpc.StatusCode.INTERNAL,
            "details": lambda self: f"Failed to run computation: {self.message}",
        },
    )


def _form(shard: Rows) -> tuple[int, tuple[int, ...]]:
    """Returns the number of tensors in `Rows.tensors` besides the number of clients; `prefixes`."""
    number = 2 * (shard.ends is not None) + (shard.parts is not None)
    return number, () if shard.parts is None else shard.parts.prefixes


def _shard(device: str, tensors: Iterator[tf.Tensor], form) -> client_values.Shard:
    """Makes a shard of a `_form` without leaves from the tensors of `Rows.tensors`."""
    num_vectors, prefixes = form
    size = next(tensors)
    vectors = [next(tensors) for _ in range(num_vectors)]
    groups = client_values.Groups(*vectors) if vectors else None
    return client_values.Shard(device, size, (), groups, prefixes)


def _divided(num_clients: int, devices: Sequence[str]) -> list[Rows]:
    """Divides a cohort among devices, in order; devices without clients are left out."""
    share, rest = divmod(num_clients, len(devices))
    shards, start = [], 0
    for index, device in enumerate(devices):
        stop = start + share + (index < rest)
        if stop > start:
            shards.append(Rows(device, np.arange(start, stop, dtype=np.int32)))
        start = stop
    return shards


class _Value(internals.ExecutorValue):
    """A Python value or a computation, with its type."""

    def __init__(self, value, type_signature):
        self.value = value
        self._type_signature = type_signature

    @property
    def type_signature(self):
        return self._type_signature

    @property
    def reference(self):
        return self.value

    async def compute(self):
        return self.value


class _GraphExecutor(internals.Executor):
    """An executor that collects the parts of an argument and runs a computation on it."""

    def __init__(self, factory: GraphExecutorFactory, num_clients: int):
        self._factory = factory
        self._num_clients = num_clients

    def close(self):
        """Does nothing."""

    async def create_value(self, value, type_spec=None):
        if type_spec is None:
            type_spec = value.type_signature
        return _Value(value, tff.types.to_type(type_spec))

    async def create_struct(self, elements):
        elements = tff.structure.from_container(elements)
        named = list(tff.structure.iter_elements(elements))
        value = tff.structure.Struct((name, element.value) for name, element in named)
        types = [(name, x.type_signature) if name else x.type_signature for name, x in named]
        return _Value(value, tff.types.StructType(types))

    async def create_selection(self, source, index):
        value = tff.structure.from_container(source.value)[index]
        return _Value(value, source.type_signature[index])

    async def create_call(self, comp, arg=None):
        argument = None if arg is None else arg.value
        # In a thread, so that the event loop is not blocked.
        result = await interruption.in_thread(
            self._factory.run, comp.value, argument, self._num_clients
        )
        return _Value(result, comp.type_signature.result)
