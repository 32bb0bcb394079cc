"""Traces pure functions as TFF computations whose random numbers all have seeds."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.arguments.names import UnknownNameError
from tff_pfl.arguments.tracebacks import place
from tff_pfl.tracing import origins
from tff_pfl.tracing.equality import elementwise_equality
from tff_pfl.tracing.errors import BlockTracingError, LabelsError, RandomnessError, TemplateError
from tff_pfl.tracing.generators import uses_global_randomness
from tff_pfl.tracing.randomness import changed_variables, described, unseeded_operations


def trace(block: str, fn: Callable[..., Any], *types: tff.types.Type) -> tff.Computation:
    """Traces `fn` as a `tff.tensorflow.computation` of arguments of the given types.

    Inside `fn`, `==` compares tensors element by element.

    Raises:
        BlockTracingError: `fn` fails; the message names the block and the types of its arguments.
        LabelsError: `fn` computes the loss of labels that do not fit.
        RandomnessError: `fn` draws random numbers that no seed controls.
        TemplateError: `fn` changes a `tf.Variable`.
    """
    try:
        computation = _seeded_computation(block, elementwise_equality()(fn), *types)
        if not isinstance(computation, tff.Computation):
            raise TypeError("it takes arguments, but is called without any")
        return computation
    except (TemplateError, UnknownNameError, LabelsError):
        raise
    except Exception as error:
        arguments = "".join(f"\n  {t}" for t in types) or " none"
        weighted = _WEIGHTED * ("sample_weight=" in arguments)
        raise BlockTracingError(
            f"{block} failed while it was traced: {type(error).__name__}: {error}"
            f"{place(error)}\n"
            f"It was traced with arguments of the types:{arguments}\n"
            "Tip: a block is pure TensorFlow, with its arguments in the order of its docstring. "
            f"It may use Python and NumPy values from outside, but no eager tensors.{weighted}"
        ) from error


_WEIGHTED = (
    " The data set has weights, so y is a mapping of 'label' and 'sample_weight': batch.labels and "
    "examples.labels are the labels alone."
)
_TIP = "Tip: use tf.random.stateless_* with a seed, in client work the seed of the context"


def _seeded_computation(
    block: str, fn: Callable[..., Any], *types: tff.types.Type
) -> tff.framework.ConcreteComputation:
    """Traces a function, and checks that all of its random numbers have seeds.

    Args:
        block: The name of the block in errors.
        fn: A function of pure TensorFlow.
        *types: The types of its arguments.

    Raises:
        RandomnessError: `fn` draws numbers that differ from run to run.
    """
    places: list[origins.Places] = []

    @functools.wraps(fn)
    def traced(*args, **kwargs):
        result = fn(*args, **kwargs)
        graph = tf.compat.v1.get_default_graph()
        places.append(origins.places_in(graph, __file__))
        for name in changed_variables(graph):
            raise TemplateError(
                f"{block}: operation {name!r} changes a tf.Variable, which would be lost. Compute "
                "with tensors, and return what lasts as state."
            )
        for name, kind in unseeded_operations(graph):
            raise RandomnessError(
                f"{block}: operation {name!r} of type {kind!r} {described(kind)}: a run that is "
                f"resumed or repeated would have others.\n{_TIP}; shuffle data sets with a seed; "
                "compute with TensorFlow instead of Python."
            )
        return result

    computation, drawn = uses_global_randomness(
        lambda: tff.tensorflow.computation(traced, *types), _operations
    )
    if drawn:
        raise RandomnessError(
            f"{block} draws random numbers from NumPy's or Python's own generator: they are drawn "
            f"once, while it is traced, and a run that is resumed or repeated would have others.\n"
            f"{_TIP}."
        )
    return computation if not places else origins.with_origins(computation, block, places[0])


def _operations(computation) -> list:
    """Returns the operations of a graph and its functions, without names, which vary."""
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
