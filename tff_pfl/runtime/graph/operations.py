"""Finds operations of graphs, also in the functions that they call, and what they depend on."""

from collections.abc import Collection, Iterator

import tensorflow as tf


def operations(graph: tf.Graph) -> Iterator[tf.Operation]:
    """Yields the operations of a graph and of the functions it calls, each function once.

    Raises:
        LookupError: The graph does not have a function that it calls.
    """
    yield from _operations(graph, set())


def depends_on(operation: tf.Operation, sources: Collection[tf.Operation]) -> bool:
    """Returns whether an operation is one of `sources` or depends on one, in their graph."""
    seen, waiting = set(), [operation]
    while waiting:
        operation = waiting.pop()
        if operation in sources:
            return True
        if operation not in seen:
            seen.add(operation)
            waiting += [tensor.op for tensor in operation.inputs] + operation.control_inputs
    return False


def _operations(graph, seen: set[str]) -> Iterator[tf.Operation]:
    for operation in graph.get_operations():
        yield operation
        for name in set(_callees(operation)) - seen:
            seen.add(name)
            function = graph._get_function(name)
            if function is None:
                raise LookupError(f"{operation.name} calls {name}, which its graph does not have.")
            yield from _operations(function.graph, seen)


def _callees(operation) -> list[str]:
    """Returns the names of the functions that an operation calls or has as attributes."""
    if operation.graph._is_function(operation.type):
        return [operation.type]
    functions = []
    for attribute in operation.op_def.attr:
        if attribute.type == "func":
            functions.append(operation.get_attr(attribute.name))
        elif attribute.type == "list(func)":
            functions += operation.get_attr(attribute.name)
    return [function.name for function in functions]
