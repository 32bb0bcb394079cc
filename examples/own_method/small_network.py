"""Defines a model: any Keras model that returns logits."""

import tensorflow as tf

import tff_pfl
from tff_pfl.arguments import ranges


@tff_pfl.MODELS.register("small_network")
@tff_pfl.takes(width=ranges.whole(1))
def small_network(image_shape, num_classes, *, width: int = 16):
    """Builds a network whose `width` is one of `config.model.options`."""
    return tf.keras.Sequential(
        [
            tf.keras.layers.Flatten(input_shape=image_shape),
            tf.keras.layers.Dense(width, "relu", name="hidden"),
            tf.keras.layers.Dense(num_classes, name="head"),
        ]
    )
