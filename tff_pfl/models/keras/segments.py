"""Orders the layers of a Keras model, and cuts it into segments for rematerialisation.

Gradients then compute intermediate values again, segment by segment: Chen et al., "Training deep
nets with sublinear memory cost", 2016.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

# The class of a tf.keras.Model that is made of inputs and outputs.
_Functional = tf.keras.Sequential.__base__


class Segment(NamedTuple):
    """A part of a Keras model, between two of its tensors.

    Attributes:
        layers: The layers whose weights the segment uses.
        masks_before: The number of dropout masks drawn in earlier segments.
    """

    layers: tuple[str, ...]
    masks_before: int


def split(model: tf.keras.Model, number: int, inputs: Any = None) -> list[tf.keras.Model]:
    """Cuts a Keras model into a chain of models that share its layers.

    Cuts are made where the remaining layers take a single tensor without a Keras mask, so that the
    layers' outputs in each part have a similar total size.

    Args:
        model: A functional or sequential model. For one part, any model.
        number: The maximum number of parts. The model may have fewer places for cuts.
        inputs: Inputs of the model, for a sequential model that does not know their shape.

    Raises:
        ValueError: The model is neither functional nor sequential.
    """
    if number == 1:
        return [model]
    if not is_graph(_built(model, inputs)):
        raise ValueError(
            f"Keras model {model.name!r} cannot be cut into segments={number}. Use a functional "
            "or sequential model that does not override call, or set segments to 1."
        )
    cuts, size = _cuts(model)
    last, ends = 0, []
    for left in range(number, 1, -1):
        best = last + (size - last) / left
        later = [before for before in cuts if before > last]
        if later:
            last = min(later, key=lambda before: abs(before - best))
            ends.append([cuts[last]])
    return [
        tf.keras.Model(begin, end)
        for begin, end in zip([model.input, *ends], [*ends, model.output], strict=True)
    ]


def is_graph(model: tf.keras.Model) -> bool:
    """Returns whether a Keras model is a graph of layers that does not override `call`."""
    calls = (_Functional.call, tf.keras.Sequential.call)
    return type(model).call in calls and bool(getattr(model, "inputs", None))


def called(model: tf.keras.Model, inputs: Any, num_masks: Callable[[], int]) -> tuple[Any, int]:
    """Calls a model in training, and counts the dropout masks that were drawn only to build it.

    A sequential model without an input shape is built at its first call, and draws masks for it.

    Returns:
        `(outputs, number of masks)`. Parts of the model must not draw the same masks again.
    """
    was_graph, before = is_graph(model), num_masks()
    outputs = model(inputs, training=True)
    if was_graph or not is_graph(model):
        return outputs, 0
    first = num_masks() - before
    model(inputs, training=True)
    return outputs, first - (num_masks() - before - first)


def _built(model, inputs) -> tf.keras.Model:
    """Makes a sequential model without an input shape a graph of layers that takes the inputs."""
    if type(model) is tf.keras.Sequential and not is_graph(model) and hasattr(inputs, "shape"):
        model(tf.keras.Input(inputs.shape[1:], dtype=inputs.dtype))
    return model


def linear_head(model: tf.keras.Model) -> tf.keras.layers.Dense | None:
    """Returns the dense layer that ends a model, also in nested models, or `None`."""
    if not is_graph(model) or len(model.outputs) != 1:
        return None
    layer = model.layers[-1]
    is_output = len(layer.inbound_nodes) == 1 and layer.inbound_nodes[0].outputs is model.outputs[0]
    if not is_output:
        return None
    if isinstance(layer, tf.keras.Model):
        return linear_head(layer) if len(layer.inputs) == 1 else None
    is_dense = getattr(type(layer), "call", None) is tf.keras.layers.Dense.call
    is_linear = is_dense and layer.activation is tf.keras.activations.linear
    return layer if is_linear and len(layer.input.shape) == 2 else None


def without_head(model: tf.keras.Model, inputs: Any = None) -> tf.keras.Model:
    """Returns the part of a model, which takes `inputs`, before its `linear_head`."""
    head = _built(model, inputs).layers[-1]
    (features,) = head.inbound_nodes[0].keras_inputs
    if isinstance(head, tf.keras.Model):
        features = without_head(head)(features)
    return tf.keras.Model(model.input, features)


def _cuts(model):
    """Finds the tensors that are the only input of all later layers.

    Returns:
        `(tensors, size)`: the tensors by the total size of the outputs up to each, and the total
        size of all outputs.
    """
    nodes = [node for _, group in sorted(model._nodes_by_depth.items())[::-1] for node in group]
    nodes.sort(key=lambda node: not node.is_input)
    last_use = {id(tensor): len(nodes) for tensor in model.outputs}
    for index, node in reversed(list(enumerate(nodes))):
        for tensor in node.keras_inputs:
            last_use.setdefault(id(tensor), index)
    cuts, waiting, size = {}, [], 0
    num_inputs = sum(node.is_input for node in nodes)
    for index, node in enumerate(nodes):
        outputs = tf.nest.flatten(node.outputs)
        size += sum(math.prod(n or 1 for n in tensor.shape) for tensor in outputs)
        waiting = [t for t in [*waiting, *outputs] if last_use.get(id(t), index) > index]
        # A cut would lose a tensor's Keras mask.
        is_one = len(waiting) == 1 and not hasattr(waiting[0], "_keras_mask")
        if is_one and num_inputs <= index < len(nodes) - 1:
            cuts[size] = waiting[0]
    return cuts, size


def in_turn(applies: Sequence[Callable], segments: Sequence[Segment]) -> Callable:
    """Returns a function that applies segments in turn, with gradients that compute them again.

    The last segment is not computed again, because its gradient follows immediately.

    Args:
        applies: The function of each segment, with the signature that `recomputed` takes.
        segments: The segments.
    """
    *others, last = applies
    layers = [segment.layers for segment in segments]
    steps = [*map(recomputed, others, layers), last]

    def apply(weights, x, **options):
        for step in steps:
            x = step(weights, x, **options)
        return x

    return apply


def recomputed(apply: Callable, layers: tuple[str, ...]) -> Callable:
    """Returns a function whose gradient computes intermediate values again instead of keeping them.

    Args:
        apply: `(weights, x, training, seed) -> outputs`, with one tensor as `x` and as outputs.
        layers: The layers whose weights `apply` reads.
    """

    def applied(weights, x, *, training: bool = False, seed=None):
        own = {name: weights[name] for name in layers}

        def run(tensors, x):
            packed = tf.nest.pack_sequence_as(own, tensors, expand_composites=True)
            parts = {**weights, **packed}
            return apply(parts, x, training=training, seed=seed)

        @tf.custom_gradient
        def forward(x, *tensors):
            outputs = run(*tf.nest.map_structure(tf.stop_gradient, (tensors, x)))
            return outputs, lambda upstream: backward(upstream, x, *tensors)

        def backward(upstream, x, *tensors):
            if x.dtype != tf.bool:
                x = x + tf.cast(_zero_after(upstream), x.dtype)
            has_gradient = x.dtype.is_floating  # Images of bytes have no gradient.
            sources = [x, *tensors] if has_gradient else tensors
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(sources)
                outputs = run(tensors, x)
            gradients = tape.gradient(
                outputs, sources, upstream, unconnected_gradients=tf.UnconnectedGradients.ZERO
            )
            return gradients if has_gradient else [None, *gradients]

        return forward(tf.convert_to_tensor(x), *tf.nest.flatten(own, expand_composites=True))

    return applied


def _zero_after(tensor):
    """Returns a 0 that depends on a tensor in a way that no graph optimization removes.

    Without it, TensorFlow would compute values again too early, or reuse the earlier ones. Control
    dependencies would be lost in vectorization.
    """
    first = tf.reduce_max(tf.abs(tf.reshape(tensor, [-1])[:1]))
    return tf.minimum(first, tf.zeros([], first.dtype))


def from_input_to_output(
    graph: tf.__internal__.FuncGraph,
    inputs: Iterable[tf.Tensor],
    layers: Mapping[int, str],
) -> list[str]:
    """Returns the names of layers, each after the layers on whose outputs its inputs depend.

    Layers that do not depend on each other, such as those of parallel branches, keep their order.

    Args:
        graph: The graph in which the model was called.
        inputs: The inputs of that call.
        layers: The name of the layer of each weight, by the `id` of its handle.
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


def _layers_before(graph, inputs, layer_of) -> dict[str, frozenset]:
    """Returns for each layer that is applied to the inputs all layers that are applied before."""
    # By tensor: the layers of whose weights alone it is a function, and those behind it, if it
    # depends on the inputs.
    of_weights = {
        inner.name: [layer_of[id(outer)]]
        for outer, inner in graph.captures
        if id(outer) in layer_of
    }
    behind: dict[str, frozenset] = {tensor.name: frozenset() for tensor in inputs}
    before: dict[str, frozenset] = {}
    for operation in graph.get_operations():
        given = [tensor.name for tensor in operation.inputs]
        # A function takes weights in the order in which it uses them.
        applied = [layer for name in given for layer in of_weights.get(name, ())]
        results = {tensor.name for tensor in operation.outputs} - behind.keys()
        if behind.keys().isdisjoint(given):
            of_weights |= dict.fromkeys(results - of_weights.keys(), applied)
            continue
        past: frozenset = frozenset().union(*(behind.get(name, ()) for name in given))
        for layer in applied:
            before.setdefault(layer, past - {layer})
            past |= {layer}
        behind |= dict.fromkeys(results, past)
    return before
