"""How a function is applied to every client of a shard: vectorized, or in a loop."""

import os
from collections.abc import Callable, Iterable

import absl.logging
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.runtime.graph import concurrency, devices, pfor_rules, values, vectorization

AUTO, ALWAYS, NEVER = "auto", "always", "never"
VECTORIZE = (AUTO, ALWAYS, NEVER)
_REASON_LENGTH = 200


class ClientMap:
    """Applies functions to clients' values; see `create_graph_context` for the choices."""

    def __init__(self, vectorize: str, max_concurrent_clients: int | None, jit_compile: bool):
        self._vectorize = vectorize
        self._max_concurrent_clients = max_concurrent_clients
        self._jit_compile = jit_compile
        self._announced = set()

    @property
    def falls_back(self) -> bool:
        """Whether a loop may take the place of what cannot be vectorized."""
        return self._vectorize == AUTO

    def looping(self) -> "ClientMap":
        """The same, but for that nothing is vectorized."""
        return ClientMap(NEVER, self._max_concurrent_clients, self._jit_compile)

    def __call__(
        self,
        function: Callable[[Iterable], list],
        shard: values.Shard,
        result: tff.types.Type,
        name: str,
    ) -> tuple[tuple[values.Leaf, ...], bool]:
        """The leaves of `{result}@CLIENTS` from those of a shard, and whether they are vectorized.

        Args:
            function: From the leaves of a client's value to those of its result.
            shard: Clients and their leaves.
            result: The type of a client's result.
            name: Of the function, for the log.
        """

        def call(leaves):
            return [values.as_tensor(leaf) for leaf in function(leaves)]

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
                f"{name} cannot be vectorized, as vectorize={ALWAYS!r} demands: {reason}"
            )
        self._announce(name, shard.device, f"a loop over clients ({reason})")
        return self._looped(call, shard, result_types), False

    def _not_vectorizable(self, shard, result_types):
        if self._vectorize == NEVER:
            return f"vectorize={NEVER!r}"
        if any(isinstance(leaf, values.Ragged) for leaf in shard.leaves):
            return "shapes differ by client"
        sequences = [t for t in result_types if isinstance(t, tff.types.SequenceType)]
        if sequences or any(_is_variant(leaf) for leaf in shard.leaves):
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
            # In functions of their own: what fails half-way leaves nothing in the graph.
            function = tf.function(one, autograph=False).get_concrete_function(*specs)
            vectorized = tf.function(vectorized, autograph=False, jit_compile=self._jit_compile)
            if self._max_concurrent_clients is None:
                return vectorized(shard.size, *stacks)
            return _in_chunks(vectorized, shard.size, stacks, self._max_concurrent_clients)

    def _looped(self, call, shard, result_types) -> tuple[values.Leaf, ...]:
        size = shard.size
        ragged = [values.may_differ(leaf_type) for leaf_type in result_types]
        arrays = []
        for leaf_type, is_ragged in zip(result_types, ragged, strict=True):
            spec = values.tensor_spec(leaf_type)
            shape = [None] if is_ragged else spec.shape
            arrays.append(_array(spec.dtype, size, shape, same=not is_ragged))
            if is_ragged:
                arrays.append(_array(tf.int64, size, [values.rank(leaf_type)]))

        def body(index, arrays):
            written = []
            leaves = call(leaf.at(index) for leaf in shard.leaves)
            for leaf, is_ragged, leaf_type in zip(leaves, ragged, result_types, strict=True):
                written += _flattened(leaf, values.rank(leaf_type)) if is_ragged else [leaf]
            return index + 1, [
                array.write(index, value) for array, value in zip(arrays, written, strict=True)
            ]

        index, arrays = tf.while_loop(
            lambda index, _: index < size,
            body,
            (tf.constant(0), arrays),
            parallel_iterations=self._max_concurrent_clients or len(os.sched_getaffinity(0)),
        )
        concurrency.one_at_a_time_where_needed(index.op)
        arrays = iter(arrays)
        return tuple(
            values.Ragged.make(next(arrays).concat(), next(arrays).stack())
            if is_ragged
            else values.Stacked(next(arrays).stack())
            for is_ragged in ragged
        )

    def _announce(self, name, *what):
        what = name[:_REASON_LENGTH], *what
        if what not in self._announced:
            self._announced.add(what)
            absl.logging.info("Client work %s on %s: %s.", *what)


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


def _flattened(leaf, rank) -> list[tf.Tensor]:
    """The elements and the shape, as `Ragged` takes them."""
    shape = tf.shape(leaf, out_type=tf.int64)
    filled = tf.pad(shape, [[0, rank - tf.size(shape)]], constant_values=-1)
    return [tf.reshape(leaf, [-1]), tf.ensure_shape(filled, [rank])]


def _is_variant(leaf) -> bool:
    return isinstance(leaf, values.Stacked) and leaf.tensor.dtype == tf.variant


def _array(dtype, size, shape, same=True) -> tf.TensorArray:
    return tf.TensorArray(dtype, size, element_shape=shape, infer_shape=same)
