"""IFCA: when models start anew, and from where."""

import dataclasses
import functools

import numpy as np
import pytest

from tests.algorithms.ifca.test_round import (
    DECAY,
    DIM,
    FIXED,
    NUMBERS,
    QUADRATIC,
    RATE,
    SEED,
    STEPS,
    A,
    C,
    N,
    models_of,
    quadratic_clients,
)
from tests.federation import assert_equal, local_sgd
from tests.quadratics import descended, vector_of
from tff_pfl.algorithms import make
from tff_pfl.algorithms.ifca.server import IfcaServer
from tff_pfl.models import distinct_seeds
from tff_pfl.testing.eager import EagerProcess

ALL_OF_ONE, TOO_FEW, ENOUGH = (0, 1, 2), (0, 1, 2, 3, 4), (0, 1, 2, 4)


@functools.cache
def restarting_process(min_share=0.25, max_restarts=2):
    """Of clients who have chosen, for the server's part of who chooses."""
    local = local_sgd(RATE, STEPS, max(NUMBERS), learning_rate_decay=DECAY)
    algorithm = make("ifca", QUADRATIC, local, num_clients=N, num_clusters=2, fixed_clusters=FIXED)
    server = IfcaServer(QUADRATIC.init, 2, "models", min_share, max_restarts)
    (exchange,) = algorithm.exchanges
    exchanges = [dataclasses.replace(exchange, finalize=server.finalize)]
    algorithm = dataclasses.replace(algorithm, server_init=server.init, exchanges=exchanges)
    return EagerProcess(algorithm, SEED)


def restarting(cohorts, **options):
    """`(server state, metrics)` of rounds in which one of four clients is enough."""
    process = restarting_process(**options)
    clients, state = quadratic_clients(process), process.initialize()
    for cohort in cohorts:
        state, _, metrics = process.next(state, [clients[i] for i in cohort])
        yield state, metrics["train"]["server"]


@functools.cache
def initial_models():
    """Of the start and of each restart, `[3, 2, DIM]`."""
    rows = [vector_of(QUADRATIC.init(seed)) for seed in distinct_seeds(SEED, 6)]
    return np.reshape(rows, [3, 2, DIM])


def after_round(models, cohort, t):
    """The models after a round whose clients have fixed clusters."""
    result = np.array(models, np.float64)
    for j in range(2):
        ends = [
            descended(models[j], A[i], C[i], RATE * DECAY**t, STEPS)
            for i in cohort
            if FIXED[i] == j
        ]
        if ends:
            result[j] = np.mean(ends, axis=0)
    return result


def assert_models(state, expected):
    np.testing.assert_allclose(models_of(state), expected, rtol=1e-5, atol=1e-6)


def test_models_start_anew_until_restarts_are_used_up():
    cohorts = (ALL_OF_ONE, TOO_FEW, ALL_OF_ONE, ALL_OF_ONE)
    first, second, third, fourth = restarting(cohorts)
    for number, (state, metrics) in enumerate((first, second), start=1):
        np.testing.assert_array_equal(models_of(state), initial_models()[number])
        assert metrics["restarts"] == state.algorithm.restarts == number
        assert not state.algorithm.settled
    assert first[1]["share_1"] == 0
    assert second[1]["share_1"] == pytest.approx(0.2)
    rows = np.reshape(initial_models(), [6, DIM])
    distances = np.linalg.norm(rows[:, np.newaxis] - rows, axis=-1)
    assert np.min(distances[np.triu_indices(6, 1)]) > 0.1
    expected = initial_models()[2]
    for t, (state, metrics) in ((2, third), (3, fourth)):
        expected = after_round(expected, ALL_OF_ONE, t)
        assert_models(state, expected)
        assert metrics["restarts"] == state.algorithm.restarts == 2
        assert state.algorithm.settled


def test_models_that_have_their_share_settle_for_good():
    expected = initial_models()[0]
    cohorts = (ENOUGH, ALL_OF_ONE, TOO_FEW)
    for t, (state, metrics) in enumerate(restarting(cohorts)):
        expected = after_round(expected, cohorts[t], t)
        assert_models(state, expected)
        assert metrics["restarts"] == state.algorithm.restarts == 0
        assert state.algorithm.settled
        if t == 0:
            assert (metrics["share_0"], metrics["share_1"]) == (0.75, 0.25)


def test_models_may_settle_after_a_restart():
    *_, (state, metrics) = restarting((TOO_FEW, ENOUGH, ALL_OF_ONE))
    expected = after_round(after_round(initial_models()[1], ENOUGH, 1), ALL_OF_ONE, 2)
    assert_models(state, expected)
    assert metrics["restarts"] == 1


@pytest.mark.parametrize("options", [{"min_share": 0.0}, {"max_restarts": 0}], ids=str)
def test_models_that_never_start_anew(options):
    expected = initial_models()[0]
    for t, (state, metrics) in enumerate(restarting((ALL_OF_ONE, TOO_FEW), **options)):
        expected = after_round(expected, (ALL_OF_ONE, TOO_FEW)[t], t)
        assert_models(state, expected)
        assert metrics["restarts"] == 0


def test_a_cohort_without_examples_starts_nothing_anew():
    process = restarting_process()
    (client,) = quadratic_clients(process, [0])
    client = client._replace(data=client.data._replace(size=np.int32(0)))
    start = process.initialize()
    assert_equal(process.next(start, [client]).state.algorithm, start.algorithm)
