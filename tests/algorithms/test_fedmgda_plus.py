"""Tests FedMGDA+: its direction, its bounds, and its rounds on quadratics."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.algorithms.rounds import (
    COPIES,
    QUADRATIC,
    START,
    A,
    C,
    clients_of,
    each_round,
    on_quadratics,
)
from tests.federation import assert_close, assert_equal, local_sgd, tiny_model, trained
from tests.quadratics import descended, vector_of, weights_of
from tff_pfl.aggregators import Stack
from tff_pfl.algorithms import make
from tff_pfl.local import trees
from tff_pfl.numerics.min_norm import min_norm_weights

# Three gradients that oppose each other in pairs.
GRADIENTS = np.array([(1.0, -0.3, 0.0), (-1.0, 1.0, -0.2), (-1.0, -1.0, 1.0)])
UNIT = GRADIENTS / np.linalg.norm(GRADIENTS, axis=1, keepdims=True)


def step(updates, weight=None, local=None, round_num=0, **options):
    """Returns the step that the server subtracts, and metrics, for updates `u_i`, `[k, 3]`."""
    algorithm = make("fedmgda_plus", QUADRATIC, local or local_sgd(), **options)
    (exchange,) = algorithm.exchanges
    server = algorithm.server_init(0)._replace(weights=weights_of(np.zeros(3), 2, 1))
    weight = tf.cast(np.ones(len(updates)) if weight is None else weight, tf.float32)
    uploads = trees.stack([weights_of(-u, 2, 1) for u in updates])
    server, metrics = exchange.finalize(server, Stack(uploads, weight), tf.constant(round_num))
    return -vector_of(server.weights), metrics


@pytest.mark.parametrize(
    ("eps", "weights", "slopes", "in_conflict"),
    [
        (0.1, (0.402422, 0.364245, 0.233333), (-0.005449, -0.005449, 0.048108), 2),
        (1.0, (0.417284, 0.384922, 0.197794), (0.005144,) * 3, 0),
    ],
)
def test_direction_matches_golden_values(eps, weights, slopes, in_conflict):
    direction, metrics = step(GRADIENTS, eps=eps, lambda0="uniform")
    np.testing.assert_allclose(direction, weights @ UNIT, atol=2e-6)
    np.testing.assert_allclose(UNIT @ direction, slopes, atol=2e-6)
    assert metrics["num_in_conflict"] == in_conflict
    np.testing.assert_allclose(metrics["direction_norm"], np.linalg.norm(direction), rtol=1e-5)


@pytest.mark.parametrize(
    ("lambda0", "weights"), [("num_examples", (0.5, 0.3, 0.2)), ("uniform", (1 / 3,) * 3)]
)
def test_eps_0_averages_normalised_updates(lambda0, weights):
    weight = (5.0, 3.0, 2.0) if lambda0 == "num_examples" else None
    direction, _ = step(GRADIENTS, weight, eps=0.0, lambda0=lambda0, server_lr=0.5)
    np.testing.assert_allclose(direction, 0.5 * np.asarray(weights) @ UNIT, atol=1e-6)


def test_step_has_the_learning_rate_of_clients_if_server_lr_is_none():
    direction, _ = step(GRADIENTS)
    local = local_sgd(0.2, learning_rate_decay=0.5)
    found, _ = step(GRADIENTS, local=local, round_num=3, server_lr=None)
    np.testing.assert_allclose(found, 0.2 * 0.5**3 * direction, atol=1e-7)


def test_weights_stay_within_eps_and_in_0_to_1():
    """For opposite updates, the weights are as near to 1/2 as the bounds allow."""
    updates = np.array([[2.0, 0.0, 0.0], [-3.0, 0.0, 0.0]])
    for eps, first in ((0.1, 0.8), (0.3, 0.6), (0.5, 0.5)):
        direction, _ = step(updates, (9.0, 1.0), eps=eps)
        np.testing.assert_allclose(direction, [2 * first - 1, 0.0, 0.0], atol=1e-6)
    # One update against two would have the weight 1/2, but the bound is 1/3 + 0.05.
    direction, _ = step(np.concatenate([updates, updates[1:]]), eps=0.05)
    np.testing.assert_allclose(direction, [2 * (1 / 3 + 0.05) - 1, 0.0, 0.0], atol=1e-6)
    # For parallel updates any weights are optimal; 0.9 + 0.3 and 0.1 - 0.3 are cut to 1 and 0.
    direction, _ = step(np.abs(updates), (9.0, 1.0), eps=0.3)
    np.testing.assert_allclose(direction, [1.0, 0.0, 0.0], atol=1e-6)


@pytest.mark.parametrize("eps", [0.1, 1.0])
def test_zero_updates_and_clients_of_weight_0_do_not_count(eps):
    expected, _ = step(GRADIENTS[:2], (1.0, 3.0), eps=eps)
    with_zeros = np.concatenate([GRADIENTS[:2], np.zeros((2, 3))])
    direction, metrics = step(with_zeros, (1.0, 3.0, 9.0, 0.0), eps=eps)
    np.testing.assert_allclose(direction, expected, atol=1e-6)
    assert metrics["num_zero_updates"] == 1  # the other zero update has weight 0
    direction, metrics = step(np.zeros((2, 3)))
    np.testing.assert_array_equal(direction, np.zeros(3))
    assert metrics["num_zero_updates"] == 2


RATE, STEPS, SERVER_LR, EPS = 0.2, 4, 0.3, 0.1


def shortest_combination(u, v, prior, eps):
    """Returns the shortest combination of two unit vectors: equal weights, if the bounds allow."""
    first = np.clip(0.5, max(prior - eps, 0.0), min(prior + eps, 1.0))
    return first * u + (1 - first) * v


@pytest.mark.thorough_but_one
@pytest.mark.parametrize("lambda0", ["num_examples", "uniform"])
def test_rounds_match_numpy_on_quadratics(lambda0):
    options = {"eps": EPS, "lambda0": lambda0, "server_lr": SERVER_LR}
    process = on_quadratics("fedmgda_plus", local_sgd(RATE, STEPS, max(COPIES)), **options)
    w = START
    for cohort, state, clients, _ in each_round(process, clients_of(process)):
        ends = [descended(w, A[i], C[i], RATE, STEPS) for i in cohort]
        assert_close([vector_of(clients[i].state.model) for i in cohort], ends)
        sizes = np.take(COPIES, cohort) if lambda0 == "num_examples" else [1, 1]
        unit = [(w - end) / np.linalg.norm(w - end) for end in ends]
        w = w - SERVER_LR * shortest_combination(*unit, sizes[0] / sum(sizes), EPS)
        assert_close(vector_of(state.algorithm.weights), w)


ROUND = {"personalized": "local", "cohorts": ((0, 1, 2),)}


@pytest.mark.thorough
def test_eps_1_is_mgda_on_the_changes_of_fedavg():
    start = trees.to_vector(tiny_model().init(1))
    _, state, clients = trained("fedmgda_plus", **ROUND, eps=1.0, server_lr=0.7)
    _, _, expected = trained("fedavg", **ROUND)
    assert_equal([c.state for c in clients], [c.state for c in expected])
    unit = np.array([trees.to_vector(c.state.model) - start for c in clients], np.float64)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    moved = 0.7 * min_norm_weights(unit @ unit.T).numpy() @ unit
    assert_close(trees.to_vector(state.algorithm.weights), start + moved)


def test_server_optimizer_takes_the_step():
    sgd = tff.learning.optimizers.build_sgdm(0.25)
    _, state, _ = trained("fedmgda_plus", **ROUND, server_optimizer=sgd, server_lr=2.0)
    _, expected, _ = trained("fedmgda_plus", **ROUND, server_lr=0.5)
    assert_close(state.algorithm.weights, expected.algorithm.weights, tolerance=1e-6)
