"""Tests clients whose optimizer state persists over rounds (`persist_optimizer_state`)."""

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.algorithms.rounds import START, A, C, clients_of, each_round, on_quadratics
from tests.federation import assert_close, assert_equal, leaves
from tests.marks import slow
from tests.quadratics import vector_of
from tff_pfl.local import LocalTraining

RATE, MOMENTUM, STEPS = 0.1, 0.9, 2


def rounds(name, cohorts, persist=True, **options):
    sgdm = tff.learning.optimizers.build_sgdm(RATE, MOMENTUM)
    local = LocalTraining(sgdm, STEPS, batch_size=1, persist_optimizer_state=persist)
    process = on_quadratics(name, local, num_clients=3, clients_per_round=2, **options)
    for it in each_round(process, clients_of(process, (1, 1, 1)), cohorts):
        yield it, process.personalize(it.state, it.clients[:1])


@pytest.mark.parametrize(
    ("name", "options"), [("fedper", {}), ("pgfed", {}), slow("fedfomo", {"num_models": 2})]
)
def test_momentum_continues_when_a_client_returns(name, options):
    """New clients start without momentum; references in NumPy cover other methods."""
    kept, fresh = (
        [
            (it.state.algorithm, models)
            for it, models in rounds(name, [(0,), (1,), (0,)], persist, **options)
        ]
        for persist in (True, False)
    )
    assert_equal(kept[:2], fresh[:2])
    (_, found), (_, others) = kept[2], fresh[2]
    for a, b in zip(leaves(found), leaves(others), strict=True):
        assert not np.allclose(a, b, atol=1e-3)


def heavy_ball(i, w, u):
    for _ in range(STEPS):
        u = MOMENTUM * u + A[i] @ (w - C[i])
        w = w - RATE * u
    return w, u


@pytest.mark.thorough
def test_rounds_match_heavy_ball_steps():
    """Covers FedAvg, Local, and Ditto and APFL, whose clients have two optimizers.

    Their own models equal those of Local with these options.
    """
    methods = {"fedavg": {}, "local": {}, "ditto": {"lambda_": 0.0}, "apfl": {"alpha": 1.0}}
    cohorts = [(0, 1), (1, 2), (0, 1)]
    found = [rounds(name, cohorts, **options) for name, options in methods.items()]
    w, buffers, own = START, [np.zeros(3)] * 3, [(START, np.zeros(3))] * 3
    for cohort, *outputs in zip(cohorts, *found, strict=True):
        models = []
        for i in cohort:
            model, buffers[i] = heavy_ball(i, w, buffers[i])
            models.append(model)
            own[i] = heavy_ball(i, *own[i])
        w = np.mean(models, axis=0)
        for name, (it, _) in zip(methods, outputs, strict=True):
            if name != "local":
                assert_close(vector_of(it.state.algorithm.weights), w)
            if name != "fedavg":
                found_own = [vector_of(client.state.model) for client in it.clients]
                assert_close(found_own, [model for model, _ in own])
