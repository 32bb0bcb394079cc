"""The weights of Keras models: their names, initial values, constant values and penalties.

A pure model is built in graphs, where its weights are tensors. Values cannot be loaded into them,
so `set_weights` and `load_weights` have no effect there. The values of frozen weights come from
a model that is built without a graph.
"""

import collections
import concurrent.futures
import functools
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import safetensors
import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from tff_pfl.models.keras.layers import statistics_of
from tff_pfl.tracing.frozen import Frozen
from tff_pfl.tracing.randomness import nodes

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
    given: Mapping[str, Mapping[str, Any]] | tf.keras.Model | str | os.PathLike,
    specs: Mapping,
    name: str,
    *,
    without: Collection[str] = (),
    hint: str = "",
    in_files: bool = False,
) -> Mapping[str, Mapping[str, Any]]:
    """Returns given weights in the order of a model's weights.

    Args:
        given: See `Model.starting_from`.
        specs: The `TensorSpec`s of the model's weights, by the same names.
        name: The name of the model, for messages.
        without: The layers that are left out.
        hint: The end of messages about weights that are missing or have another shape.
        in_files: Whether large ones are `Frozen`; otherwise all are new arrays.

    Raises:
        ValueError: Names or shapes differ, or `given` is of another type.
    """
    found = _by_names(given)
    # Keras numbers the models of a class, and names the layers of a subclassed one after it.
    if isinstance(given, tf.keras.Model) and not any(layer in specs for layer, _ in found):
        own = re.compile(rf"^{re.escape(given.name)}(?=/|$)")
        found = {(own.sub(name, layer), w): value for (layer, w), value in found.items()}
    specs = {layer: specs[layer] for layer in specs if layer not in without}
    found = {names: value for names, value in found.items() if names[0] not in without}
    known = {(layer, weight): spec for layer in specs for weight, spec in specs[layer].items()}
    if found.keys() != known.keys():
        missing, unknown = (
            sorted(map("/".join, names))
            for names in (known.keys() - found.keys(), found.keys() - known.keys())
        )
        raise ValueError(
            f"The weights to start from must have the names of the weights of model {name!r}: "
            f"missing are {missing}, unknown are {unknown}.{hint if missing else ''}"
        )
    weights = collections.OrderedDict((layer, collections.OrderedDict()) for layer in specs)
    for (layer, weight), spec in known.items():
        value = np.asarray(found.pop((layer, weight))(), np.float32)
        if value.shape != tuple(spec.shape):
            raise ValueError(
                f"The weight {layer}/{weight} to start from has the shape {value.shape}, but model "
                f"{name!r} has one of the shape {tuple(spec.shape)}.{hint}"
            )
        weights[layer][weight] = Frozen.of(value) if in_files else np.array(value)
    return weights


def assign(network: tf.keras.Model, weights: Mapping[str, Mapping[str, Any]]) -> None:
    """Sets the trained weights and moving statistics of a Keras model, by layer and weight.

    Raises:
        ValueError: See `Model.starting_from`.
    """
    trained = [*network.trainable_weights, *statistics_of(network)]
    specs: dict[str, dict] = collections.defaultdict(dict)
    for weight in trained:
        layer, name = layer_and_weight(weight, network)
        specs[layer][name] = tf.TensorSpec(weight.shape, weight.dtype)
    found = weights_like(weights, specs, network.name)
    for weight in trained:
        layer, name = layer_and_weight(weight, network)
        weight.assign(found[layer][name])


def _by_names(given) -> dict[tuple[str, str], Callable[[], Any]]:
    """Returns functions that return the weights, by the names of layer and weight."""
    if isinstance(given, str | os.PathLike):
        path = os.path.expanduser(given)
        if path.endswith(".safetensors"):
            file = safetensors.safe_open(path, "np")
            names = file.keys()
            return {_split(name): functools.partial(file.get_tensor, name) for name in names}
        given = tf.keras.models.load_model(path, compile=False)
    if isinstance(given, tf.keras.Model):
        trained = [*given.trainable_weights, *statistics_of(given)]
        return {layer_and_weight(weight, given): weight.numpy for weight in trained}
    if isinstance(given, Mapping) and all(isinstance(one, Mapping) for one in given.values()):
        return {
            (layer, weight): functools.partial(np.asarray, given[layer][weight])
            for layer in given
            for weight in given[layer]
        }
    raise ValueError(
        "The weights to start from must be a mapping {layer: {weight: array}}, a Keras model, or "
        f"a file of one of them, got {type(given).__name__}."
    )


def without_value(next_creator: Callable[..., tf.Variable], **options: Any) -> tf.Variable:
    """Creates a variable of a model of which only the structure matters, without memory."""
    shape, dtype = tf.TensorShape(options.get("shape")), options.get("dtype")
    if dtype is None or not shape.is_fully_defined():
        return next_creator(**options)
    taken = {key: options[key] for key in ("trainable", "name", "shape", "dtype")}
    variable = resource_variable_ops.UninitializedVariable(**taken)
    variable._constraint = options.get("constraint")
    return variable


def _split(name: str) -> tuple[str, str]:
    """Returns the layer and the weight of a name such as `LAYER/WEIGHT`, or `LAYER.WEIGHT`."""
    weight = re.split("[/.]", name)[-1]
    return name[: -len(weight) - 1], weight


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


def frozen_values(
    keras_model_fn: Callable[[], tf.keras.Model],
    call: Callable[[tf.keras.Model], Any],
    frozen: Sequence[tf.Variable],
) -> list[Frozen | tf.Tensor]:
    """Returns the values that keras_model_fn gives to frozen weights.

    Args:
        keras_model_fn: The function that builds the model.
        call: Calls a model on inputs, which builds layers of unknown input shape.
        frozen: The `frozen_weights` of a model of an earlier call.

    Raises:
        ValueError: The weights differ from call to call.
    """

    def built():
        with tf.device("CPU"):
            model = keras_model_fn()
            call(model)
        return [Frozen.of(weight.numpy()) for weight in frozen_weights(model)]

    first, second = _in_new_thread(built), _in_new_thread(built)
    shapes = [tuple(weight.shape) for weight in frozen]
    if any([tuple(value.shape) for value in values] != shapes for values in (first, second)):
        raise ValueError(
            "keras_model_fn freezes other weights from call to call. It must build the same model, "
            "with new layers, at every call."
        )
    for weight, one, other in zip(frozen, first, second, strict=True):
        if not _equal(one, other):
            raise ValueError(
                f"Weight {weight.name!r} is frozen, but keras_model_fn gives it other values at "
                "every call. Give its initializer a seed, or load its values from a file or arrays."
            )
    # Graphs capture the tensors, so that each graph has only the constants that it uses.
    with tf.init_scope(), tf.device("CPU"):
        return [value if isinstance(value, Frozen) else tf.constant(value) for value in first]


def _equal(one, other):
    return one == other if isinstance(one, Frozen) else np.array_equal(one, other)


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
