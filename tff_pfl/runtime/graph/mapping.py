"""Applies a function to every client of a shard, vectorized or in a loop.

Some client work must not run for two clients at the same time. TensorFlow's oneDNN kernels of
`FusedBatchNorm` and its gradient store the number of channels of a call in the kernel, which all
clients of a loop share. Simultaneous calls with different numbers of channels give wrong results
and write beyond their memory. Keras' `LayerNormalization` uses these kernels, with the rows of its
input as channels. Therefore loops with an unknown number of channels run one client at a time.
"""

import os
from collections.abc import Callable, Iterable, Iterator

import absl.logging
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.runtime.graph import devices, pfor_rules, values, vectorization

AUTO, ALWAYS, NEVER = "auto", "always", "never"
VECTORIZE = (AUTO, ALWAYS, NEVER)
_REASON_LENGTH = 200
# The numbers of elements from which CPUs do not stack results of loops.
_LARGE = 1 << 14

_NORMALIZATIONS = ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
# The positions of two inputs: the images, and a vector with a number for each channel.
_NORMALIZATION_INPUTS = {name: (0, 1) for name in _NORMALIZATIONS} | {
    name.replace("Norm", "NormGrad"): (1, 2) for name in _NORMALIZATIONS
}


class ClientMap:
    """A map of functions over clients' values; `create_graph_context` explains the options."""

    def __init__(self, vectorize: str, max_concurrent_clients: int | None, jit_compile: bool):
        """Makes the map; see `create_graph_context`."""
        self._vectorize = vectorize
        self._max_concurrent_clients = max_concurrent_clients
        self._jit_compile = jit_compile
        self._announced = set()

    @property
    def falls_back(self) -> bool:
        """Whether a loop may replace a function that cannot be vectorized."""
        return self._vectorize == AUTO

    def looping(self) -> "ClientMap":
        """Returns a copy that vectorizes nothing."""
        return ClientMap(NEVER, self._max_concurrent_clients, self._jit_compile)

    def __call__(
        self,
        function: Callable[[Iterable, bool], list],
        shard: values.Shard,
        result: tff.types.Type,
        name: str,
    ) -> tuple[tuple[values.Leaf, ...], bool]:
        """Applies a function to the clients of a shard.

        Args:
            function: A function from the leaves of a client's value, and whether the client is
                computed alone, to the leaves of its result.
            shard: The clients and their leaves.
            result: The type of a client's result.
            name: The function's name in the log.

        Returns:
            The leaves of `{result}@CLIENTS`, and whether the function was vectorized.
        """

        def call(leaves, alone=False):
            return [values.as_tensor(leaf) for leaf in function(leaves, alone)]

        result_types = values.leaf_types(result)
        reason = self._not_vectorizable(shard, result_types)
        if reason is None:
            try:
                stacks = self._vectorized(call, shard)
            except Exception as error:  # TensorFlow's rules fail in many ways
                reason = str(error).split("\n", 1)[0][:_REASON_LENGTH]
            else:
                self._announce(name, shard.device, "vectorized over clients")
                return tuple(map(values.Stacked, stacks)), True
        if self._vectorize == ALWAYS:
            raise vectorization.NotVectorizableError(
                f"{name} cannot be vectorized, but vectorize={ALWAYS!r} requires it: {reason}"
            )
        self._announce(name, shard.device, f"a loop over clients ({reason})")
        return self._looped(call, shard, result_types), False

    def _not_vectorizable(self, shard, result_types) -> str | None:
        """Returns the reason why vectorization is not even tried, or `None`."""
        if self._vectorize == NEVER:
            return f"vectorize={NEVER!r}"
        if any(isinstance(leaf, values.Ragged) for leaf in shard.leaves):
            return "shapes differ by client"
        if any(isinstance(leaf, values.Listed) for leaf in shard.leaves):
            return "large results of a loop"
        stacks = [leaf.tensor for leaf in shard.leaves if isinstance(leaf, values.Stacked)]
        if any(isinstance(kind, tff.types.SequenceType) for kind in result_types) or any(
            stack.dtype == tf.variant for stack in stacks
        ):
            return "sequences"
        return None

    def _vectorized(self, call, shard) -> list[tf.Tensor]:
        stacks = [tensor for leaf in shard.leaves for tensor in leaf.stacks()]

        def one(*rows):
            rows = iter(rows)
            return call(leaf.of(rows) for leaf in shard.leaves)

        def vectorized(size, *stacks):
            return vectorization.vectorize(function, size, stacks)

        specs = [tf.TensorSpec(stack.shape[1:], stack.dtype) for stack in stacks]
        with pfor_rules.grouped_convolutions(devices.is_gpu(shard.device)):
            # In separate functions, so that a failure leaves no operations in the graph.
            function = tf.function(one, autograph=False).get_concrete_function(*specs)
            vectorized = tf.function(vectorized, autograph=False, jit_compile=self._jit_compile)
            if self._max_concurrent_clients is None:
                return vectorized(shard.size, *stacks)
            return _in_chunks(vectorized, shard.size, stacks, self._max_concurrent_clients)

    def _looped(self, call, shard, result_types) -> tuple[values.Leaf, ...]:
        columns = [_Column(leaf_type, shard.size) for leaf_type in result_types]

        def body(index, arrays):
            leaves = call((leaf.at(index) for leaf in shard.leaves), alone=True)
            cells = [
                cell
                for column, leaf in zip(columns, leaves, strict=True)
                for cell in column.cells(leaf)
            ]
            written = zip(arrays, cells, strict=True)
            return index + 1, [array.write(index, cell) for array, cell in written]

        index, arrays = tf.while_loop(
            lambda index, _: index < shard.size,
            body,
            (tf.constant(0), [array for column in columns for array in column.arrays]),
            parallel_iterations=self._max_concurrent_clients or len(os.sched_getaffinity(0)),
        )
        forbid_unsafe_concurrency(index.op)
        arrays = iter(arrays)
        return tuple(column.leaf(arrays, shard) for column in columns)

    def _announce(self, name, device, method):
        choice = name[:_REASON_LENGTH], device, method
        if choice not in self._announced:
            self._announced.add(choice)
            absl.logging.info("Client work %s on %s: %s.", *choice)


class _Column:
    """The tensor arrays in which a loop collects one leaf of the clients' results."""

    def __init__(self, leaf_type: tff.types.Type, size: tf.Tensor):
        spec = values.tensor_spec(leaf_type)
        self._rank = values.rank(leaf_type) if values.may_differ(leaf_type) else None
        if self._rank is None:
            self.arrays = [tf.TensorArray(spec.dtype, size, element_shape=spec.shape)]
        else:  # elements, whose number may differ, and shapes
            self.arrays = [
                tf.TensorArray(spec.dtype, size, element_shape=[None], infer_shape=False),
                tf.TensorArray(tf.int64, size, element_shape=[self._rank]),
            ]

    def cells(self, leaf) -> list[tf.Tensor]:
        """Returns the tensors to write into the arrays for a client."""
        if self._rank is None:
            return [leaf]
        shape = tf.shape(leaf, out_type=tf.int64)
        filled = tf.pad(shape, [[0, self._rank - tf.size(shape)]], constant_values=-1)
        return [tf.reshape(leaf, [-1]), tf.ensure_shape(filled, [self._rank])]

    def leaf(self, arrays: Iterator[tf.TensorArray], shard: values.Shard) -> values.Leaf:
        """Returns the leaf of all clients from the arrays after the loop."""
        if self._rank is None:
            array = next(arrays)
            if array.element_shape.num_elements() < _LARGE or devices.is_gpu(shard.device):
                return values.Stacked(array.stack())
            return values.Listed(array, shard.size)
        return values.Ragged.make(next(arrays).concat(), next(arrays).stack())


def _in_chunks(function, size, stacks, length) -> list[tf.Tensor]:
    """Calls a function of stacks on at most `length` rows at a time."""
    num_chunks = (size + length - 1) // length
    specs = [tf.TensorSpec([None, *stack.shape[1:]], stack.dtype) for stack in stacks]
    outputs = function.get_concrete_function(tf.TensorSpec([], tf.int32), *specs).structured_outputs
    arrays = [
        tf.TensorArray(output.dtype, num_chunks, element_shape=output.shape, infer_shape=False)
        for output in outputs
    ]

    def body(chunk, arrays):
        rows = slice(chunk * length, tf.minimum(size, (chunk + 1) * length))
        results = function(rows.stop - rows.start, *(stack[rows] for stack in stacks))
        written = zip(arrays, results, strict=True)
        return chunk + 1, [array.write(chunk, result) for array, result in written]

    _, arrays = tf.while_loop(
        lambda chunk, _: chunk < num_chunks, body, (0, arrays), parallel_iterations=1
    )
    return [array.concat() for array in arrays]


def forbid_unsafe_concurrency(loop: tf.Operation) -> None:
    """Makes a loop over clients sequential if its body normalizes an unknown number of channels."""
    body = loop.graph._get_function(loop.get_attr("body").name).graph
    if any(map(_has_unknown_channels, _operations(body, set()))):
        loop._set_attr("parallel_iterations", tf.compat.v1.AttrValue(i=1))


def _has_unknown_channels(operation) -> bool:
    if operation.type not in _NORMALIZATION_INPUTS:
        return False
    positions = _NORMALIZATION_INPUTS[operation.type]
    images, scale = (operation.inputs[position].shape for position in positions)
    channels = operation.get_attr("data_format").index(b"C")
    known = [shape[axis] for shape, axis in ((images, channels), (scale, 0)) if shape.rank]
    return all(number is None for number in known)


def _operations(graph, seen: set[str]) -> Iterator[tf.Operation]:
    """Yields the operations of a graph and of the functions it calls, each function once."""
    for operation in graph.get_operations():
        yield operation
        for name in set(_callees(operation)) - seen:
            seen.add(name)
            if (function := graph._get_function(name)) is not None:
                yield from _operations(function.graph, seen)


def _callees(operation) -> list[str]:
    """Returns the names of the functions that an operation calls or has as attributes."""
    if operation.graph._is_function(operation.type):
        return [operation.type]
    functions = []
    for attribute in operation.op_def.attr:
        if attribute.type == "func":
            functions.append(operation.get_attr(attribute.name))
        elif attribute.type == "list(func)":
            functions += operation.get_attr(attribute.name)
    return [function.name for function in functions]
