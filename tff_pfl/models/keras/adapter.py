"""Makes pure models of Keras models.

A Keras model creates variables when it is built. This module builds the model again for each trace
and replaces every new variable by the tensor that the caller passes as its weight. The graph
therefore has no variables. Layers and weights keep their Keras names.
"""

import collections
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.ranges import takes, whole
from tff_pfl.models.heads import linear
from tff_pfl.models.inputs import as_numbers, input_specs, preprocessed_zeros
from tff_pfl.models.keras import checks
from tff_pfl.models.keras.layers import (
    COMPUTE_TYPES,
    FLOAT32,
    in_types,
    pure_batch_normalization,
    pure_layers,
    skipped_loading,
)
from tff_pfl.models.keras.segments import (
    Segment,
    called,
    from_input_to_output,
    in_turn,
    linear_head,
    split,
    without_head,
)
from tff_pfl.models.keras.weights import (
    derived_seed,
    frozen_values,
    frozen_weights,
    layer_and_weight,
    penalty_of,
    seedable,
    without_value,
)
from tff_pfl.models.low_rank import TakesLowRank
from tff_pfl.models.model import Forward, Model
from tff_pfl.models.statistics import STATISTICS, fixed, with_statistics
from tff_pfl.models.task import Task
from tff_pfl.models.tasks import task_of
from tff_pfl.tracing.frozen import Frozen, frozen_of, tensors_of
from tff_pfl.tracing.shared import SharedTraces

_BUILT_ANEW = (
    "keras_model_fn returned the model of an earlier call, or a model with other layers. It must "
    "build the same model, with new layers, at every call."
)


class _Slot(NamedTuple):
    """A variable of the Keras model: a trained weight, a moving statistic or a frozen weight.

    Attributes:
        layer: The name of its layer.
        weight: The name of the weight. Only moving statistics have the names in `STATISTICS`.
        initial_value: `(seed: int) -> tensor`, for a weight that is not frozen.
        constant: The value of a frozen weight.
    """

    layer: str
    weight: str
    initial_value: Callable[[int], Any] | None = None
    constant: Frozen | tf.Tensor | None = None


class _Record(NamedTuple):
    """Facts about a Keras model, found by building it once.

    Attributes:
        name: The model's name.
        inputs: The specs of the inputs that the model was called with, after `preprocess`.
        slots: The model's variables, in the order of their creation.
        whole: The model's segments, one or more.
        below_head: The segments below the model's linear head. Empty without such a head.
        outputs: The specs of the model's outputs for one input.
        layers: The names of the layers with weights that are not frozen, from input to output.
        penalty: The penalty of the weights; see `Model`.
    """

    name: str
    inputs: Any
    slots: list[_Slot]
    whole: list[Segment]
    below_head: list[Segment]
    outputs: Any
    layers: list[str]
    penalty: Callable[[Any], Any] | None


@takes(segments=whole(1))
def from_keras(
    keras_model_fn: Callable[[], tf.keras.Model],
    *,
    input_shape: Any,
    input_dtype: Any = tf.float32,
    preprocess: Callable[[Any], Any] | None = None,
    postprocess: Callable[[Any], Any] | None = None,
    task: Task | str | None = None,
    segments: int = 1,
    compute_type: str = "float32",
) -> Model:
    """Makes a pure `Model` of a Keras model.

    Dropout layers become stateless: the batch's seed determines their masks. Layer names must be
    unique, also across nested models, because they identify layers in `models.layer_parts` and
    checkpoints.

    Frozen weights (`trainable=False`) may have any size: clients neither keep nor send them, and
    graphs read them from files; see `tff_pfl.tracing.frozen`. They have the values that
    keras_model_fn gives them at every call: by an initializer with a seed, or by `set_weights` or
    `load_weights` of frozen layers. Layers below all that is trained can be applied to the data
    once, by `FederatedDataset.map`. Batch normalisation in a frozen layer uses its moving
    statistics.

    The moving statistics of other batch normalisation are weights `moving_mean` and
    `moving_variance` of its layer, with the gradient 0. A training step assigns them as Keras does
    for a batch without padding; see `Model.training_pass`.

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
        input_shape: The shape of one input as stored, before `preprocess`, without the batch axis.
            For several inputs, a mapping or a tuple of shapes: `{"ids": (20,), "price": ()}`.
        input_dtype: The data type of the inputs on which `from_keras` tries `preprocess`, for all
            inputs or in their structure. Later inputs have the type in which they are stored.
        preprocess: A function that maps a batch of inputs, as they are stored, to inputs of the
            Keras model, row by row. Cast uint8 images to float32 before arithmetic, because
            integers wrap around; subtract from large float64 numbers before you cast them, because
            float32 rounds them. Default: casts inputs to float32, except integers of 32 or 64
            bits, which float32 would round.
        postprocess: A function of a batch of outputs, which exported models apply at the end, such
            as `lambda y: 1000 * y` for labels in thousands. Losses, metrics and predictions use
            outputs without it, in the units of labels.
        task: The loss and the metrics: a name in `tff_pfl.TASKS`, or a `Task`, such as one of your
            own. Default: classification.
        segments: The maximum number of segments into which a functional or sequential model is cut
            for rematerialisation. A gradient keeps only the tensors between segments and computes
            all others again, one segment at a time. It is the same gradient, and trades memory for
            another forward pass. 1 keeps all tensors. Cuts are made where the remaining layers take
            a single tensor, so that the layers' outputs in each segment have a similar total size.
        compute_type: "float32", or "bfloat16" for mixed precision. With "bfloat16", layers compute
            in bfloat16, except group and layer normalisation and layers built with a `dtype`.
            Weights, gradients, outputs and losses stay float32.

    Raises:
        KindError: `task` is neither a `Task` nor a name.
        ValueError: The model has layers with state, layers called with `training=True`, stochastic
            layers other than dropout, no trained weights, variables that are not its weights, or
            batch normalisation that is neither frozen nor of float32 in one segment; its frozen
            weights are too large or change from call to call; it ends in a softmax although the
            loss takes logits; it was built before; it cannot be cut into segments; `preprocess`
            fails on inputs of `input_shape`; or the name of the task or `compute_type` is unknown.
    """
    check_names("compute type", [compute_type], COMPUTE_TYPES)
    checks.check_function(keras_model_fn)
    preprocess = preprocess or as_numbers
    task = task_of(task)
    inputs = input_specs(input_shape, input_dtype, num_rows=1)
    record = _record(keras_model_fn, preprocess, inputs, task, segments)
    has_statistics = any(_is_statistic(slot) for slot in record.slots)
    if has_statistics and (segments > 1 or compute_type != FLOAT32):
        raise ValueError(
            f"Keras model {record.name!r} has batch normalisation, which needs segments=1 and "
            "compute_type='float32'. Set them, or use tf.keras.layers.GroupNormalization."
        )

    def init(seed: int):
        weights: dict[str, dict[str, Any]] = collections.OrderedDict(
            (layer, collections.OrderedDict()) for layer in record.layers
        )
        trained = [(slot, draw) for slot in record.slots if (draw := slot.initial_value)]
        for index, (slot, draw) in enumerate(trained):
            weights[slot.layer][slot.weight] = draw(derived_seed(seed, index))
        return weights

    def segment_function(part, index, masks_before, is_last):
        """Returns a function that applies a segment of `part(Keras model)`."""

        def apply(weights, x, seed=None, weight=None, *, training: bool):
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
            normalization = pure_batch_normalization(weight)
            with (
                tf.variable_creator_scope(variable),
                layers,
                normalization as assigned,
                skipped_loading(),
            ):
                segment = split(part(keras_model_fn()), segments, record.inputs)[index]
                outputs = segment(x, training=training)
            if next(values, None) is not None:
                raise ValueError(_BUILT_ANEW)
            if compute_type != FLOAT32:
                checks.check_whole_numbers(tf.compat.v1.get_default_graph())
                if is_last:
                    outputs = tf.nest.map_structure(lambda y: tf.cast(y, tf.float32), outputs)
            if weight is None:
                return outputs
            statistics: dict[str, dict] = collections.defaultdict(dict)
            for slot, value in zip(record.slots, given, strict=True):
                if _is_statistic(slot):
                    statistics[slot.layer][slot.weight] = assigned.get(id(value), value)
            return outputs, dict(statistics)

        return _traced_eagerly(apply)

    def applied(part, plan):
        """Returns a function that applies `part(Keras model)`."""
        applies = [
            segment_function(part, index, segment.masks_before, index == len(plan) - 1)
            for index, segment in enumerate(plan)
        ]
        return in_turn(applies, plan)

    below_head = functools.partial(without_head, inputs=record.inputs)
    apply = TakesLowRank(applied(lambda keras_model: keras_model, record.whole))
    features = applied(below_head, record.below_head) if record.below_head else None

    def in_training(function, weights, x, weight, seed):
        """Returns the result of a function, and the weights after the step."""
        if not has_statistics:
            return function(weights, x, training=True, seed=seed), weights
        if not isinstance(weights, Mapping) or not weights.keys() >= set(record.layers):
            raise ValueError(
                f"The moving statistics of model {record.name!r} cannot be assigned to weights of "
                "another structure. Pass `assign` to LocalTraining.train."
            )
        result, assigned = function(weights, x, training=True, seed=seed, weight=weight)
        return result, with_statistics(weights, assigned)

    def training_pass(weights, x, *, weight, seed):
        return in_training(apply, weights, x, weight, seed)

    def forward(weights, x, *, weight, seed):
        found, assigned = in_training(features, weights, x, weight, seed)
        return Forward(linear(weights[record.layers[-1]], found), found, assigned)

    model = Model(
        init=init,
        apply=apply,
        features=features,
        forward=features and forward,
        task=task,
        name=record.name,
        training_pass=training_pass if has_statistics else None,
        penalty=record.penalty,
        num_classes=record.outputs.shape[-1] if task.outputs == "class_logits" else None,
        postprocess=postprocess,
        inputs=input_specs(input_shape, input_dtype),
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
    training_function = SharedTraces(lambda *args: apply(*args, training=True))
    function = SharedTraces(lambda *args: apply(*args, training=False))

    def call(weights, x, *, training: bool = False, seed=None, weight=None):
        args = tuple(arg for arg in (weights, x, seed, weight) if arg is not None)
        args = tf.nest.map_structure(tf.convert_to_tensor, args, expand_composites=True)
        specs = tf.nest.map_structure(tf.type_spec_from_value, args)
        with _eager_mode():
            chosen = training_function if training else function
            concrete = chosen.of(*specs)
            # Layers may keep tensors, such as given moments of a normalisation. Each graph needs
            # them as its own constants, and reads frozen weights itself.
            concrete.set_external_captures(list(map(_in_each_graph, concrete.captured_inputs)))
        return concrete(*args)

    return call


def _in_each_graph(tensor):
    """Returns a function that gives the tensor to the graph that is being built."""
    frozen = frozen_of(tensor)
    return functools.partial(tf.constant, tensor.numpy()) if frozen is None else frozen.tensor


def _record(keras_model_fn, preprocess, inputs_spec, task, segments) -> _Record:
    """Builds the model once, in a new graph so that automatic names start afresh."""
    created = []

    def example():
        return preprocessed_zeros(preprocess, inputs_spec)

    def record(next_creator, **kwargs):
        variable = without_value(next_creator, **kwargs)
        variable.assign = functools.partial(checks.refuse_assignment, variable.name)
        created.append((variable, kwargs["initial_value"]))
        return variable

    graph = tf.__internal__.FuncGraph("record")
    with (
        _eager_mode(),
        graph.as_default(),
        tf.variable_creator_scope(record),
        pure_layers(tf.zeros([2], tf.int32)) as num_masks,
        pure_batch_normalization(tf.ones([1])),
        skipped_loading() as loaded,
    ):
        model = keras_model_fn()
        if not isinstance(model, tf.keras.Model):
            raise ValueError(
                f"keras_model_fn must return a tf.keras.Model, got {type(model).__name__}."
            )
        inputs = example()
        outputs, masks = called(model, inputs, num_masks)
        head, parts = linear_head(model), split(model, segments, inputs)
        checks.check_weights(model, [variable for variable, _ in created])
        checks.check_loaded(loaded)
        checks.check_losses(model)
        checks.check_outputs(outputs, task)
        checks.check_evaluation(model, inputs)
        slots = _slots(model, created, keras_model_fn, example)
        layer_of = {
            id(variable.handle): slot.layer
            for (variable, _), slot in zip(created, slots, strict=True)
            if slot.constant is None
        }
        layers = from_input_to_output(graph, tf.nest.flatten(inputs), layer_of)
        whole = _plan(model, parts, inputs, masks if segments > 1 else 0)
        below_head = []
        if head and layer_and_weight(head.kernel, model)[0] == layers[-1]:
            parts = split(without_head(model, inputs), segments, inputs)
            below_head = _plan(model, parts, inputs, masks)
    checks.check_captures(graph, [variable for variable, _ in created])
    checks.check_stateless(graph)
    checks.check_not_assigned(graph)
    # Specs, since tensors would keep the model, and so its variables.
    inputs, outputs = (
        tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), it)
        for it in (inputs, outputs)
    )
    penalty = penalty_of(model)
    return _Record(model.name, inputs, slots, whole, below_head, outputs, layers, penalty)


def _slots(model, created, keras_model_fn, example) -> list[_Slot]:
    """Describes the variables that were created, `(variable, initial value)`, as `_Slot`s."""
    frozen = frozen_weights(model)
    values = frozen_values(keras_model_fn, lambda model: model(example()), frozen) if frozen else []
    constants = {weight.ref(): value for weight, value in zip(frozen, values, strict=True)}
    slots = []
    for variable, initial_value in created:
        constant = constants.get(variable.ref())
        draw = seedable(initial_value, variable.name) if constant is None else None
        slots.append(_Slot(*layer_and_weight(variable, model), draw, constant))
    checks.check_unique((slot.layer, slot.weight) for slot in slots if slot.constant is None)
    checks.check_reserved(model.trainable_weights)
    return slots


def _value(slot, weights) -> tf.Tensor:
    """Returns the value of a slot, which is among the model's weights or a constant."""
    if slot.constant is not None:
        return tensors_of(slot.constant)
    weight = weights[slot.layer][slot.weight]
    return fixed(slot.weight, weight) if _is_statistic(slot) else weight


def _is_statistic(slot) -> bool:
    return slot.constant is None and slot.weight in STATISTICS


def _plan(model, parts, inputs, masks_before) -> list[Segment]:
    """Describes the parts of a model as `Segment`s."""
    plan = []
    with pure_layers(tf.zeros([2], tf.int32), masks_before=masks_before) as num_masks:
        for part in parts:
            trained = part.trainable_weights
            layers = dict.fromkeys(layer_and_weight(weight, model)[0] for weight in trained)
            plan.append(Segment(tuple(layers), num_masks()))
            if part is not parts[-1]:
                inputs = part(inputs, training=True)
    return plan


def _check_initial_weights(model):
    graph = tf.Graph()
    with graph.as_default():
        model.init(0)
    checks.check_stateless(graph)
