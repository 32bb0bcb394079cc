"""Lowers TFF computations: evaluates building blocks while a TensorFlow graph is built."""

import functools
import hashlib
import itertools
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.runtime.graph import imported, intrinsics, values
from tff_pfl.runtime.graph.clients import client_values, compiled_loops
from tff_pfl.runtime.graph.clients.client_values import Clients, Shared
from tff_pfl.runtime.graph.values import CannotLowerError, Function
from tff_pfl.tracing import origins
from tff_pfl.tracing.alone import Alone, is_marked
from tff_pfl.tracing.frozen import SUFFIX

# The name scope of operations of client work, in graphs and in profiles.
CLIENT_WORK = "clients"


class Lowering:
    """An evaluator of building blocks, under `tf.device` of the server or of the clients.

    Attributes:
        vectorizes: Whether any client work so far is vectorized.
    """

    def __init__(self, functions, client_map, server_device: str, shards):
        """Makes a lowering.

        Args:
            functions: A dictionary that caches imported TensorFlow functions between lowerings.
            client_map: A `ClientMap`.
            server_device: The device of computations that are not placed at clients.
            shards: The shards of the cohort, without leaves.
        """
        self._functions = functions
        self._client_map = client_map
        self._server_device = server_device
        self._shards = tuple(shards)
        self.vectorizes = False
        self._compiled_loops: list[compiled_loops.CompiledLoop] = []
        self._alone = Alone.NOT  # how far the client whose work is lowered is computed alone

    def evaluate(self, block, scope: Mapping[str, Any]) -> Any:
        """Evaluates a building block; the scope has the values of names that it may refer to."""
        match block:
            case tff.framework.Reference():
                return scope[block.name]
            case tff.framework.Selection():
                return self.evaluate(block.source, scope)[_index(block)]
            case tff.framework.Struct():
                return tuple(self.evaluate(element, scope) for element in block)
            case tff.framework.Call():
                function = self.evaluate(block.function, scope)
                if block.argument is None:
                    return function.call(None)
                return function.call(self.evaluate(block.argument, scope))
            case tff.framework.Block():
                for name, value in block.locals:
                    scope = {**scope, name: self.evaluate(value, scope)}
                return self.evaluate(block.result, scope)
            case tff.framework.Lambda():
                return self._lambda(block, scope)
            case tff.framework.CompiledComputation():
                return self._compiled(block)
            case tff.framework.Intrinsic():
                return self._intrinsic(block)
            case tff.framework.Literal():
                return tf.constant(block.value, values.dtype(block.type_signature))
        raise CannotLowerError(
            f"The graph executor cannot lower {type(block).__name__}: "
            f"{block.compact_representation()}. Try TFF's own runtime: "
            "tff_pfl.runtime.create_cpp_context(), --runtime=cpp."
        )

    def _lambda(self, block, scope):
        name = block.parameter_name

        def call(argument):
            inner = scope if name is None else {**scope, name: argument}
            return self.evaluate(block.result, inner)

        parts = list(_descendants(block.result))
        outer = [
            leaf
            for part in parts
            if isinstance(part, tff.framework.Reference) and part.name != name
            for leaf in values.flatten(scope.get(part.name, ()))
        ]
        functions = [leaf for leaf in outer if isinstance(leaf, Function)]
        only_call = _only_call(block)
        compiled = [part for part in parts if isinstance(part, tff.framework.CompiledComputation)]
        return Function(
            call,
            block.type_signature,
            is_deterministic=lambda: (
                all(function.is_deterministic() for function in functions)
                and all(self._compiled(part).is_deterministic() for part in compiled)
            ),
            is_structural=all(isinstance(part, _STRUCTURAL) for part in parts)
            and len(functions) == len(outer)
            and all(function.is_structural for function in functions),
            has_loops=lambda: (
                any(function.has_loops() for function in functions)
                or any(self._compiled(part).has_loops() for part in compiled)
            ),
            has_frozen=lambda: (
                any(function.has_frozen() for function in functions)
                or any(self._compiled(part).has_frozen() for part in compiled)
            ),
            appends=lambda: only_call is not None and self._compiled(only_call).appends(),
            block=lambda: next(
                filter(None, (origins.block_of(part.proto) for part in compiled)), ""
            ),
        )

    def _compiled(self, block):
        kind = block.proto.WhichOneof("computation")
        if kind != "tensorflow":
            raise CannotLowerError(
                f"The graph executor runs TensorFlow (tff.tensorflow.computation), not {kind!r}."
            )
        parameter, result = block.type_signature.parameter, block.type_signature.result
        parameter_types = [] if parameter is None else values.leaf_types(parameter)
        result_types = values.leaf_types(result)
        general_specs = list(map(values.tensor_spec, parameter_types))

        def general():
            return self._import(block.proto, general_specs)

        def call(argument):
            arguments = () if parameter is None else values.flatten(argument)
            function = None
            if any(map(values.is_single, arguments)):
                # A single selected element is passed as tensors, without a data set.
                specs = map(values.spec_of_single, arguments, parameter_types)
                try:
                    function = self._import(block.proto, specs)
                    arguments = itertools.chain.from_iterable(map(values.single, arguments))
                except imported.NotSingleElementError:
                    pass
            elif self._alone is not Alone.NOT and is_marked(block.proto):
                function = self._import(block.proto, general_specs, self._alone)
            results = (function or general())(*map(values.as_tensor, arguments))
            for tensor, leaf_type in zip(results, result_types, strict=True):
                if isinstance(leaf_type, tff.types.TensorType):
                    tensor.set_shape(leaf_type.shape)
            return values.pack(result, iter(results))

        return Function(
            call,
            block.type_signature,
            is_deterministic=lambda: not general().is_stateful,
            has_loops=lambda: general().has_loops,
            has_frozen=lambda: SUFFIX.encode() in block.proto.tensorflow.graph_def.value,
            appends=lambda: general().appends,
            block=lambda: origins.block_of(block.proto),
        )

    def _import(self, proto, specs, alone: Alone = Alone.NOT) -> imported.ImportedFunction:
        specs = tuple(specs)
        key = hashlib.sha256(proto.SerializeToString()).digest(), specs, alone
        if key not in self._functions:
            self._functions[key] = imported.ImportedFunction(proto.tensorflow, specs, alone)
        return self._functions[key]

    def _intrinsic(self, block):
        handler = intrinsics.HANDLERS.get(block.uri)
        if handler is None:
            raise CannotLowerError(f"The graph executor does not know the intrinsic {block.uri}.")
        return Function(
            functools.partial(handler, self, block.type_signature), block.type_signature
        )

    # The methods below implement parts of the intrinsics.

    def at_server(self, function: Function, argument):
        """Calls a function on the server's device."""
        with tf.device(self._server_device):
            return function.call(argument)

    def shared(self, value, member) -> Clients:
        """Returns the clients of the cohort, all with the same value."""
        leaves = [Shared(leaf) for leaf in values.flatten(value)]
        return self.no_values().with_leaves(member, [leaves] * len(self._shards))

    def no_values(self) -> Clients:
        """Returns the clients of the cohort, all with an empty structure."""
        return Clients(tff.types.StructType([]), self._shards)

    def finish(self) -> None:
        """Builds the compiled loops, whose uses are known at the end."""
        for loop in self._compiled_loops:
            loop.build()

    def map_clients(self, function: Function, clients: Clients) -> Clients:
        """Applies a function to each client's value."""
        result = function.type_signature.result
        # Sequences may be in another order for each client.
        has_sequences = any(
            isinstance(leaf, tff.types.SequenceType) for leaf in values.leaf_types(clients.member)
        )

        def call(leaves, alone=Alone.NOT):
            argument = values.pack(clients.member, iter(leaves))
            outside, self._alone = self._alone, alone
            try:
                return values.flatten(function.call(argument))
            finally:
                self._alone = outside

        def leaves(shard):
            if function.is_structural:
                return call(shard.leaves)
            with tf.device(shard.device), tf.name_scope(CLIENT_WORK):
                shared = all(isinstance(leaf, Shared) for leaf in shard.leaves)
                if shared and not has_sequences and function.is_deterministic():
                    return [Shared(leaf) for leaf in call(x.value for x in shard.leaves)]
                leaves, vectorized = self._client_map(
                    call,
                    shard,
                    result,
                    function,
                    self._compiled_loops,
                )
                self.vectorizes |= vectorized
                return leaves

        return clients.with_leaves(result, map(leaves, clients.shards))

    def reduce_clients(self, clients: Clients, reduce_leaf, combine, empty):
        """Reduces leaves over clients.

        Calls `reduce_leaf(leaf, size)` in each shard, then `combine(results)` at the server. In an
        empty cohort, each leaf of the result is `empty(leaf_type)`.
        """
        leaf_types = values.leaf_types(clients.member)
        partial = []
        for shard in clients.shards:
            with tf.device(shard.device):
                partial.append(
                    [reduce_leaf(client_values.aligned(leaf), shard.size) for leaf in shard.leaves]
                )
        with tf.device(self._server_device):
            if not partial:
                return values.pack(clients.member, map(empty, leaf_types))
            return values.pack(clients.member, map(combine, zip(*partial, strict=True)))


_STRUCTURAL = (
    tff.framework.Reference,
    tff.framework.Selection,
    tff.framework.Struct,
    tff.framework.Block,
)


def _only_call(block):
    """Returns the compiled computation that is all of a lambda, or `None`."""
    call = block.result
    if isinstance(call, tff.framework.Block) and len(call.locals) == 1:
        ((name, value),) = call.locals
        if isinstance(call.result, tff.framework.Reference) and call.result.name == name:
            call = value
    if (
        isinstance(call, tff.framework.Call)
        and isinstance(call.function, tff.framework.CompiledComputation)
        and isinstance(call.argument, tff.framework.Reference)
        and call.argument.name == block.parameter_name
    ):
        return call.function
    return None


def _descendants(block):
    yield block
    for child in block.children():
        yield from _descendants(child)


def _index(selection) -> int:
    if selection.index is not None:
        return selection.index
    return tff.structure.name_list_with_nones(selection.source.type_signature).index(selection.name)
