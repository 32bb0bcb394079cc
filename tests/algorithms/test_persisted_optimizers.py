"""Tests clients whose optimizer state persists over rounds (`persist_optimizer_state`)."""

import functools

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.federation import assert_close, assert_equal, eager, leaves, make_client, run_rounds
from tests.marks import slow
from tests.quadratics import objectives, quadratic_examples, quadratic_model, vector_of
from tff_pfl.local import LocalTraining

DIM, RATE, MOMENTUM, STEPS = 3, 0.1, 0.9, 2
A, C = objectives()
# With these options, the own models of Ditto and APFL equal those of Local.
ALGORITHMS = {
    "fedavg": {},
    "local": {},
    "fedper": {},
    "ditto": {"lambda_": 0.0},
    "apfl": {"alpha": 1.0},
    "pgfed": {},
    "fedamp": {},
    "fedfomo": {"num_models": 2},
}
ALWAYS = ("fedper", "pgfed")  # `test_rounds_match_heavy_ball_steps` covers other methods


@functools.cache
def process_of(name, momentum=None, persist=True):
    local = LocalTraining(
        tff.learning.optimizers.build_sgdm(RATE, momentum),
        epochs=STEPS,
        batch_size=1,
        persist_optimizer_state=persist,
    )
    return eager(
        name,
        quadratic_model(2, 1),
        local,
        num_clients=3,
        clients_per_round=2,
        seed=2,
        **ALGORITHMS[name],
    )


def run(process, cohorts):
    """Yields `(server state, clients)` after each round."""
    clients = [make_client(process, i, quadratic_examples(A[i], C[i])) for i in range(3)]
    return run_rounds(process, clients, cohorts)


def models_of(process, state, clients):
    """Returns the first client's own model and, if there is one, the global model."""
    models = process.personalize(state, clients[:1])
    return leaves(models, process.global_weights(state) if process.global_weights else ())


@pytest.mark.thorough_but_one
@pytest.mark.parametrize("name", [x if x in ALWAYS else slow(x) for x in ALGORITHMS])
def test_momentum_continues_when_a_client_returns(name):
    """New clients start without momentum."""
    rounds = []
    for persist in (True, False):
        process = process_of(name, MOMENTUM, persist)
        done = run(process, [(0,), (1,), (0,)])
        rounds.append([models_of(process, state, clients) for state, clients in done])
    kept, fresh = rounds
    assert_equal(kept[:2], fresh[:2])
    for a, b in zip(kept[2], fresh[2], strict=True):
        assert not np.allclose(a, b, atol=1e-3)


def heavy_ball(i, w, u):
    for _ in range(STEPS):
        u = MOMENTUM * u + A[i] @ (w - C[i])
        w = w - RATE * u
    return w, u


@pytest.mark.thorough
def test_rounds_match_heavy_ball_steps():
    """Covers FedAvg, Local, and Ditto and APFL, whose clients have two optimizers."""
    cohorts = [(0, 1), (1, 2), (0, 1)]
    fedavg, local, *with_two = (
        run(process_of(name, MOMENTUM), cohorts) for name in ("fedavg", "local", "ditto", "apfl")
    )
    start = vector_of(quadratic_model(2, 1).init(2))
    w, buffers = start, [np.zeros(DIM)] * 3
    own = [(start, np.zeros(DIM))] * 3
    for cohort, (averaged, _), (_, alone), *outputs in zip(
        cohorts, fedavg, local, *with_two, strict=True
    ):
        models = []
        for i in cohort:
            model, buffers[i] = heavy_ball(i, w, buffers[i])
            models.append(model)
            own[i] = heavy_ball(i, *own[i])
        w = np.mean(models, axis=0)
        for state in (averaged, *(state for state, _ in outputs)):
            assert_close(vector_of(state.algorithm.weights), w)
        for clients in (alone, *(clients for _, clients in outputs)):
            for client, (model, _) in zip(clients, own, strict=True):
                assert_close(vector_of(client.state.model), model)
