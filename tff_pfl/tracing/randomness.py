"""Finds operations whose results are not determined by their arguments."""

from collections.abc import Iterator

import tensorflow as tf

_PYTHON_CODE = ("EagerPyFunc", "PyFunc", "PyFuncStateless")
# The machine's random numbers, `tf.random.Generator` (whose state is no argument), Python code.
_UNSEEDED = ("NonDeterministicInts", "RngReadAndSkip", "StatefulRandomBinomial", *_PYTHON_CODE)


def unseeded_operations(graph: tf.Graph) -> Iterator[tuple[str, str]]:
    """Finds operations, also in functions, whose results are not determined by their arguments.

    These are operations with their own generator, whose state changes with each call even with a
    seed (`tf.random.uniform` and the like); data sets that are shuffled without a seed;
    `tf.random.Generator`; and Python code, as in `tf.numpy_function`.

    Yields:
        The `(name, type)` of each operation.
    """
    for op, node, constants in _operations(graph):
        if _has_own_generator(op, node) or _has_no_seed(op, node, constants):
            yield node.name, node.op


def changed_variables(graph: tf.Graph) -> Iterator[str]:
    """Yields the names of operations that change a `tf.Variable` of a block.

    A block has no order of operations: a change happens only if something depends on it. Functions
    of a graph, in which TensorFlow keeps the order, do not count.
    """
    for node in graph.as_graph_def().node:
        is_change = node.op.startswith(("AssignAddV", "AssignSubV", "ResourceScatter"))
        is_assignment = node.op == "AssignVariableOp" and not node.name.endswith("/Assign")
        if is_change or is_assignment:
            yield node.name


def draws_without_seed(graph: tf.Graph) -> bool:
    """Returns whether operations of a graph that is used once draw random numbers without a seed.

    Then, an operation with its own generator is determined by its seed. Python code does not count,
    because it may read files.
    """
    return any(
        _has_no_seed(op, node, constants)
        or (
            _has_own_generator(op, node)
            and op.name not in _PYTHON_CODE
            and not (node.attr["seed"].i or node.attr["seed2"].i)
        )
        for op, node, constants in _operations(graph)
    )


def nodes(graph: tf.Graph) -> list:
    """Returns all nodes of a graph and of its functions."""
    definition = graph.as_graph_def()
    return [*definition.node, *(n for f in definition.library.function for n in f.node_def)]


def _operations(graph) -> Iterator[tuple]:
    """Yields the definition, the node and the constants beside it of each operation."""
    definition = graph.as_graph_def()
    for nodes in [definition.node, *(f.node_def for f in definition.library.function)]:
        constants = {node.name: node for node in nodes if node.op == "Const"}
        for node in nodes:
            try:
                op = graph.op_def_for_type(node.op)
            except KeyError:  # The node calls a function.
                continue
            yield op, node, constants


def described(kind: str) -> str:
    """Describes an operation of a type, for messages."""
    action = (
        "runs Python code, whose results" if kind in _PYTHON_CODE else "draws random numbers, which"
    )
    return f"{action} the round's seed does not control"


def _has_own_generator(op, node) -> bool:
    if op.name in _UNSEEDED:
        return True
    if op.name in ("FractionalMaxPool", "FractionalAvgPool"):  # Deterministic with a seed.
        return not (node.attr["seed"].i or node.attr["seed2"].i)
    seeds = {"seed", "seed2"} <= {attribute.name for attribute in op.attr}
    # Recurrent layers have seeds for dropout, which Keras does not use.
    return op.is_stateful and seeds and not op.name.startswith("CudnnRNN")


def _has_no_seed(op, node, constants) -> bool:
    """Returns whether the seeds are inputs and both 0, which TensorFlow takes for no seed."""
    arguments = [argument.name for argument in op.input_arg]
    if not {"seed", "seed2"} <= set(arguments):
        return False
    seeds = [node.input[arguments.index(name)].partition(":")[0] for name in ("seed", "seed2")]
    return all(
        seed in constants and not tf.make_ndarray(constants[seed].attr["value"].tensor)
        for seed in seeds
    )
