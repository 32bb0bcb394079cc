"""Tests the evaluation of a global model over rounds."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.deployment.test_sequence_data import ELEMENT, as_sequence
from tests.federation import EXAMPLES_TYPE, assert_close, random_examples, tiny_model
from tff_pfl.deployment import compose_global_evaluation
from tff_pfl.local import Examples, evaluate


@pytest.fixture(scope="module")
def evaluation():
    return compose_global_evaluation(tiny_model(), EXAMPLES_TYPE)


def expected(clients, weights):
    """Computes the means over the examples of all clients together."""
    x, y = (np.concatenate([getattr(client, name) for client in clients]) for name in ("x", "y"))
    totals = evaluate(tiny_model(), weights, Examples(x, y, np.int32(len(y))))
    means = {name: totals[name].total / totals[name].count for name in ("loss", "accuracy")}
    return means | {"num_examples": np.float32(len(y))}


@pytest.mark.thorough
def test_metrics_are_means_of_the_round_and_of_all_rounds(evaluation):
    weights = tiny_model().init(3)
    state = evaluation.set_model_weights(evaluation.initialize(), weights)
    cohorts = [[random_examples(5), random_examples(0)], [random_examples(8), random_examples(6)]]
    for cohort in cohorts:
        state, metrics = evaluation.next(state, cohort)
    measured = metrics["client_work"]["eval"]
    assert_close(measured["current_round_metrics"], expected(cohorts[1], weights))
    assert_close(measured["total_rounds_metrics"], expected(sum(cohorts, []), weights))
    assert_close(evaluation.get_model_weights(state), weights)


@pytest.mark.thorough
def test_totals_count_beyond_float32_precision(evaluation):
    state = evaluation.initialize()
    many = tf.nest.map_structure(lambda total: total + 2.0**25, state.sums)
    for _ in range(4):
        state, metrics = evaluation.next(state._replace(sums=many), [random_examples(1)])
        many = state.sums
    assert metrics["client_work"]["eval"]["total_rounds_metrics"]["num_examples"] == 2**25 + 4


def test_sequences_give_the_same_metrics_as_examples(evaluation):
    sequence_evaluation = compose_global_evaluation(tiny_model(), tff.types.SequenceType(ELEMENT))
    clients = [random_examples(5), random_examples(0), random_examples(8)]
    sequences = list(map(as_sequence, clients))
    output = sequence_evaluation.next(sequence_evaluation.initialize(), sequences)
    assert_close(output, evaluation.next(evaluation.initialize(), clients))
