"""Finds weights of Keras models by the names of layer and weight."""

import collections
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tff_pfl.models.keras.batch_normalization import statistics_of


def layer_and_weight(variable: tf.Variable, model: tf.keras.Model) -> tuple[str, str]:
    """Returns the names of the layer and the weight of a variable of a Keras model."""
    layer, _, weight = variable.name.removesuffix(":0").rpartition("/")
    if not layer:  # The weight was created before the layer was called.
        layers = model._flatten_layers()
        own = (one for one in layers if any(w is variable for w in one._trainable_weights))
        layer = next(own, model).name
    return layer, weight


def weights_like(
    given: Mapping[str, Mapping[str, Any]] | tf.keras.Model, specs: Mapping, name: str
) -> Mapping[str, Mapping[str, np.ndarray]]:
    """Returns given weights as float32 arrays, in the order of a model's weights.

    Args:
        given: A mapping from layer name to a mapping from weight name to array, or a Keras model,
            whose trainable weights and moving statistics count.
        specs: The `TensorSpec`s of the model's weights, by the same names.
        name: The name of the model, for messages.

    Raises:
        ValueError: Names or shapes differ, or `given` is of another type.
    """
    if isinstance(given, tf.keras.Model):
        trained = [*given.trainable_weights, *statistics_of(given)]
        found = {layer_and_weight(w, given): w.numpy() for w in trained}
    elif isinstance(given, Mapping) and all(isinstance(one, Mapping) for one in given.values()):
        found = {(layer, weight): w for layer in given for weight, w in given[layer].items()}
    else:
        raise ValueError(
            "The weights to start from must be a mapping {layer: {weight: array}} or a Keras "
            f"model, got {type(given).__name__}."
        )
    known = {(layer, weight): spec for layer in specs for weight, spec in specs[layer].items()}
    if found.keys() != known.keys():
        missing, unknown = (
            sorted(map("/".join, names))
            for names in (known.keys() - found.keys(), found.keys() - known.keys())
        )
        raise ValueError(
            f"The weights to start from must have the names of the weights of model {name!r}: "
            f"missing are {missing}, unknown are {unknown}."
        )
    weights = collections.OrderedDict((layer, collections.OrderedDict()) for layer in specs)
    for (layer, weight), spec in known.items():
        value = np.array(found[layer, weight], np.float32)
        if value.shape != tuple(spec.shape):
            raise ValueError(
                f"The weight {layer}/{weight} to start from has the shape {value.shape}, but model "
                f"{name!r} has one of the shape {tuple(spec.shape)}."
            )
        weights[layer][weight] = value
    return weights
