"""Tests FedDyn: its rounds on quadratics, and its convergence."""

import numpy as np
import pytest

from tests.algorithms.rounds import START, A, C, clients_of, each_round, on_quadratics
from tests.federation import assert_close, last, local_sgd
from tests.quadratics import vector_of, weights_of

DIM, RATE, STEPS, ALPHA, NUM = 3, 0.2, 4, 0.7, 4
EYE = np.eye(DIM)
SIZES = (1, 3, 2, 1)  # copies of each client's only example, all in one batch
COHORTS = ((0, 1), (1, 2, 3), (0, 2))  # the clients of each round
OPTIMUM = np.linalg.solve(sum(A), sum(a @ c for a, c in zip(A, C, strict=True)))


def process_of(**options):
    local = local_sgd(RATE, STEPS, max(SIZES))
    return on_quadratics("feddyn", local, alpha=ALPHA, num_clients=NUM, **options)


def client_result(i, w, h, steps=STEPS):
    """Returns `theta_i` after gradient steps, or the minimiser if `steps` is `None`.

    The minimiser is `(A + alpha I)^-1 (A c + h_i + alpha w)`.
    """
    pulled = A[i] + ALPHA * EYE
    end = np.linalg.solve(pulled, A[i] @ C[i] + h + ALPHA * w)
    if steps is None:
        return end
    return end + np.linalg.matrix_power(EYE - RATE * pulled, steps) @ (w - end)


def round_of(cohort, w, h, steps=STEPS):
    """Returns `(w, all h_i, the cohort's theta_i)`, computed as in the paper."""
    h, thetas = dict(h), {i: client_result(i, w, h[i], steps) for i in cohort}
    for i, theta in thetas.items():
        h[i] = h[i] - ALPHA * (theta - w)
    mean = np.mean(list(thetas.values()), axis=0)
    return mean - np.mean(list(h.values()), axis=0) / ALPHA, h, thetas


def start():
    return START, {i: np.zeros(DIM) for i in range(NUM)}


def h_of(client):
    return -ALPHA * vector_of(client.state.drift)


def test_rounds_match_numpy_on_quadratics():
    """Clients with different numbers of examples weigh the same."""
    process = process_of(personalized="local")
    w, h = start()
    for cohort, state, clients, _ in each_round(process, clients_of(process, SIZES), COHORTS):
        w, h, thetas = round_of(cohort, w, h)
        assert_close(vector_of(state.algorithm.weights), w)
        assert_close([h_of(client) for client in clients], list(h.values()))
        assert_close(-ALPHA * vector_of(state.algorithm.drift), np.mean(list(h.values()), axis=0))
        for i, theta in thetas.items():
            assert_close(vector_of(clients[i].state.own.model), theta)


@pytest.mark.thorough
def test_partial_cohorts_converge_to_the_optimum_and_stay_there():
    w, h = start()
    rng = np.random.default_rng(0)
    assert np.linalg.norm(w - OPTIMUM) > 0.5
    for _ in range(800):
        w, h, _ = round_of(rng.choice(NUM, 2, replace=False), w, h, steps=None)
    np.testing.assert_allclose(w, OPTIMUM, atol=1e-6)

    process = process_of()
    state = process.initialize()
    there = state.algorithm._replace(weights=weights_of(OPTIMUM, 2, 1))
    clients = [
        client._replace(state=client.state._replace(drift=weights_of(-h[i] / ALPHA, 2, 1)))
        for i, client in enumerate(clients_of(process, SIZES))
    ]
    there = state._replace(algorithm=there)
    _, state, after, _ = last(each_round(process, clients, COHORTS, there))
    np.testing.assert_allclose(vector_of(state.algorithm.weights), OPTIMUM, atol=1e-5)
    assert_close([h_of(client) for client in after], list(h.values()))
