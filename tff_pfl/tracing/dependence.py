"""Finds the arguments that a function's result depends on."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tff_pfl.tracing.equality import elementwise_equality


def leaves_in_use(fn: Callable[..., Any], first: Any, *others: Any) -> list[bool]:
    """Returns whether the result depends on each tensor of the first argument.

    Args:
        fn: A function of pure TensorFlow.
        first: A structure of `tf.TensorSpec`s, the first argument; its order is that of `tf.nest`.
        *others: The other arguments, likewise.
    """
    traced = tf.function(elementwise_equality()(fn), autograph=False)
    graph = traced.get_concrete_function(first, *others).graph
    found, waiting = set(), [tensor.op for tensor in graph.outputs]
    while waiting:
        operation = waiting.pop()
        if operation not in found:
            found.add(operation)
            waiting += [tensor.op for tensor in operation.inputs] + list(operation.control_inputs)
    return [tensor.op in found for tensor in graph.inputs[: len(tf.nest.flatten(first))]]
