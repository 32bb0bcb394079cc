"""Last layers of models: linear heads, and other outputs for the same features."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tff_pfl.models.model import Model


def linear(layer: Mapping[str, Any], features):
    """Applies a dense layer without activation to `features` of shape `[batch, d]`."""
    outputs = tf.matmul(features, layer["kernel"])
    return outputs + layer["bias"] if "bias" in layer else outputs


def linear_head_shape(model: Model, method: str) -> tuple[int, int]:
    """Returns the number of features and the number of classes of a model's linear head.

    Args:
        model: The model.
        method: The name of the method that needs a linear head, for messages.

    Raises:
        ValueError: The task has no class labels, or the model no features (see `Model`) or a single
            logit.
    """
    model.check_class_logits(method)
    model.check_features(method)
    num_features, num_classes = model.init(0)[model.layers[-1]]["kernel"].shape
    if num_classes < 2:
        raise ValueError(
            f"{method} needs a logit for each class, but model {model.name!r} has one logit. Give "
            "its last layer a unit for each class."
        )
    return num_features, num_classes


def num_classes_of(model: Model, method: str) -> int:
    """Returns the number of classes of a model that has a logit for each.

    Args:
        model: The model.
        method: The name of the method that needs it, for messages.

    Raises:
        ValueError: The task has no class labels, or the model does not tell their number.
    """
    model.check_class_logits(method)
    if model.num_classes is None:
        raise ValueError(
            f"{method} needs the number of classes, but num_classes of model {model.name!r} is "
            "None. Set `num_classes` of the Model."
        )
    return model.num_classes


def on_features(model: Model, init: Callable, outputs: Callable, name: str) -> Model:
    """Returns a model with further layers, and with other outputs for the model's features.

    Args:
        model: A model with features.
        init: `(seed) -> weights`, with the layers of the model and others.
        outputs: `(weights, features) -> outputs`.
        name: The ending of the new model's name.
    """

    def apply(weights, x, **options):
        return outputs(weights, model.features(weights, x, **options))

    def forward(weights, x, **options):
        found = model.forward(weights, x, **options)
        return found._replace(outputs=outputs(found.weights, found.features))

    def training_pass(weights, x, **options):
        found = forward(weights, x, **options)
        return found.outputs, found.weights

    return dataclasses.replace(
        model,
        init=init,
        apply=apply,
        forward=model.forward and forward,
        training_pass=model.training_pass and training_pass,
        name=f"{model.name}_{name}",
    )
