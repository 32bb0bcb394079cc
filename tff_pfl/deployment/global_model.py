"""Evaluates a global model on many clients' data, as programs of `tff.learning` do."""

import collections
from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.evaluation.each_client import BATCH_SIZE
from tff_pfl.local import Batch, metric_sums, trees, zero_sums
from tff_pfl.models import Model
from tff_pfl.tracing.equality import elementwise_equality


class EvaluationState(NamedTuple):
    """The server state of an evaluation.

    Attributes:
        weights: `W`, the evaluated weights.
        sums: The sums of the loss and the metrics over all clients of all rounds. They are
            float64, because float32 cannot count beyond 2^24 examples.
    """

    weights: Any
    sums: Mapping[str, Any]


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
    model's metrics over all examples (NaN without examples), and `num_examples`, or the
    sum of their weights.

    Args:
        model: The model with weights `W`: the process's `evaluated_model`, if it has one.
        data_type: `D`, the type of a client's `Examples`, or of a sequence of examples
            `<x=..., y=...>`.
    """

    def one_row():
        is_sequence = isinstance(data_type, tff.types.SequenceType)
        element = data_type.element if is_sequence else data_type
        return tf.nest.map_structure(
            lambda spec: tf.zeros([1, *spec.shape[0 if is_sequence else 1 :]], spec.dtype),
            [tff.types.type_to_tf_tensor_specs(rows) for rows in (element["x"], element["y"])],
        )

    @tff.tensorflow.computation
    @elementwise_equality()
    def initial_state():
        weights = model.init(0)
        return EvaluationState(weights, _cast(zero_sums(model, weights, *one_row()), tf.float64))

    state_type = initial_state.type_signature.result
    weights_type = state_type.weights

    @tff.tensorflow.computation(weights_type, data_type)
    @elementwise_equality()
    def evaluate_client(weights, data):
        if isinstance(data, tf.data.Dataset):
            return _sums_of_sequence(model, weights, data, *one_row())
        return metric_sums(model, weights, data, batch_size=BATCH_SIZE)

    @tff.tensorflow.computation(state_type, evaluate_client.type_signature.result)
    def add_round(state, sums):
        summed = trees.add(state.sums, _cast(sums, tf.float64))
        metrics = collections.OrderedDict(
            current_round_metrics=_results(model, sums, sums),
            total_rounds_metrics=_results(model, summed, sums),
        )
        metrics = collections.OrderedDict(client_work=collections.OrderedDict(eval=metrics))
        return state._replace(sums=summed), metrics

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
        sums = tff.federated_sum(tff.federated_map(evaluate_client, (weights, data)))
        added = tff.federated_map(add_round, (state, sums))
        return tff.learning.templates.LearningProcessOutput(added[0], added[1])

    return tff.learning.templates.LearningProcess(initialize, next_round, weights_of, with_weights)


def _sums_of_sequence(model, weights, sequence, x, y):
    @tf.autograph.experimental.do_not_convert
    def step(sums, rows):
        batch = Batch(
            rows["x"],
            rows["y"],
            weight=tf.ones(tf.shape(tf.nest.flatten(rows)[0])[:1]),
            seed=tf.zeros([2], tf.int32),
        )
        return trees.add(sums, model.sums(weights, batch))

    return sequence.batch(BATCH_SIZE).reduce(zero_sums(model, weights, x, y), step)


def _cast(sums, dtype):
    return tf.nest.map_structure(lambda leaf: tf.cast(leaf, dtype), sums)


def _results(model, sums, like):
    """Returns metrics as float32; finalizers take sums of the types of `like`."""
    typed = tf.nest.map_structure(lambda leaf, other: tf.cast(leaf, other.dtype), sums, like)
    results = model.finalized(typed)
    for name, mean in results.items():
        exact = sums[name] if name in ("loss", *model.task.means) else mean
        results[name] = tf.cast(exact.total / exact.count, tf.float32)
    results["num_examples"] = tf.cast(sums["loss"].count, tf.float32)
    return results
