"""Finds the values of a Keras model's frozen weights, which become constants.

A pure model is built in graphs, where its weights are tensors. Values cannot be loaded into them,
so `set_weights` and `load_weights` have no effect there. The values of frozen weights come from
a model that is built without a graph.
"""

import concurrent.futures
import contextlib
import functools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tff_pfl.models.keras.batch_normalization import statistics_of

MOST_BYTES = 32 * 2**20


class _Thread(threading.local):
    loaded = None  # The layers whose loading was skipped; `None`: values are loaded, as in Keras.


_thread = _Thread()


def _skippable(load):
    @functools.wraps(load)
    def call(layer, *args, **options):
        if _thread.loaded is None:
            return load(layer, *args, **options)
        _thread.loaded.append(layer)

    return call


# Patched permanently, since other threads may load Keras models while a pure model is traced.
tf.keras.layers.Layer.set_weights = _skippable(tf.keras.layers.Layer.set_weights)
tf.keras.Model.load_weights = _skippable(tf.keras.Model.load_weights)


@contextlib.contextmanager
def skipped_loading() -> Iterator[list[tf.keras.layers.Layer]]:
    """Skips `set_weights` and `load_weights` in this block and thread.

    Yields:
        The layers and models into which values were to be loaded so far.
    """
    before, _thread.loaded = _thread.loaded, []
    try:
        yield _thread.loaded
    finally:
        _thread.loaded = before


def frozen_weights(model: tf.keras.Model) -> list[tf.Variable]:
    """Returns the weights that training does not change: neither trained nor statistics."""
    statistics = {weight.ref() for weight in statistics_of(model)}
    return [weight for weight in model.non_trainable_weights if weight.ref() not in statistics]


def frozen_values(
    keras_model_fn: Callable[[], tf.keras.Model],
    call: Callable[[tf.keras.Model], Any],
    frozen: Sequence[tf.Variable],
) -> list[tf.Tensor]:
    """Returns the values that keras_model_fn gives to frozen weights.

    Args:
        keras_model_fn: The function that builds the model.
        call: Calls a model on inputs, which builds layers of unknown input shape.
        frozen: The `frozen_weights` of a model of an earlier call.

    Raises:
        ValueError: The weights are too large, or differ from call to call.
    """
    size = sum(math.prod(weight.shape) * weight.dtype.size for weight in frozen)
    if size > MOST_BYTES:
        raise ValueError(
            f"The model's frozen weights have {size:,} bytes, but at most {MOST_BYTES:,} "
            "bytes can be constants. Apply the frozen layers to all inputs "
            "once, by FederatedDataset.map, and train only the other layers."
        )

    def built():
        with tf.device("CPU"):
            model = keras_model_fn()
            call(model)
        return [weight.numpy() for weight in frozen_weights(model)]

    first, second = _in_new_thread(built), _in_new_thread(built)
    shapes = [tuple(weight.shape) for weight in frozen]
    if any([value.shape for value in values] != shapes for values in (first, second)):
        raise ValueError(
            "keras_model_fn freezes other weights from call to call. It must build the same model, "
            "with new layers, at every call."
        )
    for weight, one, other in zip(frozen, first, second, strict=True):
        if not np.array_equal(one, other):
            raise ValueError(
                f"Weight {weight.name!r} is frozen, but keras_model_fn gives it other values at "
                "every call. Give its initializer a seed, or load its values from a file or arrays."
            )
    # Graphs capture the tensors, so that each graph has only the constants that it uses.
    with tf.init_scope(), tf.device("CPU"):
        return [tf.constant(value) for value in first]


def _in_new_thread(function):
    """Runs a function in a new thread, where Keras counts automatic names anew."""
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        return executor.submit(function).result()
