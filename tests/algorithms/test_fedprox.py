"""Tests FedProx: its rounds on quadratics."""

import numpy as np
import pytest

from tests.algorithms.rounds import COPIES, START, A, C, clients_of, each_round, on_quadratics
from tests.federation import assert_close, local_sgd
from tests.quadratics import descended, vector_of

RATE, STEPS, MU = 0.2, 4, 0.7


def client_result(i, w, mu=MU):
    """Returns the end of steps to w* = (A + mu I)^-1 (A c + mu w), with the matrix A + mu I."""
    pulled = A[i] + mu * np.eye(3)
    return descended(w, pulled, np.linalg.solve(pulled, A[i] @ C[i] + mu * w), RATE, STEPS)


@pytest.mark.thorough_but_one
@pytest.mark.parametrize(
    ("weighting", "weights"), [("num_examples", COPIES), ("uniform", (1, 1, 1))]
)
def test_rounds_match_numpy_on_quadratics(weighting, weights):
    """Clients are pulled to the model they received, not to the model before each step."""
    options = {"mu": MU, "weighting": weighting, "personalized": "local"}
    process = on_quadratics("fedprox", local_sgd(RATE, STEPS, max(COPIES)), **options)
    w = START
    for cohort, state, clients, _ in each_round(process, clients_of(process)):
        own = [client_result(i, w) for i in cohort]
        # Without a pull, or pulled to a model that moves along, the result is far away.
        assert np.linalg.norm(own[0] - client_result(cohort[0], w, mu=0.0)) > 0.05
        w = np.average(own, axis=0, weights=np.take(weights, cohort))
        assert_close(vector_of(state.algorithm.weights), w)
        assert_close([vector_of(clients[i].state.model) for i in cohort], own)
