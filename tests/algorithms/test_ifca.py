"""Tests IFCA: its limits, the choices of clients, its rounds on quadratics, and restarts."""

import dataclasses
import functools

import numpy as np
import pytest

from tests.algorithms.rounds import QUADRATIC, as_rows, each_round, personal, stacked
from tests.federation import (
    COHORTS,
    SIZES,
    assert_close,
    assert_equal,
    eager,
    last,
    local_sgd,
    make_client,
    make_clients,
    run_rounds,
    tiny_model,
    traced,
    trained,
)
from tests.marks import slow
from tests.quadratics import descended, objectives, quadratic_examples, vector_of
from tff_pfl.algorithms import make
from tff_pfl.algorithms.ifca import IfcaServer
from tff_pfl.local import trees
from tff_pfl.models import distinct_seeds
from tff_pfl.testing.eager import EagerProcess

DIM, RATE, STEPS, DECAY, SEED = 3, 0.2, 4, 0.5, 2
N = 6
A, CENTRES = objectives(N)
C = [c + (-1) ** i for i, c in enumerate(CENTRES)]
B = np.linspace(0.0, 1.0, N)
NUMBERS = (1, 3, 2, 1, 2, 3)  # copies of each client's only example, all in one batch
LOCAL = local_sgd(RATE, STEPS, max(NUMBERS), learning_rate_decay=DECAY)


@pytest.mark.slow
def test_one_model_equals_fedavg():
    found = trained("ifca", num_clients=3, num_clusters=1)
    expected = trained("fedavg", weighting="uniform").shared
    assert_close(trees.row(found.state.algorithm.models, 0), expected, tolerance=1e-6)


@pytest.mark.thorough
def test_one_model_for_each_client_equals_local():
    """Fixes each client's model, and starts Local from the same models."""
    found = trained("ifca", num_clients=3, num_clusters=3, fixed_clusters=(0, 1, 2))
    initial = found.process.initialize().algorithm.models
    alone = eager("local", tiny_model(), local_sgd(), seed=1)
    clients = [
        client._replace(state=client.state._replace(model=trees.row(initial, i)))
        for i, client in enumerate(make_clients(alone, SIZES))
    ]
    _, expected = last(run_rounds(alone, clients, COHORTS))
    assert_close(found.personal, [client.state.model for client in expected], tolerance=1e-6)


@functools.cache
def quadratic_process(num_clusters=3, **options):
    options |= {"num_clients": N, "num_clusters": num_clusters}
    return traced("ifca", QUADRATIC, LOCAL, **options, seed=SEED)


def quadratic_clients(process):
    examples = map(quadratic_examples, A, C, B, NUMBERS)
    return [make_client(process, i, its) for i, its in enumerate(examples)]


def without_examples(client):
    return client._replace(data=client.data._replace(size=np.int32(0)))


def with_models(state, vectors):
    return state._replace(algorithm=state.algorithm._replace(models=stacked(vectors)))


def shares_of(metrics):
    return [metrics["train"]["server"][f"share_{j}"] for j in range(3)]


def loss(i, w):
    return 0.5 * (w - C[i]) @ A[i] @ (w - C[i]) + B[i]


def choice(i, models):
    return int(np.argmin([loss(i, w) for w in models]))


# Two models near the clients, and one too far from all of them.
START = np.float32([np.full(DIM, 1.5), np.full(DIM, -1.5), np.full(DIM, 50.0)])
QUADRATIC_COHORTS = ((0, 1, 2), (1, 3, 4), (0, 2, 3, 4, 5))


@pytest.mark.thorough_but_one
@pytest.mark.parametrize(
    ("averaging", "weighting"),
    [
        ("models", "uniform"),
        slow("models", "num_examples"),
        slow("gradients", "uniform"),
        ("gradients", "num_examples"),
    ],
)
def test_rounds_match_numpy_on_quadratics(averaging, weighting):
    """Covers personal models, which have the least loss on a client's examples."""
    process = quadratic_process(averaging=averaging, weighting=weighting)
    state, models = with_models(process.initialize(), START), START.astype(np.float64)
    rounds = each_round(process, quadratic_clients(process), QUADRATIC_COHORTS, state)
    for t, (cohort, state, clients, metrics) in enumerate(rounds):
        weights = np.array([NUMBERS[i] if weighting == "num_examples" else 1 for i in cohort])
        choices = np.array([choice(i, models) for i in cohort])
        assert set(choices) == {0, 1}
        changes, losses = [], []
        for i, j in zip(cohort, choices, strict=True):
            losses.append(loss(i, models[j]))
            steps = STEPS if averaging == "models" else 1
            changes.append(descended(models[j], A[i], C[i], RATE * DECAY**t, steps) - models[j])
        for j in (0, 1):
            sums = (weights * (choices == j)) @ np.array(changes)
            divisor = weights[choices == j] if averaging == "models" else weights
            models[j] = models[j] + sums / np.sum(divisor)
        found = as_rows(state.algorithm.models)
        assert_close(found, models)
        np.testing.assert_array_equal(found[2], START[2])  # no client chose it
        chosen = [found[choice(i, models)] for i in range(N)]
        assert_equal(personal(process, state, clients), chosen)
        assert_close(shares_of(metrics), [np.mean(choices == j) for j in range(3)])
        assert metrics["train"]["server"]["restarts"] == 0
        if averaging == "gradients":
            mean = np.average(losses, weights=[NUMBERS[i] for i in cohort])
            assert metrics["train"]["loss"] == pytest.approx(mean, rel=1e-5)


def test_first_of_equal_models_is_chosen_by_clients_with_examples():
    process, models = quadratic_process(), START[[2, 0, 0]]
    *clients, empty = quadratic_clients(process)
    start = with_models(process.initialize(), models)
    state, _, metrics = process.next(start, [*clients, without_examples(empty)])
    assert shares_of(metrics) == [0, 1, 0]
    found = as_rows(state.algorithm.models)
    np.testing.assert_array_equal(found[[0, 2]], models[[0, 2]])
    assert np.linalg.norm(found[1] - models[1]) > 0.1


FIXED = (0, 0, 0, 0, 1, 1)


def test_fixed_clusters_determine_personal_models():
    process = quadratic_process(2, fixed_clusters=FIXED)
    state = with_models(process.initialize(), START[:2])
    clients = quadratic_clients(process)
    assert [choice(i, START[:2]) for i in range(N)] != list(FIXED)
    assert_equal(personal(process, state, clients), list(START[list(FIXED)]))


# Restarts: if a model has too few clients, all models start anew.

ALL_OF_ONE, TOO_FEW, ENOUGH = (0, 1, 2), (0, 1, 2, 3, 4), (0, 1, 2, 4)


@functools.cache
def restarting_process(min_share=0.25, max_restarts=2):
    """Builds a process whose clients have fixed clusters, and whose server can restart."""
    algorithm = make("ifca", QUADRATIC, LOCAL, num_clients=N, num_clusters=2, fixed_clusters=FIXED)
    server = IfcaServer(QUADRATIC.init, 2, "models", min_share, max_restarts)
    (exchange,) = algorithm.exchanges
    exchanges = [dataclasses.replace(exchange, finalize=server.finalize)]
    algorithm = dataclasses.replace(algorithm, server_init=server.init, exchanges=exchanges)
    return EagerProcess(algorithm, SEED)


@functools.cache
def initial_models():
    """Returns the models of the start and of each restart, `[3, 2, DIM]`."""
    drawn = [vector_of(QUADRATIC.init(seed)) for seed in distinct_seeds(SEED, 6)]
    return np.reshape(drawn, [3, 2, DIM])


def after_round(models, cohort, t):
    """Returns the models after a round in which clients have fixed clusters."""
    result = np.array(models, np.float64)
    for j in range(2):
        members = [i for i in cohort if FIXED[i] == j]
        if members:
            ends = [descended(models[j], A[i], C[i], RATE * DECAY**t, STEPS) for i in members]
            result[j] = np.mean(ends, axis=0)
    return result


def test_initial_models_are_distinct():
    drawn = np.reshape(initial_models(), [6, DIM])
    distances = np.linalg.norm(drawn[:, np.newaxis] - drawn, axis=-1)
    assert np.min(distances[np.triu_indices(6, 1)]) > 0.1
    found = as_rows(quadratic_process().initialize().algorithm.models)
    np.testing.assert_array_equal(found, drawn[:3])
    assert_equal(found[0], vector_of(QUADRATIC.init(SEED)))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("options", "cohorts", "restarts"),
    [
        ({}, (ALL_OF_ONE, TOO_FEW, ALL_OF_ONE, ALL_OF_ONE), (1, 2, 2, 2)),  # none are left
        ({}, (ENOUGH, ALL_OF_ONE, TOO_FEW), (0, 0, 0)),  # settled for good
        ({}, (TOO_FEW, ENOUGH, ALL_OF_ONE), (1, 1, 1)),  # settled after a restart
        ({"min_share": 0.0}, (ALL_OF_ONE, TOO_FEW), (0, 0)),
        ({"max_restarts": 0}, (ALL_OF_ONE, TOO_FEW), (0, 0)),
    ],
)
def test_models_restart_until_each_has_enough_clients(options, cohorts, restarts):
    process, expected, before = restarting_process(**options), initial_models()[0], 0
    rounds = each_round(process, quadratic_clients(process), cohorts)
    for t, (now, (cohort, state, _, metrics)) in enumerate(zip(restarts, rounds, strict=True)):
        is_restart = now > before
        expected = initial_models()[now] if is_restart else after_round(expected, cohort, t)
        assert_close(as_rows(state.algorithm.models), expected)
        assert metrics["train"]["server"]["restarts"] == state.algorithm.restarts == now
        assert state.algorithm.settled != is_restart
        share = np.mean([FIXED[i] for i in cohort])
        assert metrics["train"]["server"]["share_1"] == pytest.approx(share)
        before = now


def test_cohort_without_examples_does_not_restart():
    process = restarting_process()
    client, start = without_examples(quadratic_clients(process)[0]), process.initialize()
    assert_equal(process.next(start, [client]).state.algorithm, start.algorithm)
