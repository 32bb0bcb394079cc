"""Tests FedProx: its rounds on quadratics."""

import functools

import numpy as np
import pytest

from tests.federation import COHORTS, eager, local_sgd, run_rounds
from tests.quadratics import objectives, quadratic_clients, quadratic_model, vector_of

DIM, RATE, STEPS, MU = 3, 0.2, 4, 0.7
EYE = np.eye(DIM)
A, C = objectives()
SIZES = (1, 3, 2)  # copies of each client's only example, all in one batch


@functools.cache
def quadratic_process(mu, **options):
    local = local_sgd(RATE, STEPS, max(SIZES))
    return eager("fedprox", quadratic_model(2, 1), local, mu=mu, **options, seed=2)


def client_result(i, w, mu=MU, rate=RATE, steps=STEPS):
    """Returns w* + (I - eta (A + mu I))^K (w - w*), with w* = (A + mu I)^-1 (A c + mu w)."""
    pulled = A[i] + mu * EYE
    end = np.linalg.solve(pulled, A[i] @ C[i] + mu * w)
    return end + np.linalg.matrix_power(EYE - rate * pulled, steps) @ (w - end)


@pytest.mark.thorough_but_one
@pytest.mark.parametrize(
    ("weighting", "weights"), [("num_examples", SIZES), ("uniform", (1, 1, 1))]
)
def test_rounds_match_numpy_on_quadratics(weighting, weights):
    """Clients are pulled to the model they received, not to the model before each step."""
    process = quadratic_process(MU, weighting=weighting, personalized="local")
    w = vector_of(process.initialize().algorithm.weights).astype(np.float64)
    own = [None] * 3
    for cohort, (state, clients) in zip(
        COHORTS, run_rounds(process, quadratic_clients(process, A, C, SIZES), COHORTS), strict=True
    ):
        for i in cohort:
            own[i] = client_result(i, w)
            # Without a pull, or pulled to a model that moves along, the result is far away.
            assert np.linalg.norm(own[i] - client_result(i, w, mu=0.0)) > 0.05
        w = np.average([own[i] for i in cohort], axis=0, weights=[weights[i] for i in cohort])
        np.testing.assert_allclose(vector_of(state.algorithm.weights), w, rtol=1e-5, atol=1e-6)
        for i in cohort:
            np.testing.assert_allclose(
                vector_of(clients[i].state.model), own[i], rtol=1e-5, atol=1e-6
            )
