"""Tests IFCA: its limits, the choices of clients, its rounds on quadratics, and restarts."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf

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
    random_examples,
    run_rounds,
    tiny_model,
    traced,
    trained,
)
from tests.marks import slow
from tests.quadratics import (
    descended,
    objectives,
    quadratic_examples,
    quadratic_model,
    vector_of,
    weights_of,
)
from tff_pfl.algorithms import make
from tff_pfl.algorithms.ifca import IfcaServer
from tff_pfl.local import evaluate, trees
from tff_pfl.models import distinct_seeds
from tff_pfl.testing.eager import EagerProcess

MODEL = tiny_model()
DIM, RATE, STEPS, DECAY, SEED = 3, 0.2, 4, 0.5, 2
QUADRATIC = quadratic_model(2, 1)
N = 6
A, CENTRES = objectives(N)
C = [c + (-1) ** i for i, c in enumerate(CENTRES)]
B = np.linspace(0.0, 1.0, N)
NUMBERS = (1, 3, 2, 1, 2, 3)  # copies of each client's only example, all in one batch


@pytest.mark.parametrize("weighting", [slow("uniform"), slow("num_examples")])
def test_one_model_equals_fedavg(weighting):
    default = {} if weighting == "uniform" else {"weighting": weighting}
    found = trained("ifca", num_clients=3, num_clusters=1, **default)
    expected = trained("fedavg", weighting=weighting).shared
    assert_close(trees.row(found.state.algorithm.models, 0), expected, tolerance=1e-6)


@pytest.mark.thorough
def test_one_model_for_each_client_equals_local():
    """Fixes each client's model, and starts Local from the same models."""
    found = trained("ifca", num_clients=3, num_clusters=3, fixed_clusters=(0, 1, 2))
    initial = found.process.initialize().algorithm.models
    alone = eager("local", MODEL, local_sgd(), seed=1)
    clients = [
        client._replace(state=client.state._replace(model=trees.row(initial, i)))
        for i, client in enumerate(make_clients(alone, SIZES))
    ]
    _, expected = last(run_rounds(alone, clients, COHORTS))
    assert_close(found.personal, [client.state.model for client in expected], tolerance=1e-6)


@pytest.mark.thorough
def test_personal_model_has_the_least_loss():
    """Each client has images of a single class, and the last one never takes part."""
    process = eager("ifca", MODEL, local_sgd(), num_clients=4, num_clusters=3, seed=1)
    data = [random_examples(5 + i, seed=i) for i in range(4)]
    data = [its._replace(y=np.full_like(its.y, i % 3)) for i, its in enumerate(data)]
    clients = [make_client(process, i, its) for i, its in enumerate(data)]
    start = process.initialize()
    end, _ = last(run_rounds(process, clients, COHORTS, start))
    chosen = []
    for state in (start, end):
        models = [trees.row(state.algorithm.models, j) for j in range(3)]
        choices = []
        for its, own in zip(data, process.personalize(state, clients), strict=True):
            losses = [float(evaluate(MODEL, w, its)["loss"].mean) for w in models]
            choices.append(int(np.argmin(losses)))
            assert_equal(own, models[choices[-1]])
        chosen.append(choices)
    assert len(set(chosen[-1])) > 1  # choices differ between clients
    assert len(set(map(tuple, chosen))) > 1  # and between rounds


@functools.cache
def quadratic_process(num_clusters=3, **options):
    local = local_sgd(RATE, STEPS, max(NUMBERS), learning_rate_decay=DECAY)
    options |= {"num_clients": N, "num_clusters": num_clusters}
    return traced("ifca", QUADRATIC, local, **options, seed=SEED)


def quadratic_clients(process, ids=range(N)):
    clients = []
    for i in ids:
        examples = quadratic_examples(A[i], C[i], B[i], copies=NUMBERS[i])
        clients.append(make_client(process, i, examples))
    return clients


def with_models(state, rows):
    models = tf.nest.map_structure(
        lambda *parts: np.stack(parts), *(weights_of(row, 2, 1) for row in rows)
    )
    return state._replace(algorithm=state.algorithm._replace(models=models))


def models_of(state):
    """Returns the models as rows, float32 `[k, DIM]`."""
    layers = state.algorithm.models.values()
    return np.concatenate([np.asarray(layer["w"]) for layer in layers], axis=1)


def shares_of(metrics, num_clusters=3):
    return [metrics["train"]["server"][f"share_{j}"] for j in range(num_clusters)]


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
    process = quadratic_process(averaging=averaging, weighting=weighting)
    clients, state = quadratic_clients(process), with_models(process.initialize(), START)
    models = START.astype(np.float64)
    for t, cohort in enumerate(QUADRATIC_COHORTS):
        rate = RATE * DECAY**t
        weights = np.array([NUMBERS[i] if weighting == "num_examples" else 1 for i in cohort])
        choices = np.array([choice(i, models) for i in cohort])
        assert set(choices) == {0, 1}
        changes, losses = [], []
        for i, j in zip(cohort, choices, strict=True):
            w = models[j]
            losses.append(loss(i, w))
            steps = STEPS if averaging == "models" else 1
            contraction = np.linalg.matrix_power(np.eye(DIM) - rate * A[i], steps)
            changes.append(C[i] + contraction @ (w - C[i]) - w)
        output = process.next(state, [clients[i] for i in cohort])
        for j in (0, 1):
            sums = (weights * (choices == j)) @ np.array(changes)
            divisor = weights[choices == j] if averaging == "models" else weights
            models[j] = models[j] + sums / np.sum(divisor)
        state, metrics = output.state, output.metrics
        found = models_of(state)
        np.testing.assert_allclose(found, models, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(found[2], START[2])  # no client chose it
        expected = [np.mean(choices == j) for j in range(3)]
        np.testing.assert_allclose(shares_of(metrics), expected, rtol=1e-6)
        assert metrics["train"]["server"]["restarts"] == 0
        if averaging == "gradients":
            numbers = [NUMBERS[i] for i in cohort]
            mean = np.average(losses, weights=numbers)
            assert metrics["train"]["loss"] == pytest.approx(mean, rel=1e-5)


@pytest.mark.thorough
def test_first_of_equal_models_is_chosen():
    process = quadratic_process()
    models = START[[2, 0, 0]]
    state, _, metrics = process.next(
        with_models(process.initialize(), models), quadratic_clients(process)
    )
    assert shares_of(metrics) == [0, 1, 0]
    found = models_of(state)
    np.testing.assert_array_equal(found[[0, 2]], models[[0, 2]])
    assert np.linalg.norm(found[1] - models[1]) > 0.1


def test_clients_without_examples_have_no_share():
    process = quadratic_process()
    *others, empty = quadratic_clients(process, (0, 1, 2))
    empty = empty._replace(data=empty.data._replace(size=np.int32(0)))
    start = with_models(process.initialize(), START[[2, 0, 0]])
    metrics = process.next(start, [*others, empty]).metrics
    assert shares_of(metrics) == [0, 1, 0]


def test_initial_models_are_distinct():
    models = quadratic_process().initialize().algorithm.models
    assert_equal(trees.row(models, 0), QUADRATIC.init(SEED))
    rows = models_of(quadratic_process().initialize())
    distances = np.linalg.norm(rows[:, np.newaxis] - rows, axis=-1)
    assert np.min(distances[np.triu_indices(3, 1)]) > 0.1


FIXED = (0, 0, 0, 0, 1, 1)


def test_fixed_clusters_determine_personal_models():
    process = quadratic_process(2, fixed_clusters=FIXED)
    state = with_models(process.initialize(), START[:2])
    clients = quadratic_clients(process)
    assert [choice(i, START[:2]) for i in range(N)] != list(FIXED)
    found = [vector_of(w) for w in process.personalize(state, clients)]
    np.testing.assert_array_equal(found, START[list(FIXED)])


def one_round(local, **options):
    process = eager("ifca", MODEL, local, num_clients=3, **options)
    return process.next(process.initialize(), make_clients(process, [4]))


def test_persistent_optimizer_is_refused():
    local = local_sgd(persist_optimizer_state=True)
    with pytest.raises(ValueError, match="this algorithm keeps no optimizer's state"):
        one_round(local)


# Restarts: if a model has too few clients, all models start anew.

ALL_OF_ONE, TOO_FEW, ENOUGH = (0, 1, 2), (0, 1, 2, 3, 4), (0, 1, 2, 4)


@functools.cache
def restarting_process(min_share=0.25, max_restarts=2):
    """Builds a process whose clients have fixed clusters, and whose server can restart."""
    local = local_sgd(RATE, STEPS, max(NUMBERS), learning_rate_decay=DECAY)
    algorithm = make("ifca", QUADRATIC, local, num_clients=N, num_clusters=2, fixed_clusters=FIXED)
    server = IfcaServer(QUADRATIC.init, 2, "models", min_share, max_restarts)
    (exchange,) = algorithm.exchanges
    exchanges = [dataclasses.replace(exchange, finalize=server.finalize)]
    algorithm = dataclasses.replace(algorithm, server_init=server.init, exchanges=exchanges)
    return EagerProcess(algorithm, SEED)


def restarting(cohorts, **options):
    """Yields `(server state, metrics)` of rounds; by default a model needs 1/4 of the clients."""
    process = restarting_process(**options)
    clients, state = quadratic_clients(process), process.initialize()
    for cohort in cohorts:
        state, _, metrics = process.next(state, [clients[i] for i in cohort])
        yield state, metrics["train"]["server"]


@functools.cache
def initial_models():
    """Returns the models of the start and of each restart, `[3, 2, DIM]`."""
    rows = [vector_of(QUADRATIC.init(seed)) for seed in distinct_seeds(SEED, 6)]
    return np.reshape(rows, [3, 2, DIM])


def after_round(models, cohort, t):
    """Returns the models after a round in which clients have fixed clusters."""
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


@pytest.mark.thorough
def test_models_restart_until_restarts_are_used_up():
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


@pytest.mark.thorough
def test_models_with_enough_clients_settle_for_good():
    expected = initial_models()[0]
    cohorts = (ENOUGH, ALL_OF_ONE, TOO_FEW)
    for t, (state, metrics) in enumerate(restarting(cohorts)):
        expected = after_round(expected, cohorts[t], t)
        assert_models(state, expected)
        assert metrics["restarts"] == state.algorithm.restarts == 0
        assert state.algorithm.settled
        if t == 0:
            assert (metrics["share_0"], metrics["share_1"]) == (0.75, 0.25)


@pytest.mark.thorough
def test_models_can_settle_after_a_restart():
    *_, (state, metrics) = restarting((TOO_FEW, ENOUGH, ALL_OF_ONE))
    expected = after_round(after_round(initial_models()[1], ENOUGH, 1), ALL_OF_ONE, 2)
    assert_models(state, expected)
    assert metrics["restarts"] == 1


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{"min_share": 0.0}, {"max_restarts": 0}], ids=str)
def test_models_never_restart_without_min_share_or_max_restarts(options):
    expected = initial_models()[0]
    for t, (state, metrics) in enumerate(restarting((ALL_OF_ONE, TOO_FEW), **options)):
        expected = after_round(expected, (ALL_OF_ONE, TOO_FEW)[t], t)
        assert_models(state, expected)
        assert metrics["restarts"] == 0


def test_cohort_without_examples_does_not_restart():
    process = restarting_process()
    (client,) = quadratic_clients(process, [0])
    client = client._replace(data=client.data._replace(size=np.int32(0)))
    start = process.initialize()
    assert_equal(process.next(start, [client]).state.algorithm, start.algorithm)
