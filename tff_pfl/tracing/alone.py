"""Lets client work depend on whether a runtime computes each client alone.

Clients that are computed together make the same number of steps, and so skip steps that only the
largest needs. The graph runtime knows whether they are when it imports client work, and then
replaces each choice that `alone_or` and `branch_if_alone` marked.
"""

import enum
from collections.abc import Callable
from typing import Any

import tensorflow as tf


class Alone(enum.IntEnum):
    """How far a runtime computes each client alone."""

    NOT = 0  # All clients make the same steps.
    IN_LOOPS = 1  # Each client makes its own number of steps, beside others.
    FULLY = 2


_MARK = "_tff_pfl_alone"
_CALLS = {"If": "StatefulPartitionedCall", "StatelessIf": "PartitionedCall"}


def alone_or(alone, together) -> tf.Tensor:
    """Returns `alone` where a client is computed alone, and `together` otherwise.

    Both must be right for a client that is computed alone: runtimes other than the graph runtime
    use `together`.
    """
    if tf.executing_eagerly():
        return tf.convert_to_tensor(together)
    chosen = tf.raw_ops.SelectV2(condition=False, t=alone, e=together)
    chosen.op._set_attr(_MARK, tf.compat.v1.AttrValue(b=True))
    return chosen


def branch_if_alone(
    condition: tf.Tensor, shortcut: Callable[[], Any], otherwise: Callable[[], Any]
) -> Any:
    """Returns `shortcut()` if a client is computed alone and meets a condition, or `otherwise()`.

    Both must be right for a client that meets it. Clients that are computed together would compute
    both, so that they take `otherwise`.
    """
    if tf.executing_eagerly():
        return otherwise()
    result = tf.cond(condition, shortcut, otherwise)
    (branch,) = {tensor.op.inputs[0].op for tensor in tf.nest.flatten(result)}
    branch._set_attr(_MARK, tf.compat.v1.AttrValue(b=True))
    return result


def choose(nodes, alone: Alone) -> None:
    """Makes all marked choices among the `NodeDef`s of a graph or function.

    TFF's forms are optimized: some choices in them were made, all for `together`.
    """
    for node in nodes:
        if _MARK in node.attr and node.op == "SelectV2":
            _, if_alone, if_together, *waits = node.input
            dtype = node.attr["T"].type
            node.op = "Identity"
            node.input[:] = [if_alone if alone else if_together, *waits]
            node.attr.clear()
            node.attr["T"].type = dtype
        elif _MARK in node.attr and node.op in _CALLS and alone is not Alone.FULLY:
            node.op = _CALLS[node.op]
            del node.input[0]
            node.attr["f"].CopyFrom(node.attr["else_branch"])
            for name in set(node.attr) - {"Tin", "Tout", "f"}:
                del node.attr[name]


def is_marked(computation) -> bool:
    """Returns whether a TFF `Computation` message has marked choices."""
    return _MARK.encode() in computation.tensorflow.graph_def.value
