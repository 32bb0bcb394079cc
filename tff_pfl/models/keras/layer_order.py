"""Orders the layers of a Keras model from input to output."""

from collections.abc import Iterable, Mapping

import tensorflow as tf


def from_input_to_output(
    graph: tf.__internal__.FuncGraph,
    inputs: Iterable[tf.Tensor],
    layers: Mapping[tf.Variable, str],
) -> list[str]:
    """Returns the names of layers, each after the layers on whose outputs its inputs depend.

    Layers that do not depend on each other, such as those of parallel branches, keep their order.

    Args:
        graph: The graph in which the model was called.
        inputs: The inputs of that call.
        layers: The name of the layer of each weight, by its `ref()`.
    """
    names = list(dict.fromkeys(layers.values()))
    before = _layers_before(graph, inputs, layers)
    ordered = []
    while names:
        left = set(names)
        name = next(name for name in names if before.get(name, set()).isdisjoint(left))
        ordered.append(name)
        names.remove(name)
    return ordered


def _layers_before(graph, inputs, layers) -> dict[str, frozenset]:
    """Returns for each layer that is applied to the inputs all layers that are applied before."""
    by_handle = {id(weight.deref().handle): name for weight, name in layers.items()}
    # By tensor: the layers of whose weights alone it is a function, and those behind it, if it
    # depends on the inputs.
    of_weights = {
        inner.name: [by_handle[id(outer)]]
        for outer, inner in graph.captures
        if id(outer) in by_handle
    }
    behind = {tensor.name: frozenset() for tensor in inputs}
    before = {}
    for operation in graph.get_operations():
        given = [tensor.name for tensor in operation.inputs]
        # A function takes weights in the order in which it uses them.
        applied = [layer for name in given for layer in of_weights.get(name, ())]
        results = {tensor.name for tensor in operation.outputs} - behind.keys()
        if behind.keys().isdisjoint(given):
            of_weights |= dict.fromkeys(results - of_weights.keys(), applied)
            continue
        past = frozenset().union(*(behind.get(name, ()) for name in given))
        for layer in applied:
            before.setdefault(layer, past - {layer})
            past |= {layer}
        behind |= dict.fromkeys(results, past)
    return before
