"""Evaluates a global model on many clients' data, as programs of `tff.learning` do."""

import collections
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.equality import elementwise_equality
from tff_pfl.evaluation.federated import BATCH_SIZE
from tff_pfl.local import Batch, evaluate, trees
from tff_pfl.models import Model, Totals


class EvaluationState(NamedTuple):
    """The server state of an evaluation.

    Attributes:
        weights: `W`, the evaluated weights.
        totals: The sums of the loss and the metrics over all clients of all rounds. They are
            float64, because float32 cannot count beyond 2^24 examples.
    """

    weights: Any
    totals: Totals


def compose_global_evaluation(
    model: Model, data_type: tff.types.Type
) -> tff.learning.templates.LearningProcess:
    """Composes the evaluation of a global model over rounds of different clients.

        initialize        : ( -> S@SERVER)
        next              : (<S@SERVER, {D}@CLIENTS> -> <state=S@SERVER, metrics=M@SERVER>)
        get_model_weights : (S -> W)
        set_model_weights : (<S, W> -> S)

    The process replaces `tff.learning.algorithms.build_fed_eval` in a
    `tff.learning.programs.EvaluationManager`. Its metrics, under `client_work` and `eval`, are
    `current_round_metrics` and `total_rounds_metrics`. Both have the means of the loss and of the
    model's metrics over all examples (NaN without examples), and `num_examples`.

    Args:
        model: The model with weights `W`: the process's `evaluated_model`, if it has one.
        data_type: `D`, the type of a client's `Examples`, or of a sequence of examples
            `<x=..., y=...>`.
    """

    @tff.tensorflow.computation
    @elementwise_equality()
    def initial_state():
        return EvaluationState(model.init(0), _cast(model.zero_totals(), tf.float64))

    state_type = initial_state.type_signature.result
    weights_type = state_type.weights

    @tff.tensorflow.computation(weights_type, data_type)
    @elementwise_equality()
    def evaluate_client(weights, data):
        if isinstance(data, tf.data.Dataset):
            return _totals_of_sequence(model, weights, data)
        return evaluate(model, weights, data, batch_size=BATCH_SIZE)

    @tff.tensorflow.computation(state_type, evaluate_client.type_signature.result)
    def add_round(state, totals):
        summed = trees.add(state.totals, _cast(totals, tf.float64))
        metrics = collections.OrderedDict(
            current_round_metrics=_means(totals), total_rounds_metrics=_means(summed)
        )
        metrics = collections.OrderedDict(client_work=collections.OrderedDict(eval=metrics))
        return state._replace(totals=summed), metrics

    @tff.tensorflow.computation(state_type)
    def weights_of(state):
        return state.weights

    @tff.tensorflow.computation(state_type, weights_type)
    def with_weights(state, weights):
        return state._replace(weights=weights)

    @tff.federated_computation
    def initialize():
        return tff.federated_eval(initial_state, tff.SERVER)

    @tff.federated_computation(
        initialize.type_signature.result, tff.types.FederatedType(data_type, tff.CLIENTS)
    )
    def next_round(state, data):
        weights = tff.federated_broadcast(tff.federated_map(weights_of, state))
        totals = tff.federated_sum(tff.federated_map(evaluate_client, (weights, data)))
        added = tff.federated_map(add_round, (state, totals))
        return tff.learning.templates.LearningProcessOutput(added[0], added[1])

    return tff.learning.templates.LearningProcess(initialize, next_round, weights_of, with_weights)


def _totals_of_sequence(model, weights, sequence) -> Totals:
    @tf.autograph.experimental.do_not_convert
    def step(totals, rows):
        batch = Batch(
            rows["x"],
            rows["y"],
            weight=tf.ones(tf.shape(tf.nest.flatten(rows)[0])[:1]),
            seed=tf.zeros([2], tf.int32),
        )
        return trees.add(totals, model.totals(weights, batch))

    return sequence.batch(BATCH_SIZE).reduce(model.zero_totals(), step)


def _cast(totals: Totals, dtype: tf.DType) -> Totals:
    return tf.nest.map_structure(lambda leaf: tf.cast(leaf, dtype), totals)


def _means(totals: Totals):
    """Returns means as float32, for sums of any type."""
    means = collections.OrderedDict(
        (name, tf.cast(mean.total / mean.count, tf.float32)) for name, mean in totals.items()
    )
    means["num_examples"] = tf.cast(totals["loss"].count, tf.float32)
    return means
