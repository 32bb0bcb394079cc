"""Makes Keras layers pure: draws dropout from a seed, and sets the type that layers compute in.

Keras's Dropout layer draws from a variable or from a stateful operation, and the type that layers
compute in is a global setting. `pure_layers` sets both for one block of one thread.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator

import tensorflow as tf

FLOAT32, BFLOAT16 = "float32", "bfloat16"
COMPUTE_TYPES = (FLOAT32, BFLOAT16)

# The statistics of these layers are sums of many values, for which bfloat16 is too imprecise.
_NORMALIZATION = (tf.keras.layers.GroupNormalization, tf.keras.layers.LayerNormalization)
# Does not cast the inputs of embeddings to bfloat16, which would round 257 to 256.
_MIXED = tf.keras.mixed_precision.Policy("mixed_bfloat16")

_dropout_of_keras = tf.keras.layers.Dropout.call
_set_policy_of_keras = tf.keras.layers.Layer._set_dtype_policy


class _Thread(threading.local):
    dropout = None  # The `call` of Dropout layers in this thread; `None`: Keras's default.
    compute_type = None  # The type of layers built in this thread; `None`: Keras's default.


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


# Patched permanently, since other threads may build Keras models while a pure model is traced.
tf.keras.layers.Dropout.call = _call
tf.keras.layers.Layer._set_dtype_policy = _set_policy


@contextlib.contextmanager
def pure_layers(
    seed: tf.Tensor | None, *, masks_before: int = 0, compute_type: str = FLOAT32
) -> Iterator[Callable[[], int]]:
    """Makes Keras layers pure if they are built and called in this block and thread.

    Each call of a Dropout layer draws a new mask, always in float32. Layers compute in
    `compute_type` and request their weights in this type. Normalisation layers compute in float32,
    and layers with a `dtype` in their `dtype`. Layers cast their inputs to their type, except
    embeddings, which take integers.

    Args:
        seed: `int32[2]`, the seed of the masks. `None` if the model is not called in training.
        masks_before: The number of masks drawn before, in other calls for the same model.
        compute_type: One of `COMPUTE_TYPES`. It replaces Keras's global policy.

    Yields:
        A function that returns the number of masks drawn so far, including `masks_before`.
    """
    drawn = masks_before

    def dropout(layer, inputs, training):
        # While a functional model is built, `training` is a symbolic tensor.
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
    """Returns a mapping from requested types to a weight; `None` stands for all other types."""
    by_type = {None: weight, weight.dtype: weight}
    if weight.dtype == tf.float32:
        by_type[tf.as_dtype(compute_type)] = tf.cast(weight, compute_type)
    return by_type
