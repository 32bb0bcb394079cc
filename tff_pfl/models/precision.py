"""Mixed precision: layers that compute in bfloat16, with weights in float32."""

import contextlib
import functools
from unittest import mock

import tensorflow as tf

FLOAT32, BFLOAT16 = "float32", "bfloat16"
COMPUTE_TYPES = (FLOAT32, BFLOAT16)

# Their statistics are sums over many values, of which bfloat16 has too few digits.
_NORMALIZATION = (tf.keras.layers.GroupNormalization, tf.keras.layers.LayerNormalization)


@contextlib.contextmanager
def computing_in(compute_type: str):
    """Inside, Keras layers are built that compute, and ask for weights, in a type.

    Those of normalisation, and those that are given a `dtype`, have their own. Every layer casts
    its inputs to its type.

    Args:
        compute_type: One of `COMPUTE_TYPES`; with float32, nothing is changed.
    """
    if compute_type == FLOAT32:
        yield
        return
    before = tf.keras.mixed_precision.global_policy()
    with contextlib.ExitStack() as stack:
        for layer in _NORMALIZATION:
            stack.enter_context(mock.patch.object(layer, "__init__", _in_float32(layer.__init__)))
        stack.callback(tf.keras.mixed_precision.set_global_policy, before)
        tf.keras.mixed_precision.set_global_policy(compute_type)
        yield


def _in_float32(init):
    @functools.wraps(init)
    def init_in_float32(layer, *args, **kwargs):
        init(layer, *args, **{"dtype": FLOAT32} | kwargs)

    return init_in_float32


def in_types(weight: tf.Tensor, compute_type: str) -> dict:
    """A weight by the type that a layer asks for it in; for other types, as it is, under `None`."""
    by_type = {None: weight, weight.dtype: weight}
    if weight.dtype == tf.float32:
        by_type[tf.as_dtype(compute_type)] = tf.cast(weight, compute_type)
    return by_type
