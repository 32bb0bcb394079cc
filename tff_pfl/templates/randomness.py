"""Random numbers that no seed of a round controls, found in the graph of a block."""

import functools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tff_pfl.templates import errors


def seeded_only(what: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn`, which fails where it is traced if it draws numbers that differ from run to run.

    Args:
        what: Names the block in errors.
        fn: A function that is traced into the default graph.

    Raises:
        RandomnessError: When it is called; it names the operation.
    """

    @functools.wraps(fn)
    def traced(*args, **kwargs):
        before = _shared_generators()
        result = fn(*args, **kwargs)
        if _shared_generators() != before:
            raise errors.RandomnessError(
                f"{what} draws random numbers of NumPy's, or Python's, own generator: they are "
                "drawn once, where it is traced, and a run that is resumed or repeated would have "
                "others.\nTip: take tf.random.stateless_* with a seed, in client work that of the "
                "context."
            )
        for name, kind in unseeded_operations(tf.compat.v1.get_default_graph()):
            raise errors.RandomnessError(
                f"{what}: operation {name!r} of type {kind!r} draws random numbers that no seed of "
                "the round controls: a run that is resumed or repeated would have others.\n"
                "Tip: take tf.random.stateless_* with a seed, in client work that of the context; "
                "shuffle a data set with a seed."
            )
        return result

    return traced


def _shared_generators():
    """The states of those that all of a process draws from."""
    _, key, *rest = np.random.get_state()
    return random.getstate(), key.tobytes(), rest


def unseeded_operations(graph: tf.Graph) -> Iterator[tuple[str, str]]:
    """`(name, type)` of the operations, also in functions, whose numbers no argument determines.

    These are operations with a generator of their own, which goes on from call to call whether it
    was given a seed or not (`tf.random.uniform` and the like); data sets that are shuffled, or
    drawn, without a seed; and states of generators that are taken from the machine.
    """
    definition = graph.as_graph_def()
    for nodes in [definition.node, *(f.node_def for f in definition.library.function)]:
        constants = {node.name: node for node in nodes if node.op == "Const"}
        for node in nodes:
            try:
                op = graph.op_def_for_type(node.op)
            except KeyError:  # a call of a function
                continue
            if _has_own_generator(op, node) or _has_no_seed(op, node, constants):
                yield node.name, node.op


def _has_own_generator(op, node) -> bool:
    if op.name == "NonDeterministicInts":
        return True
    if op.name in ("FractionalMaxPool", "FractionalAvgPool"):  # with a seed, always the same
        return not (node.attr["seed"].i or node.attr["seed2"].i)
    seeds = {"seed", "seed2"} <= {attribute.name for attribute in op.attr}
    # That of recurrent layers is for their dropout, which Keras does not use.
    return op.is_stateful and seeds and not op.name.startswith("CudnnRNN")


def _has_no_seed(op, node, constants) -> bool:
    """Whether its seeds are inputs, and both are 0, by which TensorFlow means none."""
    arguments = [argument.name for argument in op.input_arg]
    if not {"seed", "seed2"} <= set(arguments):
        return False
    seeds = [node.input[arguments.index(name)].partition(":")[0] for name in ("seed", "seed2")]
    return all(
        seed in constants and not tf.make_ndarray(constants[seed].attr["value"].tensor)
        for seed in seeds
    )
