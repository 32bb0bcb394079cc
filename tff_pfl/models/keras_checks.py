"""Checks that a pure model can be made of a Keras model."""

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from tff_pfl.models.randomness import described, unseeded_operations

_PROBABILITIES = {"Softmax": "softmax", "Sigmoid": "sigmoid"}


def check_function(keras_model_fn: Callable[[], tf.keras.Model]) -> None:
    """Checks that a function builds the model; models themselves can be called, too."""
    if not callable(keras_model_fn) or isinstance(keras_model_fn, tf.keras.layers.Layer):
        raise ValueError(
            "keras_model_fn must be a function that builds a model, not a "
            f"{type(keras_model_fn).__name__}: from_keras(network, ...), not "
            "from_keras(network(), ...)."
        )


def check_weights(model: tf.keras.Model, created: Iterable[tf.Variable]) -> None:
    """Checks that all weights are trained, and that all variables of the model are weights."""
    for layer in model._flatten_layers():
        if isinstance(layer, tf.keras.layers.BatchNormalization):
            raise ValueError(
                f"Layer {layer.name!r} is a batch normalisation: its moving statistics are a state "
                "that clients cannot share soundly. Use tf.keras.layers.GroupNormalization."
            )
    if not model.weights:
        raise ValueError(f"Keras model {model.name!r} has no weights.")
    here = {variable.ref() for variable in created}
    if before := [weight.name for weight in model.weights if weight.ref() not in here]:
        raise ValueError(
            f"keras_model_fn returns a model whose weights {before} were there before it was "
            "called. It must build the model, and all of its layers, anew at every call."
        )
    if model.non_trainable_weights:
        raise ValueError(
            f"Keras model {model.name!r} has non-trainable weights "
            f"{[w.name for w in model.non_trainable_weights]}. Every weight of a federated model "
            "is trained and sent; make them constants, or trainable."
        )
    weights = {weight.ref() for weight in model.weights}
    others = [variable.name for variable in created if variable.ref() not in weights]
    if others:
        raise ValueError(
            f"keras_model_fn creates variables {others}, which are not weights of the model it "
            "returns. Leave out compile(), layers that the model does not use, and layers that "
            "draw random numbers, other than Dropout; LocalTraining(augment=...) changes images."
        )


def refuse_assignment(name: str, /, *_args: Any, **_options: Any) -> None:
    """Takes the place of a variable's `assign`: the value would be lost with the variable."""
    raise ValueError(
        f"Weight {name!r} is assigned a value where the model is built or called, as by "
        "set_weights, load_weights, load_model, a layer's weights=... or a recurrent layer's "
        "stateful=True, which nothing would keep. "
        "Weights start from initializers, such as tf.keras.initializers.Constant(value); or "
        "replace the init of the model that from_keras returns."
    )


def check_default_metrics(outputs: Any) -> None:
    """Checks that accuracy is defined: two logits or more."""
    if isinstance(outputs, tf.Tensor) and (outputs.shape.rank == 1 or outputs.shape[-1] == 1):
        raise ValueError(
            "The model returns one number for each example, for which the default metric, whether "
            "the largest logit is the label's, says nothing. Give example_metrics; for one logit, "
            "{'accuracy': lambda y, z: tf.cast(tf.equal(z[:, 0] > 0, y > 0), tf.float32)}; or {}."
        )


def check_losses(model: tf.keras.Model) -> None:
    """Checks that a model, once called, has no penalties or constraints besides the loss."""
    layers = [layer for layer in model._flatten_layers(include_self=False) if layer.losses]
    if layers or model.losses:
        owner = f"Layer {layers[-1].name!r}" if layers else f"The model {model.name!r}"
        raise ValueError(
            f"{owner} has a loss of its own, by a regularizer or add_loss, which would be ignored. "
            "Leave it out; penalise weights by local training, such as config.local.weight_decay, "
            "and outputs by example_loss."
        )
    for weight in model.weights:
        if getattr(weight, "constraint", None) is not None:
            raise ValueError(
                f"Weight {weight.name!r} has a constraint, which would be ignored: a step of an "
                "optimizer and a mean over clients need not keep it. Leave it out."
            )


def check_logits(outputs: Any) -> None:
    """Checks that outputs suit the default loss: one logit for each class, no probabilities."""
    if not isinstance(outputs, tf.Tensor) or outputs.shape.rank not in (None, 2):
        shapes = tf.nest.map_structure(lambda output: tuple(output.shape[1:]), outputs)
        raise ValueError(
            f"The model returns numbers of shape {shapes} for each example, and the loss takes one "
            "logit for each class. Flatten or pool them before the last layer, or give an "
            "example_loss, and example_metrics, of them."
        )
    operation = outputs.op
    while operation.type == "Identity":
        operation = operation.inputs[0].op
    if activation := _PROBABILITIES.get(operation.type):
        raise ValueError(
            f"The last operation {operation.name!r} returns probabilities, and the loss takes "
            f"logits. Leave the {activation} out."
        )


def check_whole_numbers(graph: tf.Graph) -> None:
    """Checks that no numbers rounded to bfloat16 are taken as whole ones."""
    for operation in graph.get_operations():
        if operation.type != "Cast" or operation.inputs[0].dtype != tf.bfloat16:
            continue
        if operation.outputs[0].dtype.is_integer:
            raise ValueError(
                f"Operation {operation.name!r} takes numbers in bfloat16 as whole ones, as an "
                "embedding does, and bfloat16 lacks most of those above 256. Give the model whole "
                "numbers: preprocess=lambda x: tf.cast(x, tf.int32)."
            )


def nodes(graph: tf.Graph) -> list:
    """Returns all nodes of a graph, those of its functions included."""
    definition = graph.as_graph_def()
    return [*definition.node, *(n for f in definition.library.function for n in f.node_def)]


def check_captures(graph: tf.__internal__.FuncGraph, created: Iterable[tf.Variable]) -> None:
    """Checks that a graph holds no tables, and no variables other than the model's."""
    weights = {id(variable.handle) for variable in created}
    captured = (tensor for tensor in graph.external_captures if tensor.dtype == tf.resource)
    if any(id(tensor) not in weights for tensor in captured):
        raise ValueError(
            "preprocess or a layer uses a table, or a variable that is not a weight of the model, "
            "as IntegerLookup, TextVectorization and Keras models in preprocess do. Apply these to "
            "the inputs before a FederatedDataset is made of them."
        )


def check_stateless(graph: tf.Graph) -> None:
    """Checks that a seed determines all random numbers of a graph."""
    for name, kind in unseeded_operations(graph):
        raise ValueError(
            f"Operation {name!r} of type {kind!r} {described(kind)}. Of Keras's stochastic "
            "layers, Dropout is made stateless automatically, but not the dropout and "
            "recurrent_dropout of recurrent layers: put a Dropout layer before them. Write others "
            "with tf.random.stateless_* ops."
        )
