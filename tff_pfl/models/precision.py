"""Mixed precision: layers that compute in bfloat16, with weights in float32."""

import contextlib
import functools
from unittest import mock

import tensorflow as tf

from tff_pfl.models.errors import KerasModelError

FLOAT32, BFLOAT16 = "float32", "bfloat16"
COMPUTE_TYPES = (FLOAT32, BFLOAT16)

# Their statistics are sums over many values, of which bfloat16 has too few digits.
_NORMALIZATION = (tf.keras.layers.GroupNormalization, tf.keras.layers.LayerNormalization)


@contextlib.contextmanager
def computing_in(compute_type: str):
    """Inside, Keras layers are built that compute, and ask for weights, in a type.

    Those of normalisation, and those that are given a `dtype`, have their own. Every layer casts
    its inputs to its type, but an embedding, which takes whole numbers.

    Args:
        compute_type: One of `COMPUTE_TYPES`; with float32, nothing is changed.
    """
    if compute_type == FLOAT32:
        yield
        return
    before = tf.keras.mixed_precision.global_policy()
    with contextlib.ExitStack() as stack:
        types = dict.fromkeys(_NORMALIZATION, FLOAT32)
        # So that what Keras makes of its input is not of bfloat16, which has 257 as 256.
        types[tf.keras.layers.Embedding] = tf.keras.mixed_precision.Policy("mixed_bfloat16")
        for layer, type_ in types.items():
            init = _with_type(layer.__init__, type_)
            stack.enter_context(mock.patch.object(layer, "__init__", init))
        stack.callback(tf.keras.mixed_precision.set_global_policy, before)
        tf.keras.mixed_precision.set_global_policy(compute_type)
        yield


def _with_type(init, type_):
    @functools.wraps(init)
    def init_with_type(layer, *args, **kwargs):
        init(layer, *args, **{"dtype": type_} | kwargs)

    return init_with_type


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
