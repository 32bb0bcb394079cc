"""Mixed precision: layers that compute in bfloat16, with weights in float32."""

import contextlib
import threading
from collections.abc import Iterator

import tensorflow as tf

from tff_pfl.models.errors import KerasModelError

FLOAT32, BFLOAT16 = "float32", "bfloat16"
COMPUTE_TYPES = (FLOAT32, BFLOAT16)

# Their statistics are sums over many values, of which bfloat16 has too few digits.
_NORMALIZATION = (tf.keras.layers.GroupNormalization, tf.keras.layers.LayerNormalization)
# Keeps the inputs of embeddings out of bfloat16, in which 257 is 256.
_MIXED = tf.keras.mixed_precision.Policy("mixed_bfloat16")

_set_policy_of_keras = tf.keras.layers.Layer._set_dtype_policy


class _Thread(threading.local):
    compute_type = None  # of layers that are built in this thread; `None`: Keras's own default


_thread = _Thread()


def _set_policy(layer, dtype):
    if dtype is None and _thread.compute_type is not None:
        dtype = _thread.compute_type
        if isinstance(layer, _NORMALIZATION):
            dtype = FLOAT32
        elif dtype == BFLOAT16 and isinstance(layer, tf.keras.layers.Embedding):
            dtype = _MIXED
    _set_policy_of_keras(layer, dtype)


# Keras's global policy would not do: all threads share it.
tf.keras.layers.Layer._set_dtype_policy = _set_policy


@contextlib.contextmanager
def computing_in(compute_type: str) -> Iterator[None]:
    """Sets the type in which Keras layers compute, if built in this block and thread.

    Layers also ask for weights in this type. Normalisation layers have float32, and layers with a
    `dtype` of their own have that. Every layer casts its inputs to its type, except an embedding,
    which takes whole numbers.

    Args:
        compute_type: One of `COMPUTE_TYPES`. It replaces Keras's global policy.
    """
    before = _thread.compute_type
    _thread.compute_type = compute_type
    try:
        yield
    finally:
        _thread.compute_type = before


def check_whole_numbers(graph: tf.Graph) -> None:
    """Refuses numbers that were rounded to bfloat16 and are then taken as whole ones.

    Raises:
        KerasModelError: It says what helps.
    """
    for operation in graph.get_operations():
        if operation.type != "Cast" or operation.inputs[0].dtype != tf.bfloat16:
            continue
        if operation.outputs[0].dtype.is_integer:
            raise KerasModelError(
                f"Operation {operation.name!r} takes numbers in bfloat16 as whole ones, as an "
                "embedding does, and bfloat16 has not all of those above 256. Give the model whole "
                "numbers: preprocess=lambda x: tf.cast(x, tf.int32)."
            )


def in_types(weight: tf.Tensor, compute_type: str) -> dict:
    """A weight by the type that a layer asks for it in; for other types, as it is, under `None`."""
    by_type = {None: weight, weight.dtype: weight}
    if weight.dtype == tf.float32:
        by_type[tf.as_dtype(compute_type)] = tf.cast(weight, compute_type)
    return by_type
