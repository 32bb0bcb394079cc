"""Checks that a Keras model can become a pure model."""

import collections
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from tff_pfl.models.keras.layers import pure_batch_normalization, pure_layers, statistics_of
from tff_pfl.models.keras.weights import has_other_losses
from tff_pfl.models.statistics import STATISTICS
from tff_pfl.models.task import Task
from tff_pfl.tracing.randomness import described, nodes, unseeded_operations

_ASSIGNMENTS = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")
_PROBABILITIES = {"Softmax": "softmax", "Sigmoid": "sigmoid"}


def check_function(keras_model_fn: Callable[[], tf.keras.Model]) -> None:
    """Checks that the argument is a function that builds a model, not a model."""
    if not callable(keras_model_fn) or isinstance(keras_model_fn, tf.keras.layers.Layer):
        raise ValueError(
            "keras_model_fn must be a function that builds a model, not a "
            f"{type(keras_model_fn).__name__}: from_keras(network, ...), not "
            "from_keras(network(), ...)."
        )


def check_weights(model: tf.keras.Model, created: Iterable[tf.Variable]) -> None:
    """Checks that all weights are new, some are trained, and that all variables are weights."""
    if not model.trainable_weights:
        raise ValueError(f"Keras model {model.name!r} has no weights that are trained.")
    here = {variable.ref() for variable in created}
    if before := [weight.name for weight in model.weights if weight.ref() not in here]:
        raise ValueError(
            f"keras_model_fn returns a model whose weights {before} existed before the call. It "
            "must build a new model, with new layers, at every call."
        )
    weights = {weight.ref() for weight in model.weights}
    others = [variable.name for variable in created if variable.ref() not in weights]
    if others:
        raise ValueError(
            f"keras_model_fn creates variables {others}, which are not weights of the model. "
            "Remove compile(), unused layers and random layers other than Dropout; to augment "
            "images, use LocalTraining(augment=...)."
        )


def refuse_assignment(name: str, /, *_args: Any, **_options: Any) -> None:
    """Replaces a variable's `assign`, because the value would be lost with the variable."""
    raise ValueError(
        f"Weight {name!r} is assigned a value when the model is built or called, as by "
        "set_weights, load_weights, load_model, a layer's weights=... or stateful=True, but the "
        "value would be lost. Pass values of trained weights to `starting_from` of the model that "
        "from_keras returns, and load those of frozen layers by set_weights or load_weights."
    )


def check_loaded(layers: Iterable[tf.keras.layers.Layer]) -> None:
    """Checks that layers into which values were loaded are frozen."""
    for layer in layers:
        for weight in [*layer.trainable_weights, *statistics_of(layer)]:
            refuse_assignment(weight.name)


def check_unique(names: Iterable[tuple[str, str]]) -> None:
    """Checks that no two weights have the same names of layer and weight."""
    (layer, weight), count = collections.Counter(names).most_common(1)[0]
    if count > 1:
        raise ValueError(
            f"Weight {weight!r} of layer {layer!r} exists {count} times. Give every layer a unique "
            "name, also across nested models, and every weight a unique name in its layer."
        )


def check_reserved(trained: Iterable[tf.Variable]) -> None:
    """Checks that no trained weight has the name of a moving statistic."""
    for weight in trained:
        if weight.name.removesuffix(":0").rpartition("/")[2] in STATISTICS:
            raise ValueError(
                f"The trained weight {weight.name!r} has the name of a moving statistic, which no "
                "gradient moves. Rename it."
            )


def check_losses(model: tf.keras.Model) -> None:
    """Checks that a model, after a call, has no losses but of weights, and no constraints."""
    layers = [layer for layer in model._flatten_layers() if has_other_losses(layer)]
    if layers:
        raise ValueError(
            f"Layer {layers[-1].name!r} has its own loss, from an activity_regularizer or "
            "add_loss, which would be ignored. Remove it: penalise weights by regularizers such as "
            "kernel_regularizer or by config.local.weight_decay, outputs by the loss of a task."
        )
    for weight in model.weights:
        if getattr(weight, "constraint", None) is not None:
            raise ValueError(
                f"Weight {weight.name!r} has a constraint, which optimizer steps and means over "
                "clients would ignore. Remove it."
            )


def check_evaluation(model: tf.keras.Model, inputs: Any) -> None:
    """Checks that a model can be called in evaluation, so that no layer trains there."""
    graph = tf.__internal__.FuncGraph("evaluation")
    with graph.as_default(), pure_layers(None), pure_batch_normalization(None):
        model(inputs, training=False)


def check_outputs(outputs: Any, task: Task) -> None:
    """Checks that outputs suit the task: a logit for each class, and no probabilities."""
    if task.outputs == "any":
        return
    if task.outputs == "class_logits":
        _check_class_logits(outputs, task)
    for output in tf.nest.flatten(outputs):
        operation = output.op
        while operation.type in ("Identity", "Reshape"):
            operation = operation.inputs[0].op
        if activation := _PROBABILITIES.get(operation.type):
            raise ValueError(
                f"The last operation {operation.name!r} returns probabilities, but the loss of "
                f"task {task.name!r} takes logits. Remove the {activation}."
            )


def _check_class_logits(outputs, task):
    if not isinstance(outputs, tf.Tensor) or outputs.shape.rank not in (None, 2):
        shapes = tf.nest.map_structure(lambda output: tuple(output.shape[1:]), outputs)
        raise ValueError(
            f"The model returns outputs of shape {shapes} for each example, but task "
            f"{task.name!r} takes one logit for each class. Flatten or pool before the last layer, "
            "or choose another task, such as task=tff_pfl.TASKS['sequence']()."
        )
    if outputs.shape[-1] == 1:
        raise ValueError(
            f"The model returns one number for each example, but task {task.name!r} takes two "
            "logits or more. Choose another task, such as task=tff_pfl.TASKS['binary']() for one "
            "logit."
        )


def check_whole_numbers(graph: tf.Graph) -> None:
    """Checks that no operation converts bfloat16 to integers, which rounding has changed."""
    for operation in graph.get_operations():
        if operation.type != "Cast" or operation.inputs[0].dtype != tf.bfloat16:
            continue
        if operation.outputs[0].dtype.is_integer:
            raise ValueError(
                f"Operation {operation.name!r} converts bfloat16 to integers, as an embedding "
                "does, but bfloat16 cannot hold most integers above 256. Pass integers to the "
                "model: preprocess=lambda x: tf.cast(x, tf.int32)."
            )


def check_captures(graph: tf.__internal__.FuncGraph, created: Iterable[tf.Variable]) -> None:
    """Checks that a graph uses no tables, and no variables except the model's weights."""
    weights = {id(variable.handle) for variable in created}
    captured = (tensor for tensor in graph.external_captures if tensor.dtype == tf.resource)
    if any(id(tensor) not in weights for tensor in captured):
        raise ValueError(
            "preprocess or a layer uses a table, or a variable that is not a weight of the model, "
            "as IntegerLookup, TextVectorization and Keras models do. Apply it to the inputs "
            "before you make a FederatedDataset of them."
        )


def check_not_assigned(graph: tf.Graph) -> None:
    """Checks that no operation of a graph changes a variable."""
    for node in nodes(graph):
        if node.op in _ASSIGNMENTS:
            refuse_assignment(node.name)


def check_stateless(graph: tf.Graph) -> None:
    """Checks that seeds determine all random numbers of a graph."""
    for name, kind in unseeded_operations(graph):
        raise ValueError(
            f"Operation {name!r} of type {kind!r} {described(kind)}. Use Dropout layers, also "
            "instead of the dropout and recurrent_dropout of recurrent layers, and "
            "tf.random.stateless_* operations for other random numbers."
        )
