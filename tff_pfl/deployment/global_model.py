"""Evaluates a global model on many clients' data, as programs of `tff.learning` do."""

import collections
from collections.abc import Callable, Mapping
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
        model: The model with weights `W`, such as the `evaluated_model` of a process.
        data_type: `D`, the type of a client's `Examples`, or of a sequence of examples
            `<x=..., y=...>`.
    """

    @tff.tensorflow.computation
    @elementwise_equality()
    def first_weights():
        return model.init(0)

    @tff.federated_computation
    def initial_weights():
        return tff.federated_eval(first_weights, tff.SERVER)

    weights_type = initial_weights.type_signature.result

    @tff.tensorflow.computation(weights_type.member, data_type)
    @elementwise_equality()
    def sums_of_client(weights, data):
        return sums_of_data(model, weights, data)

    @tff.federated_computation(weights_type, tff.types.FederatedType(data_type, tff.CLIENTS))
    def sums_of_clients(weights, data):
        return tff.federated_map(sums_of_client, (tff.federated_broadcast(weights), data))

    return evaluation_over_rounds(
        initial_weights, sums_of_clients, lambda sums, like: means_of(model, sums, like)
    )


def evaluation_over_rounds(
    initial_weights: tff.Computation,
    sums_of_clients: tff.Computation,
    means: Callable[[Any, Any], Any],
) -> tff.learning.templates.LearningProcess:
    """Makes an evaluation from the evaluation of a round; see `compose_global_evaluation`.

    Args:
        initial_weights: `( -> W@SERVER)`.
        sums_of_clients: `(<W@SERVER, {D}@CLIENTS> -> {T}@CLIENTS)`, the `metric_sums` of clients.
        means: `(sums, T) -> metrics`, from sums of more precise types than those of `T`.
    """
    weights_type, clients_type = sums_of_clients.type_signature.parameter
    sums_type = sums_of_clients.type_signature.result.member
    specs = tff.types.type_to_tf_tensor_specs(sums_type)

    @tff.tensorflow.computation(weights_type.member)
    def before_first_round(weights):
        zeros = tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, tf.float64), specs)
        return EvaluationState(weights, zeros)

    @tff.federated_computation
    def initialize():
        return tff.federated_map(before_first_round, initial_weights())

    state_type = initialize.type_signature.result

    @tff.tensorflow.computation(state_type.member, sums_type)
    def add_round(state, sums):
        summed = trees.add(state.sums, _cast(sums, tf.float64))
        metrics = collections.OrderedDict(
            current_round_metrics=means(sums, sums), total_rounds_metrics=means(summed, sums)
        )
        metrics = collections.OrderedDict(client_work=collections.OrderedDict(eval=metrics))
        return state._replace(sums=summed), metrics

    @tff.tensorflow.computation(state_type.member)
    def weights_of(state):
        return state.weights

    @tff.tensorflow.computation(state_type.member, weights_type.member)
    def with_weights(state, weights):
        return state._replace(weights=weights)

    @tff.federated_computation(state_type, clients_type)
    def next_round(state, clients):
        sums = sums_of_clients(tff.federated_map(weights_of, state), clients)
        added = tff.federated_map(add_round, (state, tff.federated_sum(sums)))
        return tff.learning.templates.LearningProcessOutput(added[0], added[1])

    return tff.learning.templates.LearningProcess(initialize, next_round, weights_of, with_weights)


def sums_of_data(model: Model, weights: Any, data: Any) -> Mapping[str, Any]:
    """Computes the `metric_sums` of `Examples`, or of a sequence of examples."""
    if not isinstance(data, tf.data.Dataset):
        return metric_sums(model, weights, data, batch_size=BATCH_SIZE)
    rows = tf.nest.map_structure(
        lambda spec: tf.zeros([1, *spec.shape], spec.dtype), data.element_spec
    )

    @tf.autograph.experimental.do_not_convert
    def step(sums, rows):
        batch = Batch(
            rows["x"],
            rows["y"],
            weight=tf.ones(tf.shape(tf.nest.flatten(rows)[0])[:1]),
            seed=tf.zeros([2], tf.int32),
        )
        return trees.add(sums, model.sums(weights, batch))

    return data.batch(BATCH_SIZE).reduce(zero_sums(model, weights, rows["x"], rows["y"]), step)


def _cast(sums, dtype):
    return tf.nest.map_structure(lambda leaf: tf.cast(leaf, dtype), sums)


def means_of(model: Model, sums: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """Returns metrics as float32; finalizers take sums of the types of `like`."""
    typed = tf.nest.map_structure(lambda leaf, other: tf.cast(leaf, other.dtype), sums, like)
    results = dict[str, Any](model.finalized(typed))
    for name, mean in results.items():
        exact = sums[name] if name in ("loss", *model.task.means) else mean
        results[name] = tf.cast(exact.total / exact.count, tf.float32)
    results["num_examples"] = tf.cast(sums["loss"].count, tf.float32)
    return results
