"""Makes pure models of Keras models.

A Keras model creates variables when it is built. This module builds the model again for each trace
and replaces every new variable by the tensor that the caller passes as its weight. The graph
therefore has no variables. Layers and weights keep their Keras names.
"""

import collections
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tff_pfl.models import keras_checks as checks
from tff_pfl.models.frozen import frozen_values, skipped_loading
from tff_pfl.models.inputs import as_numbers, input_specs, zero_inputs
from tff_pfl.models.model import Model
from tff_pfl.models.pure_layers import COMPUTE_TYPES, FLOAT32, in_types, pure_layers
from tff_pfl.models.segments import Segment, in_turn, is_graph, split
from tff_pfl.models.task import Task
from tff_pfl.models.tasks import classification
from tff_pfl.models.weight_names import layer_and_weight
from tff_pfl.names import check_names
from tff_pfl.ranges import takes, whole

# Substrings of the types of operations that draw random numbers.
_RANDOM = ("Random", "TruncatedNormal", "Multinomial", "Shuffle")

_BUILT_ANEW = (
    "keras_model_fn returned the model of an earlier call, or a model with other layers. It must "
    "build the same model, with new layers, at every call."
)


class _Slot(NamedTuple):
    """A variable of the Keras model: a trained weight or a frozen one.

    Attributes:
        layer: The name of its layer.
        weight: The name of the weight.
        initial_value: `(seed: int) -> tensor`, for a trained weight.
        constant: The value of a frozen weight.
    """

    layer: str
    weight: str
    initial_value: Callable[[int], Any] | None = None
    constant: tf.Tensor | None = None


class _Record(NamedTuple):
    """Facts about a Keras model, found by building it once.

    Attributes:
        name: The model's name.
        slots: The model's variables, in the order of their creation.
        whole: The model's segments, one or more.
        below_head: The segments below the model's linear head. Empty without such a head.
        outputs: The model's symbolic outputs for one input.
        layers: The names of the layers with trained weights, from input to output as far as known.
    """

    name: str
    slots: list[_Slot]
    whole: list[Segment]
    below_head: list[Segment]
    outputs: Any
    layers: list[str]


@takes(segments=whole(1))
def from_keras(
    keras_model_fn: Callable[[], tf.keras.Model],
    *,
    input_shape: Any,
    input_dtype: Any = tf.float32,
    preprocess: Callable[[Any], Any] | None = None,
    task: Task | None = None,
    segments: int = 1,
    compute_type: str = "float32",
) -> Model:
    """Makes a pure `Model` of a Keras model.

    Dropout layers become stateless: the batch's seed determines their masks. Layer names must be
    unique, also across nested models, because they identify the layers in `models.partition` and in
    checkpoints.

    Frozen weights (`trainable=False`) become constants, which clients neither keep nor send. They
    have the values that keras_model_fn gives them at every call: by an initializer with a seed, or
    by `set_weights` or `load_weights` of frozen layers. They may have 32 MiB in all; apply
    larger layers to the data once, by `FederatedDataset.map`. Batch normalisation in a frozen layer
    uses its moving statistics.

    Example:
        >>> def mlp():
        ...     return tf.keras.Sequential([
        ...         tf.keras.layers.Flatten(input_shape=(28, 28, 1)),
        ...         tf.keras.layers.Dense(200, "relu", name="hidden"),
        ...         tf.keras.layers.Dense(10, name="logits"),
        ...     ])
        >>> model = tff_pfl.from_keras(
        ...     mlp, input_shape=(28, 28, 1), preprocess=lambda x: tf.cast(x, tf.float32) / 255
        ... )
        >>> model.layers, model.num_weights
        (('hidden', 'logits'), 159010)

    Args:
        keras_model_fn: A function that builds a new model at every call. The model's outputs are
            logits, not probabilities, unless the task takes other outputs.
        input_shape: The shape of one input, without the batch axis. For several inputs, a mapping
            or a tuple of shapes, such as `{"ids": (20,), "price": ()}`.
        input_dtype: The data type of the inputs on which `from_keras` tries `preprocess`, for all
            inputs or in their structure. Later inputs have the type in which they are stored.
        preprocess: A function that maps a batch of inputs, as they are stored, to inputs of the
            Keras model, row by row. Cast uint8 images to float32 before arithmetic, because
            integers wrap around. Default: casts inputs to float32, except integers of 32 or 64
            bits, which float32 would round.
        task: The loss and the metrics, one of `tff_pfl.TASKS` or a `Task` of your own. Default:
            classification.
        segments: The maximum number of segments into which a functional or sequential model is cut
            for rematerialisation. A gradient keeps only the tensors between segments and computes
            all others again, one segment at a time. It is the same gradient, and trades memory for
            another forward pass. 1 keeps all tensors. Cuts are made where the remaining layers take
            a single tensor, so that the layers' outputs in each segment have a similar total size.
        compute_type: "float32", or "bfloat16" for mixed precision. With "bfloat16", layers compute
            in bfloat16, except group and layer normalisation and layers built with a `dtype`.
            Weights, gradients, outputs and losses stay float32.

    Raises:
        ValueError: The model has layers with state (batch normalisation that is not frozen),
            stochastic layers other than dropout, no trained weights, or variables that are not its
            weights; its frozen weights are too large or change from call to call; it ends in a
            softmax although the loss takes logits; it was built before; it cannot be cut into
            segments; or `compute_type` is unknown.
    """
    check_names("compute type", [compute_type], COMPUTE_TYPES)
    checks.check_function(keras_model_fn)
    preprocess = preprocess or as_numbers
    task = task or classification()
    inputs = input_specs(input_shape, input_dtype, num_rows=1)
    record = _record(keras_model_fn, preprocess, inputs, task, segments)

    def init(seed: int):
        weights = collections.OrderedDict(
            (layer, collections.OrderedDict()) for layer in record.layers
        )
        trained = [slot for slot in record.slots if slot.constant is None]
        for index, slot in enumerate(trained):
            weights[slot.layer][slot.weight] = slot.initial_value(_derived_seed(seed, index))
        return weights

    def segment_function(part, index, masks_before, is_last):
        """Returns a function that applies a segment of `part(Keras model)`."""

        def apply(weights, x, seed=None, *, training: bool):
            if index == 0:
                x = preprocess(x)
            given = [_value(slot, weights) for slot in record.slots]
            values = iter([in_types(value, compute_type) for value in given])

            def variable(next_creator, dtype=None, **_):
                by_type = next(values, None)
                if by_type is None:
                    raise ValueError(_BUILT_ANEW)
                return by_type.get(dtype, by_type[None])

            layers = pure_layers(seed, masks_before=masks_before, compute_type=compute_type)
            with tf.variable_creator_scope(variable), layers, skipped_loading():
                segment = split(part(keras_model_fn()), segments)[index]
                outputs = segment(x, training=training)
            if next(values, None) is not None:
                raise ValueError(_BUILT_ANEW)
            if compute_type != FLOAT32:
                checks.check_whole_numbers(tf.compat.v1.get_default_graph())
                if is_last:
                    outputs = tf.nest.map_structure(lambda y: tf.cast(y, tf.float32), outputs)
            return outputs

        return _traced_eagerly(apply)

    def applied(part, plan):
        """Returns a function that applies `part(Keras model)`."""
        applies = [
            segment_function(part, index, segment.masks_before, index == len(plan) - 1)
            for index, segment in enumerate(plan)
        ]
        return in_turn(applies, plan)

    model = Model(
        init=init,
        apply=applied(lambda keras_model: keras_model, record.whole),
        features=applied(_below_head, record.below_head) if record.below_head else None,
        task=task,
        name=record.name,
        num_classes=record.outputs.shape[-1] if task.outputs == "class_logits" else None,
    )
    _check_initial_weights(model)
    return model


def _eager_mode():
    """Leaves the graph that is being built.

    TFF builds graphs without an eager program around them. There, Keras behaves as in TensorFlow 1,
    whose functional models cannot contain plain TensorFlow operations (`x[:, 1:]`).
    """
    return tf.__internal__.eager_context.eager_mode()


def _traced_eagerly(apply):
    """Returns a function that traces `apply` as in an eager program."""
    training_function = tf.function(lambda *args: apply(*args, training=True), autograph=False)
    function = tf.function(lambda *args: apply(*args, training=False), autograph=False)

    def call(weights, x, *, training: bool = False, seed=None):
        args = (weights, x) if seed is None else (weights, x, seed)
        args = tf.nest.map_structure(tf.convert_to_tensor, args)
        specs = tf.nest.map_structure(lambda arg: tf.TensorSpec(arg.shape, arg.dtype), args)
        with _eager_mode():
            chosen = training_function if training else function
            concrete = chosen.get_concrete_function(*specs)
            # Layers may keep tensors, such as given moments of a normalisation. Each graph needs
            # them as its own constants.
            constants = [
                functools.partial(tf.constant, x.numpy()) for x in concrete.captured_inputs
            ]
            concrete.set_external_captures(constants)
        return concrete(*args)

    return call


def _record(keras_model_fn, preprocess, inputs_spec, task, segments) -> _Record:
    """Builds the model once, in a new graph so that automatic names start afresh."""
    created = []

    def example():
        return preprocess(zero_inputs(inputs_spec))

    def record(next_creator, **kwargs):
        variable = next_creator(**kwargs)
        variable.assign = functools.partial(checks.refuse_assignment, variable.name)
        created.append((variable, kwargs["initial_value"]))
        return variable

    graph = tf.__internal__.FuncGraph("record")
    with (
        _eager_mode(),
        graph.as_default(),
        tf.variable_creator_scope(record),
        pure_layers(tf.zeros([2], tf.int32)),
        skipped_loading() as loaded,
    ):
        model = keras_model_fn()
        if not isinstance(model, tf.keras.Model):
            raise ValueError(
                f"keras_model_fn must return a tf.keras.Model, got {type(model).__name__}."
            )
        head = _linear_head(model)
        parts = split(model, segments)
        inputs = example()
        outputs = model(inputs, training=True)
        checks.check_weights(model, [variable for variable, _ in created])
        checks.check_loaded(loaded)
        checks.check_losses(model)
        checks.check_outputs(outputs, task)
        slots = _slots(model, created, keras_model_fn, example)
        layers = _layers(model, slots)
        whole = _plan(model, parts, inputs)
        below_head = []
        if head == layers[-1]:
            below_head = _plan(model, split(_below_head(model), segments), inputs)
    checks.check_captures(graph, [variable for variable, _ in created])
    checks.check_stateless(graph)
    checks.check_not_assigned(graph)
    return _Record(model.name, slots, whole, below_head, outputs, layers)


def _slots(model, created, keras_model_fn, example) -> list[_Slot]:
    """Describes the variables that were created, `(variable, initial value)`, as `_Slot`s."""
    frozen, values = model.non_trainable_weights, []
    if frozen:
        values = frozen_values(keras_model_fn, lambda model: model(example()), frozen)
    constants = {weight.ref(): value for weight, value in zip(frozen, values, strict=True)}
    slots = []
    for variable, initial_value in created:
        layer, weight = layer_and_weight(variable, model)
        if variable.ref() in constants:
            slots.append(_Slot(layer, weight, constant=constants[variable.ref()]))
        else:
            slots.append(_Slot(layer, weight, _seedable(initial_value, variable.name)))
    checks.check_unique((slot.layer, slot.weight) for slot in slots if slot.constant is None)
    return slots


def _value(slot, weights) -> tf.Tensor:
    """Returns the value of a slot, which is among the model's weights or a constant."""
    if slot.constant is None:
        return weights[slot.layer][slot.weight]
    return slot.constant


def _layers(model, slots) -> list[str]:
    """Returns the layers with trained weights, in the order of first calls or of the model."""
    called = dict.fromkeys(slot.layer for slot in slots if slot.constant is None)
    if is_graph(model) and not all("/" in weight.name for weight in model.weights):
        trained = model.trainable_weights
        called = dict.fromkeys(layer_and_weight(weight, model)[0] for weight in trained)
    return list(called)


def _plan(model, parts, inputs) -> list[Segment]:
    """Describes the parts of a model as `Segment`s."""
    plan = []
    with pure_layers(tf.zeros([2], tf.int32)) as num_masks:
        for part in parts:
            trained = part.trainable_weights
            layers = dict.fromkeys(layer_and_weight(weight, model)[0] for weight in trained)
            plan.append(Segment(tuple(layers), num_masks()))
            if part is not parts[-1]:
                inputs = part(inputs, training=True)
    return plan


def _linear_head(model) -> str | None:
    """Returns the name of the dense layer that ends a model, or `None`."""
    if not is_graph(model) or len(model.outputs) != 1:
        return None
    layer = model.layers[-1]
    if getattr(type(layer), "call", None) is not tf.keras.layers.Dense.call:
        return None
    is_linear = layer.activation is tf.keras.activations.linear
    is_output = len(layer.inbound_nodes) == 1 and layer.output is model.outputs[0]
    return layer.name if is_linear and is_output and len(layer.input.shape) == 2 else None


def _below_head(model) -> tf.keras.Model:
    return tf.keras.Model(model.input, model.layers[-1].input)


def _seedable(initial_value, name) -> Callable[[int], Any]:
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
        with _eager_mode():
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
        with _eager_mode():
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


def _derived_seed(seed: int, index: int) -> int:
    return int(np.random.SeedSequence([seed, index]).generate_state(1)[0] >> 1)


def _check_initial_weights(model):
    graph = tf.Graph()
    with graph.as_default():
        model.init(0)
    checks.check_stateless(graph)
