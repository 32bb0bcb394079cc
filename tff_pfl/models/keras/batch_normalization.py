"""Makes Keras' batch normalisation pure: the new moving statistics are results, not assignments."""

import contextlib
import math
import threading
from collections.abc import Iterator

import tensorflow as tf

from tff_pfl.models.statistics import STATISTICS

_Layer = tf.keras.layers.BatchNormalization
_call_of_keras = _Layer.call


class _Thread(threading.local):
    normalize = None  # The `call` of batch normalisation in this thread; `None`: Keras's default.


_thread = _Thread()


def _call(layer, inputs, training=None, mask=None):
    return (_thread.normalize or _call_of_keras)(layer, inputs, training, mask)


# Patched permanently, since other threads may build Keras models while a pure model is traced.
_Layer.call = _call


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
    assigned = {}

    def normalize(layer, inputs, training, mask):
        # While a functional model is built, `training` is a symbolic tensor.
        if not tf.get_static_value(layer._get_training_value(training)):
            return _call_of_keras(layer, inputs, training=False, mask=mask)
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
        parameters = (layer.beta, layer.gamma)
        offset, scale = (None if p is None else tf.reshape(p, mean.shape) for p in parameters)
        return tf.nn.batch_normalization(inputs, mean, variance, offset, scale, layer.epsilon)

    before, _thread.normalize = _thread.normalize, normalize
    try:
        yield assigned
    finally:
        _thread.normalize = before


def statistics_of(model: tf.keras.Model) -> list[tf.Variable]:
    """Returns the moving statistics of the model's batch normalisation that is not frozen.

    Raises:
        ValueError: A layer renormalises, or normalises parts of a batch or over several axes.
    """
    found = []
    for layer in model._flatten_layers():
        if not isinstance(layer, _Layer) or not layer.trainable:
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
            "training. Call the model's training_pass."
        )
    if mask is not None or inputs.shape[0] != weight.shape[0] or inputs.dtype != tf.float32:
        raise ValueError(
            f"Batch normalisation layer {layer.name!r} must get one float32 row for each example "
            "of a batch, without a mask. Do not call it by TimeDistributed or after a layer that "
            "masks time steps, or use tf.keras.layers.LayerNormalization."
        )
