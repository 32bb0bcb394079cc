"""Makes Keras layers pure, in one block of one thread.

Keras's Dropout draws from a variable or by a stateful operation, its batch normalisation assigns
moving statistics, the type that layers compute in is a global setting, and values are loaded into
variables. Here masks are drawn from a seed, the new statistics are results, the type is an
argument, and loading is skipped.
"""

import contextlib
import functools
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tff_pfl.models.low_rank import LowRank, einsum
from tff_pfl.models.statistics import STATISTICS

FLOAT32, BFLOAT16 = "float32", "bfloat16"
COMPUTE_TYPES = (FLOAT32, BFLOAT16)

# The statistics of these layers are sums of many values, for which bfloat16 is too imprecise.
_NORMALIZATION = (tf.keras.layers.GroupNormalization, tf.keras.layers.LayerNormalization)
# Does not cast the inputs of embeddings to bfloat16, which would round 257 to 256.
_MIXED = tf.keras.mixed_precision.Policy("mixed_bfloat16")

_BatchNormalization = tf.keras.layers.BatchNormalization
_dropout_of_keras = tf.keras.layers.Dropout.call
_normalize_of_keras = _BatchNormalization.call
_einsum_of_keras = tf.keras.layers.EinsumDense.call
_set_policy_of_keras = tf.keras.layers.Layer._set_dtype_policy


class _Thread(threading.local):
    """The behaviour of Keras in this thread; `None` is Keras's default.

    Attributes:
        dropout: The `call` of Dropout layers.
        normalize: The `call` of batch normalisation.
        compute_type: The type of layers that are built.
        loaded: The layers whose loading was skipped.
    """

    dropout: Callable[..., Any] | None = None
    normalize: Callable[..., Any] | None = None
    compute_type: str | None = None
    loaded: list[tf.keras.layers.Layer] | None = None


_thread = _Thread()


@contextlib.contextmanager
def _replaced(**values: Any) -> Iterator[None]:
    before = {name: getattr(_thread, name) for name in values}
    vars(_thread).update(values)
    try:
        yield
    finally:
        vars(_thread).update(before)


def _dropout(layer, inputs, training=None):
    return (_thread.dropout or _dropout_of_keras)(layer, inputs, training)


def _normalize(layer, inputs, training=None, mask=None):
    return (_thread.normalize or _normalize_of_keras)(layer, inputs, training, mask)


def _einsum(layer, inputs):
    if not isinstance(layer.kernel, LowRank):
        return _einsum_of_keras(layer, inputs)
    outputs = einsum(layer.equation, inputs, layer.kernel)
    if layer.bias is not None:
        outputs += layer.bias
    return outputs if layer.activation is None else layer.activation(outputs)


def _set_policy(layer, dtype):
    if dtype is None and _thread.compute_type is not None:
        dtype = _thread.compute_type
        if isinstance(layer, _NORMALIZATION):
            dtype = FLOAT32
        elif dtype == BFLOAT16 and isinstance(layer, tf.keras.layers.Embedding):
            dtype = _MIXED
    _set_policy_of_keras(layer, dtype)


def _skippable(load):
    @functools.wraps(load)
    def call(layer, *args, **options):
        if _thread.loaded is None:
            return load(layer, *args, **options)
        _thread.loaded.append(layer)

    return call


# Patched permanently, since other threads may use Keras while a pure model is traced.
tf.keras.layers.Dropout.call = _dropout
_BatchNormalization.call = _normalize
tf.keras.layers.EinsumDense.call = _einsum
tf.keras.layers.Layer._set_dtype_policy = _set_policy
tf.keras.layers.Layer.set_weights = _skippable(tf.keras.layers.Layer.set_weights)
tf.keras.Model.load_weights = _skippable(tf.keras.Model.load_weights)


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
            raise ValueError(
                f"Dropout layer {layer.name!r} needs a seed in training. Pass the seed of the "
                "batch, and do not call the layer with training=True, which holds in evaluation, "
                "too."
            )
        nonlocal drawn
        drawn += 1
        dropped = tf.nn.experimental.stateless_dropout(
            tf.cast(inputs, tf.float32),
            layer.rate,
            seed=tf.random.experimental.stateless_fold_in(seed, drawn),
            noise_shape=layer._get_noise_shape(inputs),
        )
        return tf.cast(dropped, inputs.dtype)

    with _replaced(dropout=dropout, compute_type=compute_type):
        yield lambda: drawn


def in_types(weight: tf.Tensor, compute_type: str) -> dict:
    """Returns a mapping from requested types to a weight; `None` stands for all other types."""
    by_type = {None: weight, weight.dtype: weight}
    if weight.dtype == tf.float32:
        by_type[tf.as_dtype(compute_type)] = tf.cast(weight, compute_type)
    return by_type


@contextlib.contextmanager
def skipped_loading() -> Iterator[list[tf.keras.layers.Layer]]:
    """Skips `set_weights` and `load_weights` in this block and thread.

    Yields:
        The layers and models into which values were to be loaded so far.
    """
    loaded: list[tf.keras.layers.Layer] = []
    with _replaced(loaded=loaded):
        yield loaded


@contextlib.contextmanager
def pure_batch_normalization(weight: tf.Tensor | None) -> Iterator[dict[int, tf.Tensor]]:
    """Makes batch normalisation pure if it is called in this block and thread.

    In training, it uses the mean and variance of the rows of weight above 0, and the new moving
    statistics are those that Keras would assign after a batch of these rows alone.

    Args:
        weight: float32 `[batch]`, the weights of the rows. `None` if the model is not called in
            training.

    Yields:
        The new statistics, by the `id` of the tensor that the layer has as its old statistic.
    """
    assigned: dict[int, tf.Tensor] = {}

    def normalize(layer, inputs, training, mask):
        # While a functional model is built, `training` is a symbolic tensor.
        if not tf.get_static_value(layer._get_training_value(training)):
            return _normalize_of_keras(layer, inputs, training=False, mask=mask)
        _check_plain(layer)
        _check_call(layer, inputs, weight, mask)
        mean, variance, count = _moments(layer, inputs, weight)
        # Keras's fused operation corrects the moving variance for the size of the sample.
        correction = count / tf.maximum(count - 1.0, 1.0) if layer.fused else 1.0
        news = {"moving_mean": mean, "moving_variance": variance * correction}
        for name, new in news.items():
            key = id(getattr(layer, name))
            old = assigned.get(key, getattr(layer, name))
            new = tf.reshape(tf.stop_gradient(new), old.shape)
            moved = old - (old - new) * (1.0 - layer.momentum)
            assigned[key] = tf.where(count > 0.0, moved, old)
        # Unlike `tf.nn.batch_normalization`, this gives exactly beta for a batch of one row, also
        # if XLA compiles it. A ReLU may follow, whose gradient at 0 depends on the sign.
        scale = tf.math.rsqrt(variance + layer.epsilon)
        if layer.gamma is not None:
            scale *= tf.reshape(layer.gamma, mean.shape)
        outputs = (inputs - mean) * scale
        return outputs if layer.beta is None else outputs + tf.reshape(layer.beta, mean.shape)

    with _replaced(normalize=normalize):
        yield assigned


def statistics_of(model: tf.keras.Model) -> list[tf.Variable]:
    """Returns the moving statistics of the model's batch normalisation that is not frozen.

    Raises:
        ValueError: A layer renormalises, or normalises parts of a batch or over several axes.
    """
    found = []
    for layer in model._flatten_layers():
        if not isinstance(layer, _BatchNormalization) or not layer.trainable:
            continue
        _check_plain(layer)
        if layer.built:
            found += [getattr(layer, name) for name in STATISTICS]
    return found


def _moments(layer, inputs, weight):
    """Returns mean and variance with as many axes as the inputs, and the number of values."""
    rank = inputs.shape.rank
    axes = [axis for axis in range(rank) if axis not in layer.axis]
    is_row = tf.reshape(weight > 0.0, [-1] + [1] * (rank - 1))
    sizes = tf.unstack(tf.shape(inputs))
    count = tf.reduce_sum(tf.cast(is_row, tf.float32))
    count *= tf.cast(math.prod(sizes[axis] for axis in axes[1:]), tf.float32)
    divisor = tf.maximum(count, 1.0)
    mean = tf.reduce_sum(tf.where(is_row, inputs, 0.0), axes, keepdims=True) / divisor
    centred = tf.where(is_row, inputs - mean, 0.0)
    return mean, tf.reduce_sum(centred**2, axes, keepdims=True) / divisor, count


def _check_plain(layer):
    others = layer.renorm, layer.virtual_batch_size is not None, layer.adjustment
    if any(others) or len(layer.axis) > 1:
        raise ValueError(
            f"Layer {layer.name!r} is a batch normalisation with renorm, virtual_batch_size, "
            "adjustment or several axes. Leave these out."
        )


def _check_call(layer, inputs, weight, mask):
    if weight is None:
        raise ValueError(
            f"Batch normalisation layer {layer.name!r} needs the weights of a batch's rows in "
            "training. Call the model's training_pass, and do not call the layer with "
            "training=True, which holds in evaluation, too."
        )
    if mask is not None or inputs.shape[0] != weight.shape[0] or inputs.dtype != tf.float32:
        raise ValueError(
            f"Batch normalisation layer {layer.name!r} must get one float32 row for each example "
            "of a batch, without a mask. Do not call it by TimeDistributed, with training=True or "
            "after a layer that masks time steps, or use tf.keras.layers.LayerNormalization."
        )
