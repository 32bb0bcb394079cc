"""Lets client work depend on whether a runtime computes each client alone.

Clients that are computed together make the same number of steps, and so skip steps that only the
largest needs. The graph runtime knows whether they are when it imports client work, and then
replaces each choice that `alone_or` marked.
"""

import tensorflow as tf

_MARK = "_tff_pfl_alone"


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


def choose(nodes, alone: bool) -> None:
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


def is_marked(computation) -> bool:
    """Returns whether a TFF `Computation` message has marked choices."""
    return _MARK.encode() in computation.tensorflow.graph_def.value
