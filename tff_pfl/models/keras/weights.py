"""The weights of Keras models: their names, initial values, constant values and penalties.

A pure model is built in graphs, where its weights are tensors. Values cannot be loaded into them,
so `set_weights` and `load_weights` have no effect there. The values of frozen weights come from
a model that is built without a graph.
"""

import collections
import concurrent.futures
import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tff_pfl.models.keras.layers import statistics_of
from tff_pfl.tracing.randomness import nodes

MOST_BYTES = 32 * 2**20  # of constants

# Substrings of the types of operations that draw random numbers.
_RANDOM = ("Random", "TruncatedNormal", "Multinomial", "Shuffle")


def layer_and_weight(variable: tf.Variable, model: tf.keras.Model) -> tuple[str, str]:
    """Returns the names of the layer and the weight of a variable of a Keras model."""
    layer, _, weight = variable.name.removesuffix(":0").rpartition("/")
    if not layer:  # The weight was created before the layer was called.
        layers = model._flatten_layers()
        own = (one for one in layers if any(w is variable for w in one._trainable_weights))
        layer = next(own, model).name
    return layer, weight


def weights_like(
    given: Mapping[str, Mapping[str, Any]] | tf.keras.Model, specs: Mapping, name: str
) -> Mapping[str, Mapping[str, np.ndarray]]:
    """Returns given weights as float32 arrays, in the order of a model's weights.

    Args:
        given: A mapping from layer name to a mapping from weight name to array, or a Keras model,
            whose trainable weights and moving statistics count.
        specs: The `TensorSpec`s of the model's weights, by the same names.
        name: The name of the model, for messages.

    Raises:
        ValueError: Names or shapes differ, or `given` is of another type.
    """
    if isinstance(given, tf.keras.Model):
        trained = [*given.trainable_weights, *statistics_of(given)]
        found = {layer_and_weight(w, given): w.numpy() for w in trained}
        # Keras numbers the models of a class, and names the layers of a subclassed one after it.
        if not any(layer in specs for layer, _ in found):
            own = re.compile(rf"^{re.escape(given.name)}(?=/|$)")
            found = {(own.sub(name, layer), w): value for (layer, w), value in found.items()}
    elif isinstance(given, Mapping) and all(isinstance(one, Mapping) for one in given.values()):
        found = {(layer, weight): w for layer in given for weight, w in given[layer].items()}
    else:
        raise ValueError(
            "The weights to start from must be a mapping {layer: {weight: array}} or a Keras "
            f"model, got {type(given).__name__}."
        )
    known = {(layer, weight): spec for layer in specs for weight, spec in specs[layer].items()}
    if found.keys() != known.keys():
        missing, unknown = (
            sorted(map("/".join, names))
            for names in (known.keys() - found.keys(), found.keys() - known.keys())
        )
        raise ValueError(
            f"The weights to start from must have the names of the weights of model {name!r}: "
            f"missing are {missing}, unknown are {unknown}."
        )
    weights = collections.OrderedDict((layer, collections.OrderedDict()) for layer in specs)
    for (layer, weight), spec in known.items():
        value = np.array(found[layer, weight], np.float32)
        if value.shape != tuple(spec.shape):
            raise ValueError(
                f"The weight {layer}/{weight} to start from has the shape {value.shape}, but model "
                f"{name!r} has one of the shape {tuple(spec.shape)}."
            )
        weights[layer][weight] = value
    return weights


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
        if not any(name in node.op for node in nodes(traced.graph) for name in _RANDOM) and (
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


def frozen_weights(model: tf.keras.Model) -> list[tf.Variable]:
    """Returns the weights that training does not change: neither trained nor statistics."""
    statistics = {weight.ref() for weight in statistics_of(model)}
    return [weight for weight in model.non_trainable_weights if weight.ref() not in statistics]


def check_constants(described: str, size: int) -> None:
    """Raises a `ValueError` if constants of a model have too many bytes."""
    if size > MOST_BYTES:
        raise ValueError(
            f"{described} have {size:,} bytes, but at most {MOST_BYTES:,} bytes can be constants. "
            "Apply frozen layers to all inputs once, by FederatedDataset.map, and train only the "
            "other layers."
        )


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
    check_constants("The model's frozen weights", size)

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


def penalty_of(model: tf.keras.Model) -> Callable[[Any], Any] | None:
    """Returns `(W) -> float32 scalar`, the sum of the penalties of regularized weights in `W`.

    The result is `None` for a model without regularizers, such as `kernel_regularizer`.
    """
    penalties = []
    for keras_layer in model._flatten_layers():
        for loss in keras_layer._callable_losses:
            if (of_weight := _of_weight(loss)) is not None:
                own, weight = of_weight
                penalties.append((own, *layer_and_weight(weight, model)))

    def penalty(weights):
        values = [own(weights[layer][name]) for own, layer, name in penalties if layer in weights]
        return tf.add_n(values) if values else tf.constant(0.0)

    return penalty if penalties else None


def has_other_losses(layer: tf.keras.layers.Layer) -> bool:
    """Returns whether a layer, after a call, has losses other than those of regularizers."""
    own = [*layer._losses, *layer._eager_losses]
    return bool(own) or any(_of_weight(loss) is None for loss in layer._callable_losses)


def _of_weight(loss) -> tuple[Callable, tf.Variable] | None:
    """Returns the function and the weight that Keras' `add_weight` has bound into a loss."""
    bound = loss.args[0] if isinstance(loss, functools.partial) and loss.args else None
    is_of_weight = isinstance(bound, functools.partial) and len(bound.args) == 1
    if is_of_weight and isinstance(bound.args[0], tf.Variable):
        return bound.func, bound.args[0]
    return None
