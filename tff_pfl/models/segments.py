"""Rematerialisation: gradients for which what a model computed is computed again, in segments.

Chen et al., "Training deep nets with sublinear memory cost", 2016.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

# The class that tf.keras.Model becomes where it is given inputs and outputs.
_Functional = tf.keras.Sequential.__base__


class Segment(NamedTuple):
    """A part of a Keras model, between two of its tensors.

    Attributes:
        layers: The layers whose weights it has.
        masks_before: How many dropout masks are drawn in the segments before it.
    """

    layers: tuple[str, ...]
    masks_before: int


def split(model: tf.keras.Model, number: int) -> list[tf.keras.Model]:
    """Cuts a Keras model into models that share its layers and follow each other.

    It is cut where the rest takes a single tensor, without a mask, such that the layers' outputs in
    each part have about as many numbers.

    Args:
        model: Functional, or sequential with a known input shape; for one part, any.
        number: The most parts; there may be fewer cuts.

    Raises:
        ValueError: If the model is of another kind.
    """
    if number == 1:
        return [model]
    if not is_graph(model):
        raise ValueError(
            f"Keras model {model.name!r} cannot be cut into segments={number}: that takes a "
            "functional model, or a sequential one whose first layer has an input_shape, without a "
            "call of its own. Make it one, or set segments to 1."
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
    """Returns whether a Keras model is the graph of its layers, without a `call` of its own."""
    calls = (_Functional.call, tf.keras.Sequential.call)
    return type(model).call in calls and bool(getattr(model, "inputs", None))


def _cuts(model):
    """Finds the tensors that are all that later layers take.

    Returns:
        `(tensors by the number of outputs up to each, number of all outputs)`.
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
        is_one = len(waiting) == 1 and not hasattr(waiting[0], "_keras_mask")  # it would be lost
        if is_one and num_inputs <= index < len(nodes) - 1:
            cuts[size] = waiting[0]
    return cuts, size


def in_turn(applies: Sequence[Callable], segments: Sequence[Segment]) -> Callable:
    """Applies segments one after the other, with gradients that compute them again.

    The last is not computed again: its gradient comes next.

    Args:
        applies: For each segment a function as `recomputed` takes.
        segments: The segments.
    """
    *others, last = applies
    layers = [segment.layers for segment in segments]
    steps = [*map(recomputed, others, layers), last]

    def apply(weights, x, *, training: bool = False, seed=None):
        for step in steps:
            x = step(weights, x, training=training, seed=seed)
        return x

    return apply


def recomputed(apply: Callable, layers: tuple[str, ...]) -> Callable:
    """Returns a function whose gradient computes intermediate values again instead of keeping them.

    Args:
        apply: `(weights, x, training, seed) -> outputs`; inputs and outputs are one tensor each.
        layers: The layers whose weights it reads.
    """

    def applied(weights, x, *, training: bool = False, seed=None):
        own = {name: weights[name] for name in layers}

        def run(tensors, x):
            parts = {**weights, **tf.nest.pack_sequence_as(own, tensors)}
            return apply(parts, x, training=training, seed=seed)

        @tf.custom_gradient
        def forward(x, *tensors):
            outputs = run(*tf.nest.map_structure(tf.stop_gradient, (tensors, x)))
            return outputs, lambda upstream: backward(upstream, x, *tensors)

        def backward(upstream, x, *tensors):
            if x.dtype != tf.bool:
                x = x + tf.cast(_zero_after(upstream), x.dtype)
            has_gradient = x.dtype.is_floating  # images as they are stored have none
            sources = [x, *tensors] if has_gradient else tensors
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(sources)
                outputs = run(tensors, x)
            gradients = tape.gradient(
                outputs, sources, upstream, unconnected_gradients=tf.UnconnectedGradients.ZERO
            )
            return gradients if has_gradient else [None, *gradients]

        return forward(tf.convert_to_tensor(x), *tf.nest.flatten(own))

    return applied


def _zero_after(tensor):
    """Returns a 0 that depends on a tensor, which no optimization of graphs finds out.

    Without it, values would be computed again at once, or found to be equal to those before.
    Control dependencies do not survive vectorization.
    """
    first = tf.reduce_max(tf.abs(tf.reshape(tensor, [-1])[:1]))
    return tf.minimum(first, tf.zeros([], first.dtype))
