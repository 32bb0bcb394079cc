"""Keras layers as parts of pure functions: dropout drawn from a seed, computing in bfloat16.

A Dropout layer of Keras draws from a variable or from an operation with a state of its own, and the
type that layers compute in is a global setting. Here both are set for one block of one thread.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator

import tensorflow as tf

FLOAT32, BFLOAT16 = "float32", "bfloat16"
COMPUTE_TYPES = (FLOAT32, BFLOAT16)

# Their statistics are sums over many values, for which bfloat16 has too few digits.
_NORMALIZATION = (tf.keras.layers.GroupNormalization, tf.keras.layers.LayerNormalization)
# Keeps the inputs of embeddings out of bfloat16, in which 257 is 256.
_MIXED = tf.keras.mixed_precision.Policy("mixed_bfloat16")

_dropout_of_keras = tf.keras.layers.Dropout.call
_set_policy_of_keras = tf.keras.layers.Layer._set_dtype_policy


class _Thread(threading.local):
    dropout = None  # called by Dropout layers in this thread; `None`: Keras's own
    compute_type = None  # of layers that are built in this thread; `None`: Keras's own


_thread = _Thread()


def _call(layer, inputs, training=None):
    return (_thread.dropout or _dropout_of_keras)(layer, inputs, training)


def _set_policy(layer, dtype):
    if dtype is None and _thread.compute_type is not None:
        dtype = _thread.compute_type
        if isinstance(layer, _NORMALIZATION):
            dtype = FLOAT32
        elif dtype == BFLOAT16 and isinstance(layer, tf.keras.layers.Embedding):
            dtype = _MIXED
    _set_policy_of_keras(layer, dtype)


# Set for good: other threads may build Keras models while a pure model is traced.
tf.keras.layers.Dropout.call = _call
tf.keras.layers.Layer._set_dtype_policy = _set_policy


@contextlib.contextmanager
def pure_layers(
    seed: tf.Tensor | None, *, masks_before: int = 0, compute_type: str = FLOAT32
) -> Iterator[Callable[[], int]]:
    """Makes Keras layers pure that are built and called in this block and thread.

    Each Dropout layer has masks of its own, drawn in float32 whatever type it computes in. Layers
    also ask for weights in the type they compute in. Normalisation layers compute in float32, and
    layers with a `dtype` of their own in that. Every layer casts its inputs to its type, except an
    embedding, which takes whole numbers.

    Args:
        seed: `int32[2]`, of the masks; `None` where the model is not called in training.
        masks_before: Number of masks drawn before, in other calls for the same model.
        compute_type: One of `COMPUTE_TYPES`. It replaces Keras's global policy.

    Yields:
        A function that returns the number of masks drawn by now, those before included.
    """
    drawn = masks_before

    def dropout(layer, inputs, training):
        # While a functional model is being built, `training` is a symbolic tensor.
        if not tf.get_static_value(training) or layer.rate == 0:
            return tf.identity(inputs)
        if seed is None:
            raise ValueError(f"Dropout layer {layer.name!r} needs a seed to be used in training.")
        nonlocal drawn
        drawn += 1
        dropped = tf.nn.experimental.stateless_dropout(
            tf.cast(inputs, tf.float32),
            layer.rate,
            seed=tf.random.experimental.stateless_fold_in(seed, drawn),
            noise_shape=layer._get_noise_shape(inputs),
        )
        return tf.cast(dropped, inputs.dtype)

    before = _thread.dropout, _thread.compute_type
    _thread.dropout, _thread.compute_type = dropout, compute_type
    try:
        yield lambda: drawn
    finally:
        _thread.dropout, _thread.compute_type = before


def in_types(weight: tf.Tensor, compute_type: str) -> dict:
    """Returns a weight by the type that a layer asks for; under `None`, for all other types."""
    by_type = {None: weight, weight.dtype: weight}
    if weight.dtype == tf.float32:
        by_type[tf.as_dtype(compute_type)] = tf.cast(weight, compute_type)
    return by_type
