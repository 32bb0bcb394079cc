"""Dropout whose masks are a function of a seed, so that a round is a pure function."""

import contextlib
from unittest import mock

import tensorflow as tf


@contextlib.contextmanager
def stateless_dropout(seed, calls_before: int = 0):
    """Inside, Keras's dropout layers draw their masks from `seed`, each layer its own.

    They are drawn in float32, and thus the same whatever the layer computes in.

    Dropout draws from a generator that is a variable of the layer, or from an op with a state of
    its own; neither can be had in a pure function. Keras models are built and called in one go
    here (see `tff_pfl.models.keras`), so the layer's `call` is exchanged for that time.

    Args:
        seed: `int32[2]`, or `None` where the model is not called in training.
        calls_before: How many masks were drawn before, in other calls for the same model.

    Yields:
        A function that says how many have been drawn by now, those before included.
    """
    layers_called = calls_before

    def call(layer, inputs, training=None):
        # While a functional model is being built, `training` is a symbolic tensor.
        if not tf.get_static_value(training) or layer.rate == 0:
            return tf.identity(inputs)
        if seed is None:
            raise ValueError(f"Dropout layer {layer.name!r} needs a seed to be used in training.")
        nonlocal layers_called
        layers_called += 1
        dropped = tf.nn.experimental.stateless_dropout(
            tf.cast(inputs, tf.float32),
            layer.rate,
            seed=tf.random.experimental.stateless_fold_in(seed, layers_called),
            noise_shape=layer._get_noise_shape(inputs),
        )
        return tf.cast(dropped, inputs.dtype)

    with mock.patch.object(tf.keras.layers.Dropout, "call", call):
        yield lambda: layers_called
