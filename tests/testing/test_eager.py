"""Tests that algorithms run block by block agree with their composed processes."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.federation import (
    EXAMPLES_TYPE,
    assert_close,
    leaves,
    local_sgd,
    make_clients,
    tiny_model,
)
from tests.marks import together
from tests.templates.mean_process import EXAMPLES_TYPE as NUMBERS_TYPE
from tests.templates.mean_process import algorithm, clients, examples, mean_exchange
from tff_pfl.aggregators import BranchMeanFactory, Shares, Stack, aggregated
from tff_pfl.algorithms import make
from tff_pfl.attacks import scaled_uploads
from tff_pfl.evaluation import fine_tuned
from tff_pfl.templates import AGGREGATORS, compose, with_aggregator
from tff_pfl.testing.eager import EagerProcess

pytestmark = pytest.mark.usefixtures("clients_in_a_loop")
MODEL, SIZES = tiny_model(), (6, 5, 0, 9)


def rounds_of(process, cohorts=((0, 1, 2), (1, 3))):
    """Returns all results of two rounds, and the models for evaluation."""
    state, all_clients = process.initialize(), make_clients(process, SIZES)
    results = [state]
    for cohort in cohorts:
        output = process.next(state, [all_clients[i] for i in cohort])
        state = output.state
        results += [state.round_num, state.algorithm, output.clients, output.metrics]
        for i, own in zip(cohort, output.clients, strict=True):
            all_clients[i] = all_clients[i]._replace(state=own)
    results.append(process.personalize(state, all_clients))
    results += [fn(state) for fn in (process.global_weights, process.snapshot) if fn is not None]
    if process.client_snapshot is not None:
        results.append(process.client_snapshot([client.state for client in all_clients]))
    return results


def assert_same_rounds(algorithm, tolerance=1e-5):
    by_blocks = EagerProcess(algorithm, seed=3)
    composed = compose(algorithm, EXAMPLES_TYPE, seed=3)
    for found, expected in zip(rounds_of(by_blocks), rounds_of(composed), strict=True):
        assert_close(found, expected, tolerance)


@pytest.mark.thorough
def test_attacked_and_fine_tuned_algorithm_agrees_with_its_process():
    local = local_sgd(learning_rate=0.1, epochs=1)
    attacked = scaled_uploads(make("fedavg", MODEL, local), client_ids=[1], factor=-3.0)
    assert_same_rounds(fine_tuned(attacked, local, epochs=1))


@pytest.mark.thorough
@pytest.mark.parametrize("report", [None, "none"])
def test_metrics_agree_with_the_composed_process(report):
    made = algorithm(mean_exchange(), report=report)
    process = EagerProcess(made)
    metrics = process.next(process.initialize(), clients(process, examples(1.0, 3.0))).metrics
    composed = compose(made, NUMBERS_TYPE)
    expected = composed.next(composed.initialize(), clients(composed, examples(1.0, 3.0))).metrics
    assert list(metrics) == list(expected)
    assert list(metrics["train"]) == list(expected["train"])
    assert_close(metrics, expected)


def test_results_are_arrays_and_old_states_stay_unchanged():
    process = EagerProcess(algorithm(mean_exchange()))
    cohort, start = clients(process, examples(5.0)), process.initialize()
    output = process.next(start, cohort)
    assert all(isinstance(leaf, np.ndarray | np.generic) for leaf in leaves(output))
    np.testing.assert_array_equal(start.algorithm, [1.0, 2.0])
    assert (start.round_num, output.state.round_num) == (0, 1)


@together(
    ("factory", "name"),
    [
        (tff.aggregators.UnweightedMeanFactory(), "UnweightedMeanFactory"),
        (tff.learning.secure_aggregator(zeroing=False, clipping=False), "MeanFactory"),
    ],
)
def test_aggregators_without_an_eager_version_raise(factory, name):
    with pytest.raises(TypeError, match=f"^{name} needs the whole process: use"):
        aggregated(factory, Stack(tf.zeros([2, 3]), tf.ones([2])))


@pytest.mark.slow
def test_branches_use_the_aggregator_of_their_pairs():
    """Tests the median instead of the plain sum."""
    pfedmb = make("pfedmb", MODEL, local_sgd(learning_rate=0.1))
    assert_same_rounds(with_aggregator(pfedmb, AGGREGATORS["median"]()))


def test_noisy_branches_with_little_weight_move_less():
    upload = Shares(tf.constant([[[2.0], [2.0]], [[4.0], [4.0]]]), tf.constant([[0.9, 0.1]] * 2))
    found = aggregated(BranchMeanFactory(noise=0.2), Stack(upload, tf.constant([0.5, 0.5])))
    np.testing.assert_allclose(found, [[3.0], [3.0 * 0.1 / (2 * 0.2)]], rtol=1e-6)


def test_empty_cohort_raises():
    process = EagerProcess(algorithm(mean_exchange()))
    with pytest.raises(ValueError, match="needs at least one client. Use compose"):
        process.next(process.initialize(), [])
