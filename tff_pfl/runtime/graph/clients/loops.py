"""Applies a function to every client of a shard in a loop of TensorFlow.

Some client work must not run for two clients at the same time. TensorFlow's oneDNN kernels of
`FusedBatchNorm` and its gradient store the number of channels of a call in the kernel, which all
clients of a loop share. Simultaneous calls with different numbers of channels give wrong results
and write beyond their memory. Keras' `LayerNormalization` uses these kernels, with the rows of its
input as channels. Therefore loops with an unknown number of channels run one client at a time.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.runtime.graph import devices, values
from tff_pfl.runtime.graph.clients import client_values
from tff_pfl.runtime.graph.operations import operations
from tff_pfl.tracing.alone import Alone

# The numbers of elements from which CPUs do not stack results of loops.
_LARGE = 1 << 14
_NORMALIZATIONS = ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
# The positions of two inputs: the images, and a vector with a number for each channel.
_NORMALIZATION_INPUTS = {name: (0, 1) for name in _NORMALIZATIONS} | {
    name.replace("Norm", "NormGrad"): (1, 2) for name in _NORMALIZATIONS
}


def looped(
    call: Callable,
    shard: client_values.Shard,
    result_types: Sequence[tff.types.Type],
    limit: int | None,
    listed: bool = True,
) -> tuple[client_values.Leaf, ...]:
    """Loops over the clients of a shard.

    Args:
        call: A function from a client's leaves, and whether it is computed alone, to the leaves of
            its result.
        shard: The shard.
        result_types: The types of the result's leaves.
        limit: The number of clients at a time; `None`: the number of CPU cores.
        listed: Whether large leaves are listed; otherwise they are only summed.
    """
    columns: list[_Column | _Total] = [
        _Column(leaf_type, shard.size)
        if listed or not _can_be_summed(values.tensor_spec(leaf_type), shard)
        else _Total(leaf_type)
        for leaf_type in result_types
    ]

    def body(index, states):
        leaves = call((leaf.at(index) for leaf in shard.leaves), alone=Alone.FULLY)
        added = zip(columns, states, leaves, strict=True)
        return index + 1, [column.add(state, leaf, index) for column, state, leaf in added]

    index, states = tf.while_loop(
        lambda index, _: index < shard.size,
        body,
        (tf.constant(0), [column.start for column in columns]),
        parallel_iterations=limit or devices.num_cores(),
    )
    forbid_unsafe_concurrency(index.op)
    return tuple(column.leaf(state, shard) for column, state in zip(columns, states, strict=True))


def deferred(call, shard, result_types, limit) -> tuple[client_values.Leaf, ...]:
    """Returns the leaves of `looped`, which is called where they are used."""
    graph = tf.compat.v1.get_default_graph()

    def build(listed):
        with graph.as_default(), tf.device(shard.device):
            return looped(call, shard, result_types, limit, listed)

    loop = DeferredLoop(build)
    specs = map(values.tensor_spec, result_types)
    return tuple(
        Deferred(loop, index, _is_large(spec.shape, shard)) for index, spec in enumerate(specs)
    )


class Listed(client_values.Stacked):
    """Large tensors in the array of a loop over clients.

    A stack of models takes as much time as several passes over each model.
    """

    is_list = True

    def __init__(self, array: tf.TensorArray, size: tf.Tensor):
        """Makes a leaf of the first `size` entries of an array."""
        self._array, self._size = array, size

    @functools.cached_property
    def tensor(self) -> tf.Tensor:
        """The stack."""
        with self._array.flow.graph.as_default():
            return self._array.stack()

    def at(self, index):
        """Returns one client's tensor, without a copy."""
        return self._array.read(index)

    def sum(self) -> tf.Tensor:
        """Returns the sum of the tensors, added one by one."""

        def add(index, total):
            return index + 1, total + self._array.read(index)

        start = tf.zeros(self._array.element_shape, self._array.dtype)
        return tf.while_loop(lambda index, _: index < self._size, add, (tf.constant(0), start))[1]


class DeferredLoop:
    """A loop over clients that is built when a leaf of its results is used.

    If only the sums of large leaves are used, the loop does not list these leaves.
    """

    def __init__(self, build: Callable[[bool], Sequence[Any]]):
        """Makes the loop from a function of whether it lists large leaves."""
        self._build = build
        self._leaves: Sequence[Any] = ()
        self._is_listed = False

    @property
    def is_built(self) -> bool:
        """Whether a leaf was used."""
        return bool(self._leaves)

    def leaf(self, index: int, listed: bool) -> client_values.Stacked:
        """Returns a leaf of the loop, which is built again if it must list large leaves now."""
        if not self.is_built or (listed and not self._is_listed):
            self._leaves, self._is_listed = self._build(listed), listed
        return self._leaves[index]


class Deferred(client_values.Stacked):
    """A leaf of a deferred loop."""

    def __init__(self, loop: DeferredLoop, index: int, is_list: bool):
        """Makes the leaf at an index, which is a list if it is large."""
        self._loop, self._index, self.is_list = loop, index, is_list

    @functools.cached_property
    def tensor(self) -> tf.Tensor:
        """The stack."""
        return self._leaf.tensor

    def at(self, index):
        """Returns one client's tensor."""
        return self._leaf.at(index)

    def sum(self) -> tf.Tensor:
        """Returns the sum of the tensors."""
        return self._loop.leaf(self._index, listed=False).sum()

    @property
    def _leaf(self) -> client_values.Stacked:
        return self._loop.leaf(self._index, listed=self.is_list or not self._loop.is_built)


class _Column:
    """The tensor arrays in which a loop collects one leaf of the clients' results."""

    def __init__(self, leaf_type: tff.types.Type, size: tf.Tensor):
        spec = values.tensor_spec(leaf_type)
        self._leaf_type = leaf_type
        self._rank = client_values.rank(leaf_type) if client_values.may_differ(leaf_type) else None
        if self._rank is None:
            self.start = [tf.TensorArray(spec.dtype, size, element_shape=spec.shape)]
        else:  # elements, whose number may differ, and shapes
            self.start = [
                tf.TensorArray(spec.dtype, size, element_shape=[None], infer_shape=False),
                tf.TensorArray(tf.int64, size, element_shape=[self._rank]),
            ]

    def add(self, arrays, leaf, index) -> list[tf.TensorArray]:
        """Writes a client's leaf into the arrays."""
        cells = [leaf]
        if self._rank is not None:
            shape = client_values.row_of_shape(tf.shape(leaf, out_type=tf.int64), self._rank)
            cells = [tf.reshape(leaf, [-1]), shape]
        return [array.write(index, cell) for array, cell in zip(arrays, cells, strict=True)]

    def leaf(self, arrays, shard: client_values.Shard) -> client_values.Leaf:
        """Returns the leaf of all clients from the arrays after the loop."""
        if self._rank is not None:
            elements, shapes = arrays[0].concat(), arrays[1].stack()
            return client_values.Ragged.make(elements, shapes, self._leaf_type)
        if _is_large(arrays[0].element_shape, shard):
            return Listed(arrays[0], shard.size)
        return client_values.Stacked(arrays[0].stack())


class _Total:
    """The sum of one leaf of the clients' results, added one by one."""

    def __init__(self, leaf_type: tff.types.Type):
        self.start = [values.zeros(leaf_type)]

    def add(self, totals, leaf, index) -> list[tf.Tensor]:
        """Adds a client's leaf."""
        del index
        return [totals[0] + leaf]

    def leaf(self, totals, shard: client_values.Shard) -> client_values.Stacked:
        """Returns a stack of one tensor, the sum after the loop."""
        del shard
        return client_values.Stacked(totals[0][tf.newaxis])


def _is_large(shape: tf.TensorShape, shard: client_values.Shard) -> bool:
    """Returns whether tensors of a shape are stacked only where they must be."""
    return shape.num_elements() >= _LARGE and not devices.is_gpu(shard.device)


def _can_be_summed(spec: tf.TensorSpec, shard: client_values.Shard) -> bool:
    """Returns whether a loop adds tensors of a spec, if only their sum is used."""
    return _is_large(spec.shape, shard) and spec.dtype not in (tf.bool, tf.string)


def forbid_unsafe_concurrency(loop: tf.Operation) -> None:
    """Makes a loop over clients sequential if its body normalizes an unknown number of channels."""
    body = loop.graph._get_function(loop.get_attr("body").name).graph
    if any(map(_has_unknown_channels, operations(body))):
        loop._set_attr("parallel_iterations", tf.compat.v1.AttrValue(i=1))


def _has_unknown_channels(operation) -> bool:
    if operation.type not in _NORMALIZATION_INPUTS:
        return False
    positions = _NORMALIZATION_INPUTS[operation.type]
    images, scale = (operation.inputs[position].shape for position in positions)
    channels = operation.get_attr("data_format").index(b"C")
    known = [shape[axis] for shape, axis in ((images, channels), (scale, 0)) if shape.rank]
    return all(number is None for number in known)
