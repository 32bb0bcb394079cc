"""Tests FedSAM: its rounds on quadratics, momentum, weight decay and clipping."""

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.algorithms.rounds import START, A, C, clients_of, each_round, on_quadratics
from tests.federation import assert_close, local_sgd, make_client
from tests.quadratics import quadratic_examples, vector_of
from tff_pfl.local import LocalTraining

RHO, RATE, STEPS = 0.3, 0.2, 4


@pytest.mark.parametrize(
    ("momentum", "decay", "clip_norm"), [(0.0, 0.0, None), (0.9, 0.4, None), (0.0, 0.0, 0.5)]
)
def test_rounds_match_numpy_on_quadratics(momentum, decay, clip_norm):
    """Momentum, weight decay and clipping act on the second gradient only."""
    sgdm = tff.learning.optimizers.build_sgdm(RATE, momentum or None)
    local = LocalTraining(sgdm, STEPS, 1, weight_decay=decay, clip_norm=clip_norm)
    process = on_quadratics("fedsam", local, rho=RHO)
    w, most = START, clip_norm or np.inf
    clients = clients_of(process, copies=(1, 1))
    for _, state, _, metrics in each_round(process, clients, [(0, 1)] * 2):
        ends, losses, norms = [], [], []
        for i in (0, 1):
            v, u = w, np.zeros(3)
            for _ in range(STEPS):
                ascent = A[i] @ (v - C[i])
                losses.append(0.5 * (v - C[i]) @ ascent)  # before the step
                gradient = A[i] @ (v + RHO * ascent / np.linalg.norm(ascent) - C[i])
                norms.append(np.linalg.norm(gradient))
                u = momentum * u + gradient * min(1, most / norms[-1]) + decay * v
                v = v - RATE * u
            ends.append(v)
        w = np.mean(ends, axis=0)
        assert_close(vector_of(state.algorithm.weights), w)
        assert_close(metrics["train"]["loss"], np.mean(losses))
        assert clip_norm is None or max(norms) > clip_norm


def test_client_at_its_minimum_stays():
    """A gradient of 0 gives a perturbation of 0."""
    process = on_quadratics("fedsam", local_sgd(RATE, 1, 1), rho=RHO)
    client = make_client(process, 0, quadratic_examples(np.eye(3), START))
    output = process.next(process.initialize(), [client])
    np.testing.assert_array_equal(vector_of(output.state.algorithm.weights), START)
    assert output.metrics["train"]["num_nonfinite"] == 0
