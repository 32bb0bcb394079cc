"""Constant: each client predicts the same for all inputs, from its training labels.

It is a reference: a model that is not better has learned nothing from inputs. Nothing is trained
or sent. The outputs are, for `n` training examples,

    classes               log (n_c + 1) / (n + C)       of each of `C` classes
    sequence              the same of tokens, at each place
    binary, multi_label   log (n_1 + 1) / (n_0 + 1)     of each label
    regression            mean of the labels

`n_c`, `n_0` and `n_1` are the numbers of examples, or tokens, with a label. The added 1 (Laplace's
rule of succession) keeps the loss of labels that a client never had finite. The most frequent label
is predicted, as without it. A client without examples predicts all classes alike, or 0.
"""

import collections
import dataclasses

import tensorflow as tf

from tff_pfl.algorithms.registry import ALGORITHMS
from tff_pfl.local import LocalTraining, evaluate, num_rows
from tff_pfl.models import Model
from tff_pfl.models.example_weights import weights_of
from tff_pfl.templates import (
    Algorithm,
    ClientOutput,
    Exchange,
    Personalization,
    no_client_state,
    no_server_state,
)


@ALGORITHMS.register("constant")
def constant(model: Model, local: LocalTraining) -> Algorithm:
    """Builds the algorithm of constant predictions.

    Args:
        model: The model, whose task and shape of outputs count, not its layers.
        local: Unused.

    Raises:
        ValueError: The task is another one than those above, or the model does not tell the shape
            of its inputs.
    """
    del local
    task, fit = model.task, _fit_of(model)
    if model.inputs is None:
        raise ValueError(
            f"constant needs the shape of inputs, but model {model.name!r} has none. Set `inputs` "
            "of the Model."
        )
    whole = _shape(model, model.inputs)
    shape = whole[-1:] if fit is _log_shares else whole

    def init(seed):
        return _weights(tf.zeros(shape))

    def apply(weights, x, *, training, seed):
        number = tf.shape(tf.nest.flatten(x)[0])[0]
        of_example = _shape(model, x) if None in whole else whole
        return tf.broadcast_to(weights["constant"]["outputs"], [number, *of_example])

    predicted = dataclasses.replace(
        model.evaluated_as(f"constant_{model.name}", init, apply), starts_alike=True
    )

    def fitted(examples):
        y, weight = examples.labels, weights_of(examples.y)
        first = tf.nest.map_structure(lambda leaf: leaf[:1], (examples.x, y))
        # Raises an error if labels do not fit.
        task.example_loss(first[1], apply(init(0), first[0], training=False, seed=None))
        is_row = tf.cast(tf.range(num_rows(examples)) < examples.size, tf.float32)
        return _weights(fit(task, y, is_row if weight is None else is_row * weight, shape))

    def client_work(message, state, examples, context):
        return ClientOutput(state=(), metrics=evaluate(predicted, fitted(examples), examples))

    return Algorithm(
        server_init=no_server_state,
        client_init=no_client_state,
        exchanges=[Exchange(client_work=client_work)],
        personalize=Personalization(lambda message, state, examples, context: fitted(examples)),
        evaluated_model=predicted,
    )


def _weights(outputs):
    return collections.OrderedDict(constant=collections.OrderedDict(outputs=outputs))


def _fit_of(model: Model):
    """Returns `(task, y, weight, shape) -> outputs` for the model's task."""
    if model.task.outputs == "class_logits":
        return _log_shares
    fits = {
        "sequence": _log_shares,
        "binary": _log_odds,
        "multi_label": _log_odds,
        "regression": _means,
    }
    if model.task.name not in fits:
        raise ValueError(
            f"constant knows no best constant output for the task {model.task.name!r} of model "
            f"{model.name!r}. Its tasks are classification, {', '.join(fits)}."
        )
    return fits[model.task.name]


def _shape(model: Model, x) -> list[int]:
    """Returns the shape of the outputs for an input of a batch, without computing them."""

    def outputs(x):
        seed = tf.zeros([2], tf.int32)
        return model.apply(model.init(0), x, training=False, seed=seed)

    with tf.init_scope():
        specs = tf.nest.map_structure(
            lambda leaf: tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype), x
        )
        traced = tf.function(outputs, autograph=False).get_concrete_function(specs)
    return traced.structured_outputs.shape[1:].as_list()


def _log_shares(task, y, weight, shape):
    if task.tokens is None:
        weight = task.weights_of(y, weight)
    else:
        y, of_tokens = task.tokens(y)
        weight = weight[:, tf.newaxis]
        weight = tf.where(weight > 0.0, weight * of_tokens, 0.0)
    pairs = (tf.reshape(leaf, [-1]) for leaf in (weight, y))
    counts = 1.0 + tf.math.unsorted_segment_sum(*pairs, shape[0])
    return tf.math.log(counts / tf.reduce_sum(counts))


def _log_odds(task, y, weight, shape):
    total, weight = _total(task, y, weight, shape)
    return tf.math.log((total + 1.0) / (weight - total + 1.0))


def _means(task, y, weight, shape):
    return tf.math.divide_no_nan(*_total(task, y, weight, shape))


def _total(task, y, weight, shape):
    """Returns the sum of the labels in the shape of outputs, and the sum of the weights."""
    weight = task.weights_of(y, weight)
    columns = tf.reshape(tf.cast(y, tf.float32), [tf.shape(y)[0], *shape])
    kept = tf.reshape(weight, [-1] + [1] * len(shape))
    return tf.reduce_sum(tf.where(kept > 0.0, kept * columns, 0.0), 0), tf.reduce_sum(weight)
