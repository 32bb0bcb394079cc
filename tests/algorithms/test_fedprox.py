"""FedProx: FedAvg without its pull, and its rounds on quadratics."""

import functools

import numpy as np
import pytest

from tests.federation import (
    assert_equal,
    eager,
    last,
    leaves,
    local_sgd,
    make_clients,
    run_rounds,
    tiny_model,
)
from tests.quadratics import quadratic_clients, quadratic_model, spd, vector_of

MODEL = tiny_model()
COHORTS = ((0, 1), (1, 2), (0, 2))  # who takes part in each round
DIM, RATE, STEPS, MU = 3, 0.2, 4, 0.7
EYE = np.eye(DIM)
A = [spd(DIM, seed) for seed in range(3)]
C = [np.random.default_rng(10 + i).normal(size=DIM) for i in range(3)]
SIZES = (1, 3, 2)  # of clients that have the same example several times, all in one batch


@functools.cache
def trained(algorithm, **options):
    """`(server state, clients)` after some rounds."""
    process = eager(algorithm, MODEL, local_sgd(), **options, seed=1)
    return last(run_rounds(process, make_clients(process, (4, 6, 3)), COHORTS))


@pytest.mark.parametrize("personalized", ["global", "local"])
def test_without_mu_it_is_fedavg(personalized):
    state, clients = trained("fedprox", mu=0.0, personalized=personalized)
    expected, expected_clients = trained("fedavg", personalized=personalized)
    assert_equal(state, expected)
    assert_equal([c.state for c in clients], [c.state for c in expected_clients])
    assert bool(leaves(clients[0].state)) == (personalized == "local")


@functools.cache
def quadratic_process(mu, learning_rate=RATE, epochs=STEPS, **options):
    local = local_sgd(learning_rate, epochs, max(SIZES))
    return eager("fedprox", quadratic_model(2, 1), local, mu=mu, **options, seed=2)


def client_result(i, w, mu=MU, rate=RATE, steps=STEPS):
    """w* + (I - eta (A + mu I))^K (w - w*), with w* = (A + mu I)^-1 (A c + mu w)."""
    pulled = A[i] + mu * EYE
    end = np.linalg.solve(pulled, A[i] @ C[i] + mu * w)
    return end + np.linalg.matrix_power(EYE - rate * pulled, steps) @ (w - end)


@pytest.mark.parametrize(
    ("weighting", "weights"), [("num_examples", SIZES), ("uniform", (1, 1, 1))]
)
def test_rounds_on_quadratics(weighting, weights):
    """Clients are pulled to the model of each round, and not to that of the step before."""
    process = quadratic_process(MU, weighting=weighting, personalized="local")
    w = vector_of(process.initialize().algorithm.weights).astype(np.float64)
    own = [None] * 3
    for cohort, (state, clients) in zip(
        COHORTS, run_rounds(process, quadratic_clients(process, A, C, SIZES), COHORTS), strict=True
    ):
        for i in cohort:
            own[i] = client_result(i, w)
            # Far from what there would be without a pull, as of a model that moves along.
            assert np.linalg.norm(own[i] - client_result(i, w, mu=0.0)) > 0.05
        w = np.average([own[i] for i in cohort], axis=0, weights=[weights[i] for i in cohort])
        np.testing.assert_allclose(vector_of(state.algorithm.weights), w, rtol=1e-5, atol=1e-6)
        for i in cohort:
            np.testing.assert_allclose(
                vector_of(clients[i].state.model), own[i], rtol=1e-5, atol=1e-6
            )
