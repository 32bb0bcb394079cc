"""Draws initial weights of Keras models from a seed."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tff_pfl.models.keras import checks

# Substrings of the types of operations that draw random numbers.
_RANDOM = ("Random", "TruncatedNormal", "Multinomial", "Shuffle")


def seedable(initial_value, name) -> Callable[[int], Any]:
    """Returns `(seed: int) -> tensor` for the initial value that Keras passes to a variable."""
    initializer = getattr(initial_value, "func", None)
    if not isinstance(initializer, tf.keras.initializers.Initializer):
        constant = _constant(initial_value, name)
        return lambda seed: tf.constant(constant)
    config = initializer.get_config()

    def value(seed: int):
        if "seed" in config:
            seeded = type(initializer).from_config({**config, "seed": seed})
        else:
            seeded = initializer
        return seeded(*initial_value.args, **initial_value.keywords)

    if "seed" not in config:
        with tf.__internal__.eager_context.eager_mode():
            again = type(initializer).from_config(config)
            again = again(*initial_value.args, **initial_value.keywords)
            if not np.array_equal(value(0), again):
                raise ValueError(
                    f"Weight {name!r} is initialised by {type(initializer).__name__}, which draws "
                    "other numbers each time it is made. Give it an argument `seed`, and return "
                    "the seed as 'seed' from its get_config."
                )
    return value


def _constant(initial_value, name) -> np.ndarray:
    """Returns the value of a function that is not a Keras initializer, as for an LSTM's bias."""
    if callable(initial_value):
        with tf.__internal__.eager_context.eager_mode():
            traced = tf.function(initial_value, autograph=False).get_concrete_function()
            first, second = traced().numpy(), np.asarray(initial_value())
        if not any(name in node.op for node in checks.nodes(traced.graph) for name in _RANDOM) and (
            np.array_equal(first, second)
        ):
            return first
    raise ValueError(
        f"Weight {name!r} is initialised by {initial_value!r}. Use an initializer of "
        "tf.keras.initializers, which can be seeded, or a function without random numbers."
    )


def derived_seed(seed: int, index: int) -> int:
    """Returns the seed of a model's weight number `index`."""
    return int(np.random.SeedSequence([seed, index]).generate_state(1)[0] >> 1)
