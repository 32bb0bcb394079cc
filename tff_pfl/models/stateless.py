"""Dropout as a function of a seed, so that a round is a pure function."""

import contextlib
import threading
from collections.abc import Callable, Iterator

import tensorflow as tf

_dropout_of_keras = tf.keras.layers.Dropout.call


class _Thread(threading.local):
    dropout = None  # what Dropout layers call in this thread; `None`: Keras's own


_thread = _Thread()


def _call(layer, inputs, training=None):
    return (_thread.dropout or _dropout_of_keras)(layer, inputs, training)


# Set for good: other threads may build Keras models while a pure model is traced.
tf.keras.layers.Dropout.call = _call


@contextlib.contextmanager
def stateless_dropout(seed: tf.Tensor | None, calls_before: int = 0) -> Iterator[Callable]:
    """Has the Dropout layers of Keras draw their masks from `seed`, in this thread and block.

    Each layer has masks of its own. They are drawn in float32, and so are the same whatever type
    the layer computes in.

    By itself, a Dropout layer draws from a generator that is a variable of the layer, or from an
    operation with a state of its own; a pure function can have neither.

    Args:
        seed: `int32[2]`, or `None` where the model is not called in training.
        calls_before: Number of masks drawn before, in other calls for the same model.

    Yields:
        A function that returns the number of masks drawn by now, those before included.
    """
    layers_called = calls_before

    def dropout(layer, inputs, training):
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

    before, _thread.dropout = _thread.dropout, dropout
    try:
        yield lambda: layers_called
    finally:
        _thread.dropout = before
