"""Client work that must not run for two clients at the same time.

TensorFlow's oneDNN kernels of `FusedBatchNorm` and of its gradient keep the number of channels of a
call in the kernel, which all clients of a loop share. Calls at the same time with different numbers
of channels give wrong results, and write beyond their memory. Keras' `LayerNormalization` is such
a normalization, whose channels are the rows of its input.
"""

from collections.abc import Iterator

import tensorflow as tf

_KERNELS = ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
# The inputs, by their position: what is normalized, and a number for each channel.
_INPUTS = {name: (0, 1) for name in _KERNELS} | {
    name.replace("Norm", "NormGrad"): (1, 2) for name in _KERNELS
}


def one_at_a_time_where_needed(loop: tf.Operation) -> None:
    """Takes the concurrency from a loop over clients whose body must not have it."""
    body = loop.graph._get_function(loop.get_attr("body").name).graph
    if any(map(_has_channels_that_may_differ, _operations(body, set()))):
        loop._set_attr("parallel_iterations", tf.compat.v1.AttrValue(i=1))


def _has_channels_that_may_differ(operation) -> bool:
    if operation.type not in _INPUTS:
        return False
    images, scale = (operation.inputs[position].shape for position in _INPUTS[operation.type])
    channels = operation.get_attr("data_format").index(b"C")
    known = [shape[axis] for shape, axis in ((images, channels), (scale, 0)) if shape.rank]
    return all(number is None for number in known)


def _operations(graph, seen: set[str]) -> Iterator[tf.Operation]:
    """Those of a graph and of all functions it calls, these once."""
    for operation in graph.get_operations():
        yield operation
        for name in set(_callees(operation)) - seen:
            seen.add(name)
            if (function := graph._get_function(name)) is not None:
                yield from _operations(function.graph, seen)


def _callees(operation) -> list[str]:
    """The functions of an operation's attributes, or that it is a call of."""
    if operation.graph._is_function(operation.type):
        return [operation.type]
    functions = []
    for attribute in operation.op_def.attr:
        if attribute.type == "func":
            functions.append(operation.get_attr(attribute.name))
        elif attribute.type == "list(func)":
            functions += operation.get_attr(attribute.name)
    return [function.name for function in functions]
