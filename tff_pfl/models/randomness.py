"""Operations whose results no argument determines."""

from collections.abc import Iterator

import tensorflow as tf

_PYTHON_CODE = ("EagerPyFunc", "PyFunc", "PyFuncStateless")
# Random numbers of the machine, and of `tf.random.Generator`, whose state is not an argument.
_OF_NO_SEED = ("NonDeterministicInts", "RngReadAndSkip", "StatefulRandomBinomial", *_PYTHON_CODE)


def unseeded_operations(graph: tf.Graph) -> Iterator[tuple[str, str]]:
    """Finds operations, also in functions, whose results no argument determines.

    These are operations with a generator of their own, which goes on from call to call with or
    without a seed (`tf.random.uniform` and the like); data sets that are shuffled without a seed;
    `tf.random.Generator`; and Python code, as in `tf.numpy_function`.

    Yields:
        `(name, type)` of each operation.
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


def described(kind: str) -> str:
    """Describes what an operation of a type does, for messages."""
    does = (
        "runs Python code, whose results" if kind in _PYTHON_CODE else "draws random numbers that"
    )
    return f"{does} no seed of the round controls"


def _has_own_generator(op, node) -> bool:
    if op.name in _OF_NO_SEED:
        return True
    if op.name in ("FractionalMaxPool", "FractionalAvgPool"):  # with a seed, always the same
        return not (node.attr["seed"].i or node.attr["seed2"].i)
    seeds = {"seed", "seed2"} <= {attribute.name for attribute in op.attr}
    # Recurrent layers have seeds for a dropout that Keras does not use.
    return op.is_stateful and seeds and not op.name.startswith("CudnnRNN")


def _has_no_seed(op, node, constants) -> bool:
    """Returns whether its seeds are inputs, and both are 0, which means none to TensorFlow."""
    arguments = [argument.name for argument in op.input_arg]
    if not {"seed", "seed2"} <= set(arguments):
        return False
    seeds = [node.input[arguments.index(name)].partition(":")[0] for name in ("seed", "seed2")]
    return all(
        seed in constants and not tf.make_ndarray(constants[seed].attr["value"].tensor)
        for seed in seeds
    )
