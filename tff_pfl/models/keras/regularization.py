"""The penalties of a Keras model's weights by regularizers, as a function of the weights."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tff_pfl.models.keras.weight_names import layer_and_weight


class Regularized(NamedTuple):
    """A weight that a Keras layer regularizes.

    Attributes:
        layer: The name of its layer.
        weight: The name of the weight.
        penalty: `(tensor) -> float32 scalar`.
    """

    layer: str
    weight: str
    penalty: Callable[[Any], Any]


def regularized_weights(model: tf.keras.Model) -> list[Regularized]:
    """Returns the weights with a regularizer, such as `kernel_regularizer` of a dense layer."""
    found = []
    for layer in model._flatten_layers():
        for loss in layer._callable_losses:
            of_weight = _of_weight(loss)
            if of_weight is not None:
                penalty, weight = of_weight
                found.append(Regularized(*layer_and_weight(weight, model), penalty))
    return found


def has_other_losses(layer: tf.keras.layers.Layer) -> bool:
    """Returns whether a layer, after a call, has losses other than those of regularizers."""
    own = [*layer._losses, *layer._eager_losses]
    return bool(own) or any(_of_weight(loss) is None for loss in layer._callable_losses)


def _of_weight(loss) -> tuple[Callable, tf.Variable] | None:
    """Returns the function and the weight that Keras' `add_weight` has bound into a loss."""
    bound = loss.args[0] if isinstance(loss, functools.partial) and loss.args else None
    is_of_weight = isinstance(bound, functools.partial) and len(bound.args) == 1
    if is_of_weight and isinstance(bound.args[0], tf.Variable):
        return bound.func, bound.args[0]
    return None


def penalty_of(regularized: Sequence[Regularized]) -> Callable[[Any], Any] | None:
    """Returns `(W) -> float32 scalar`, the sum over the regularized weights in `W`, or `None`."""
    if not regularized:
        return None

    def penalty(weights):
        values = [
            own.penalty(weights[own.layer][own.weight])
            for own in regularized
            if own.layer in weights
        ]
        return tf.add_n(values) if values else tf.constant(0.0)

    return penalty
