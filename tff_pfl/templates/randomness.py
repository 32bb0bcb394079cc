"""Random numbers that no seed of a round controls, found in the graph of a block."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.generators import made_of_shared_draws
from tff_pfl.models.randomness import described, unseeded_operations
from tff_pfl.templates import errors

_TIP = "Tip: take tf.random.stateless_* with a seed, in client work that of the context"


def seeded_computation(
    what: str, fn: Callable[..., Any], *types: tff.types.Type
) -> tff.framework.ConcreteComputation:
    """Traces a function as a `tff.tensorflow.computation` whose random numbers all have seeds.

    Args:
        what: Names the block in errors.
        fn: Pure TensorFlow.
        *types: The types of its arguments.

    Raises:
        RandomnessError: If it draws numbers that differ from run to run; it names the operation.
    """

    @functools.wraps(fn)
    def traced(*args, **kwargs):
        result = fn(*args, **kwargs)
        for name, kind in unseeded_operations(tf.compat.v1.get_default_graph()):
            raise errors.RandomnessError(
                f"{what}: operation {name!r} of type {kind!r} {described(kind)}: a run that is "
                f"resumed or repeated would have others.\n{_TIP}; shuffle a data set with a seed; "
                "have TensorFlow compute what Python would."
            )
        return result

    computation, drawn = made_of_shared_draws(
        lambda: tff.tensorflow.computation(traced, *types), _operations
    )
    if drawn:
        raise errors.RandomnessError(
            f"{what} draws random numbers of NumPy's, or Python's, own generator: they are drawn "
            f"once, where it is traced, and a run that is resumed or repeated would have others.\n"
            f"{_TIP}."
        )
    return computation


def _operations(computation) -> list:
    """Returns the operations of a graph and its functions, without names, which vary by trace."""
    graph = tf.compat.v1.GraphDef()
    tff.framework.ConcreteComputation.get_proto(computation).tensorflow.graph_def.Unpack(graph)
    functions = {function.signature.name for function in graph.library.function}
    bodies = [graph.node, *(function.node_def for function in graph.library.function)]
    return sorted([_described(node, functions) for node in nodes] for nodes in bodies)


def _described(node, functions) -> tuple:
    attributes = [
        (name, value.SerializeToString(deterministic=True))
        for name, value in sorted(node.attr.items())
        if not (name.startswith("_") or value.HasField("func") or value.list.func)
    ]
    return "" if node.op in functions else node.op, attributes
