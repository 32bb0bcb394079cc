"""What a Keras model must be like, so that a pure model can be made of it."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from tff_pfl.models.errors import KerasModelError
from tff_pfl.models.randomness import described, unseeded_operations

_PROBABILITIES = {"Softmax": "softmax", "Sigmoid": "sigmoid"}


def check_arguments(keras_model_fn: Callable[[], tf.keras.Model], input_shape: Any) -> None:
    """What is given is a function that builds a model, and the shape of an input."""
    if isinstance(keras_model_fn, tf.keras.layers.Layer):  # which can be called, too
        raise KerasModelError(
            f"keras_model_fn is a {type(keras_model_fn).__name__}, built already. Give the "
            "function that builds it: from_keras(network, ...), not from_keras(network(), ...)."
        )
    if not callable(keras_model_fn):
        raise KerasModelError(
            f"keras_model_fn must be a function that builds a model, got {keras_model_fn!r}."
        )
    if not isinstance(input_shape, Iterable) or not all(
        isinstance(length, int | np.integer) and length > 0 for length in input_shape
    ):
        raise KerasModelError(
            f"input_shape={input_shape!r} must be a shape of known lengths, without the batch "
            "axis, such as (8,) or (28, 28, 1)."
        )


def check_weights(model: tf.keras.Model, created: Iterable[tf.Variable]) -> None:
    """All weights are trained, and all that was created while it was built is a weight."""
    for layer in model._flatten_layers():
        if isinstance(layer, tf.keras.layers.BatchNormalization):
            raise KerasModelError(
                f"Layer {layer.name!r} is a batch normalisation: its moving statistics are a state "
                "that clients cannot share soundly. Use tf.keras.layers.GroupNormalization."
            )
    if not model.weights:
        raise KerasModelError(f"Keras model {model.name!r} has no weights.")
    here = {variable.ref() for variable in created}
    before = [weight.name for weight in model.weights if weight.ref() not in here]
    if before:
        raise KerasModelError(
            f"keras_model_fn returns a model whose weights {before} were there before it was "
            "called. It must build the model, and all of its layers, anew at every call."
        )
    if model.non_trainable_weights:
        raise KerasModelError(
            f"Keras model {model.name!r} has non-trainable weights "
            f"{[w.name for w in model.non_trainable_weights]}. Every weight of a federated model "
            "is trained and sent; make them constants, or trainable."
        )
    weights = {weight.ref() for weight in model.weights}
    others = [variable.name for variable in created if variable.ref() not in weights]
    if any(name.endswith("/StateVar:0") for name in others):
        raise KerasModelError(
            f"keras_model_fn creates variables {others}, of layers that draw random numbers. Of "
            "these, only Dropout is made stateless; images are changed by "
            "config.local.augmentation, or LocalTraining(augment=...)."
        )
    if others:
        raise KerasModelError(
            f"keras_model_fn creates variables {others}, which are not weights of the model it "
            "returns. Leave out compile(), and layers that the model does not use."
        )


def refuse_assignment(name: str, /, *_args: Any, **_options: Any) -> None:
    """In place of a variable's `assign`: what is assigned would be lost with the variable."""
    raise KerasModelError(
        f"Weight {name!r} is assigned a value where the model is built or called, as by "
        "set_weights, load_weights, load_model, a layer's weights=... or a recurrent layer's "
        "stateful=True, which nothing would keep. "
        "Weights start from initializers, such as tf.keras.initializers.Constant(value); or "
        "replace the init of the model that from_keras returns."
    )


def check_types(weights: Iterable[Any]) -> None:
    """All of a model's numbers are float32, as all mathematics of weights is."""
    for weight in weights:
        if weight.dtype != tf.float32:
            raise KerasModelError(
                f"Weight {weight.name!r} is {weight.dtype.name}, and weights of a federated model "
                "are float32. Leave the dtype of the layer out; mixed precision is had by "
                "compute_type='bfloat16'."
            )


def check_default_metrics(outputs: Any) -> None:
    """That the largest logit is the label's says something."""
    if isinstance(outputs, tf.Tensor) and (outputs.shape.rank == 1 or outputs.shape[-1] == 1):
        raise KerasModelError(
            "The model returns one number for each example, of which the default metric, whether "
            "the largest logit is the label's, says nothing. Give example_metrics; of one logit, "
            "{'accuracy': lambda y, z: tf.cast(tf.equal(z[:, 0] > 0, y > 0), tf.float32)}; or {}."
        )


def check_losses(model: tf.keras.Model) -> None:
    """Once it was called: nothing but the loss of the examples shall be minimised."""
    layers = [layer for layer in model._flatten_layers(include_self=False) if layer.losses]
    if layers or model.losses:
        of = f"Layer {layers[-1].name!r}" if layers else f"The model {model.name!r}"
        raise KerasModelError(
            f"{of} has a loss of its own, by a regularizer or add_loss, which nothing would "
            "follow: the loss is that of the examples. Leave it out; penalties of weights are a "
            "matter of local training, such as config.local.weight_decay, those of outputs of "
            "example_loss."
        )
    for weight in model.weights:
        if getattr(weight, "constraint", None) is not None:
            raise KerasModelError(
                f"Weight {weight.name!r} has a constraint, which nothing would follow: a step of "
                "an optimizer and a mean over clients need not keep it. Leave it out."
            )


def check_logits(outputs: Any) -> None:
    """What the default loss takes: one tensor of a number for each class, no probabilities."""
    if not isinstance(outputs, tf.Tensor):
        raise KerasModelError(
            f"The model returns {len(tf.nest.flatten(outputs))} outputs, and the loss takes one "
            "tensor of logits. Give an example_loss, and example_metrics, of all of them."
        )
    if outputs.shape.rank not in (None, 2):
        raise KerasModelError(
            f"The model returns numbers of shape {tuple(outputs.shape[1:])} for each example, and "
            "the loss takes one logit for each class. Flatten or pool them before the last layer, "
            "or give an example_loss, and example_metrics, of them."
        )
    operation = outputs.op
    while operation.type == "Identity":
        operation = operation.inputs[0].op
    if activation := _PROBABILITIES.get(operation.type):
        raise KerasModelError(
            f"The last operation {operation.name!r} returns probabilities, and the loss takes "
            f"logits. Leave the {activation} out."
        )


def nodes(graph: tf.Graph) -> list:
    """All nodes of a graph, those of its functions included."""
    definition = graph.as_graph_def()
    return [*definition.node, *(n for f in definition.library.function for n in f.node_def)]


def check_captures(graph: tf.__internal__.FuncGraph, created: Iterable[tf.Variable]) -> None:
    """Refuses tables, and variables other than the model's: a pure function cannot hold them."""
    weights = {id(variable.handle) for variable in created}
    captured = (tensor for tensor in graph.external_captures if tensor.dtype == tf.resource)
    if any(id(tensor) not in weights for tensor in captured):
        raise KerasModelError(
            "preprocess or a layer uses a table, or a variable that is not a weight of the model, "
            "as IntegerLookup, TextVectorization and Keras models in preprocess do. Apply these to "
            "the inputs before a FederatedDataset is made of them."
        )


def check_stateless(graph: tf.Graph) -> None:
    """Refuses what would make a round irreproducible."""
    for name, kind in unseeded_operations(graph):
        raise KerasModelError(
            f"Operation {name!r} of type {kind!r} {described(kind)}. Of Keras's stochastic "
            "layers, Dropout is made stateless automatically, but not the dropout and "
            "recurrent_dropout of recurrent layers: put a Dropout layer before them. Write others "
            "with tf.random.stateless_* ops."
        )
