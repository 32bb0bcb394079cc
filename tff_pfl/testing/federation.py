"""A federation that runs in an instant: images of 4x4 pixels, 3 classes."""

import functools

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl import models
from tff_pfl.local import Examples, LocalTraining, examples_type

IMAGE_SHAPE = (4, 4, 1)
NUM_CLASSES = 3
# All clients have this many rows, some of them padding, so that cohorts of a size share a graph.
CAPACITY = 12
# Floating-point inputs can be NaN.
EXAMPLES_TYPE = examples_type(IMAGE_SHAPE, np.float32)


@functools.cache
def tiny_model() -> models.Model:
    """Builds a perceptron with two layers, `dense1` and `head`."""
    return models.build("mlp", IMAGE_SHAPE, NUM_CLASSES, hidden=(5,))


@functools.cache
def tiny_normalized_model() -> models.Model:
    """Builds the same model with a normalisation, `norm`, after the first layer."""

    def network():
        return tf.keras.Sequential(
            [
                tf.keras.layers.Flatten(input_shape=IMAGE_SHAPE),
                tf.keras.layers.Dense(5, name="dense1"),
                tf.keras.layers.LayerNormalization(name="norm"),
                tf.keras.layers.ReLU(),
                tf.keras.layers.Dense(NUM_CLASSES, name="head"),
            ]
        )

    return models.from_keras(network, input_shape=IMAGE_SHAPE, preprocess=lambda x: x / 255)


def tiny_local(learning_rate: float = 0.5) -> LocalTraining:
    """Makes a local training of two epochs with batches of four examples."""
    return LocalTraining(tff.learning.optimizers.build_sgdm(learning_rate), epochs=2, batch_size=4)


def tiny_examples(size: int, seed: int = 0) -> Examples:
    """Draws random examples, and random rows past them as padding.

    Args:
        size: The number of examples, at most `CAPACITY`.
        seed: The seed of the examples.
    """
    rng = np.random.default_rng([size, seed])
    return Examples(
        x=rng.integers(0, 256, (CAPACITY, *IMAGE_SHAPE)).astype(np.float32),
        y=rng.integers(0, NUM_CLASSES, CAPACITY).astype(np.int32),
        size=np.int32(size),
    )
