"""FedALA: FedAvg without mixing, and its rounds on quadratics."""

import functools

import numpy as np
import pytest

from tests.federation import (
    assert_close,
    assert_equal,
    eager,
    last,
    local_sgd,
    make_client,
    make_clients,
    run_rounds,
    tiny_model,
    with_shared,
)
from tests.quadratics import quadratic_examples, quadratic_model, spd, vector_of, weights_of

MODEL = tiny_model()
DIM, RATE, STEPS, WINDOW, LOWER = 3, 0.2, 2, 10, 1
A = [spd(DIM, seed) for seed in range(3)]
C = [np.random.default_rng(10 + i).normal(size=DIM) for i in range(3)]
COHORTS = ((0, 1), (0, 2), (0, 1), (1, 2))  # who takes part in each round
NEVER, AT_ONCE = 0.0, 1e9  # thresholds by which losses settle


@functools.cache
def process_of(**options):
    """Of a lower layer of one weight, and an upper one of two."""
    options = {"mixing_learning_rate": 0.1, "max_passes": 3} | options
    return eager("fedala", quadratic_model(LOWER, 2), local_sgd(RATE, STEPS, 1), **options, seed=2)


def clients_of(process):
    return [make_client(process, i, quadratic_examples(A[i], C[i])) for i in range(3)]


def initialized(i, shared, own, mixing, participations, rate=0.1, threshold=0.1, most=3):
    """`(start, W)`, by the lines of the paper."""

    def mix(mixing):
        return np.append(shared[:LOWER], own[LOWER:] + (shared - own)[LOWER:] * mixing)

    losses = []
    while participations > 0:
        offset = mix(mixing) - C[i]
        losses.append(offset @ A[i] @ offset / 2)
        slope = (A[i] @ offset)[LOWER:] * (shared - own)[LOWER:]
        mixing = np.clip(mixing - rate * slope, 0.0, 1.0)
        is_settled = len(losses) >= WINDOW and np.std(losses[-WINDOW:]) < threshold
        if participations > 1 or is_settled or len(losses) == most:
            break
    return mix(mixing), mixing


def trained(i, w):
    return C[i] + np.linalg.matrix_power(np.eye(DIM) - RATE * A[i], STEPS) @ (w - C[i])


@pytest.mark.parametrize(
    ("options", "learning"),
    [
        (
            {"mixing_learning_rate": 0.02, "max_passes": 12, "threshold": AT_ONCE},
            {"rate": 0.02, "most": 12, "threshold": AT_ONCE},  # after 10
        ),
        (
            {"mixing_learning_rate": 0.02, "max_passes": 12, "threshold": NEVER},
            {"rate": 0.02, "most": 12, "threshold": NEVER},
        ),
    ],
)
def test_rounds_on_quadratics(options, learning):
    """Many passes in a client's second round, one in later ones."""
    process = process_of(**options)
    shared = vector_of(process.initialize().algorithm.weights).astype(np.float64)
    own = [(shared, np.ones(2), 0)] * 3
    for cohort, (state, clients) in zip(
        COHORTS, run_rounds(process, clients_of(process), COHORTS), strict=True
    ):
        for i in cohort:
            start, mixing = initialized(i, shared, *own[i], **learning)
            own[i] = (trained(i, start), mixing, own[i][2] + 1)
        shared = np.mean([own[i][0] for i in cohort], axis=0)
        assert_close(vector_of(state.algorithm.weights), shared)
        for client, (model, mixing, participations) in zip(clients, own, strict=True):
            assert_close(vector_of(client.state.model), model)
            assert_close(client.state.mixing["layer1"]["w"], mixing)
            assert client.state.participations == participations
    mixings = np.array([mixing for _, mixing, _ in own])
    assert np.any((mixings > 0) & (mixings < 1))  # not all at an end
    evaluated = process.personalize(state, clients)
    for i, model in enumerate(evaluated):
        expected, _ = initialized(i, shared, *own[i], **learning)
        assert_close(vector_of(model), expected)


def test_passes_end_as_soon_as_the_losses_of_some_have_settled():
    """By a threshold in between, after more than a window of passes."""
    process = process_of(mixing_learning_rate=0.02, threshold=0.1, max_passes=40)
    client = clients_of(process)[0]
    model = C[0] + [0.0, 3.0, -2.0]
    client = client._replace(
        state=client.state._replace(model=weights_of(model, LOWER, 2), participations=np.int32(1))
    )
    shared = C[0] + np.array([0.0, -1.0, 2.0])
    found = process.next(
        with_shared(process.initialize(), weights_of(shared, LOWER, 2)), [client]
    ).clients[0]
    by_passes = [
        initialized(0, shared, model, np.ones(2), 1, rate=0.02, threshold=NEVER, most=most)[1]
        for most in range(WINDOW, 41)
    ]
    (number,) = np.flatnonzero(
        [np.allclose(m, found.mixing["layer1"]["w"], atol=1e-5) for m in by_passes]
    )
    assert 0 < number < 30
    _, expected = initialized(0, shared, model, np.ones(2), 1, rate=0.02, most=40)
    assert_close(found.mixing["layer1"]["w"], expected)


@functools.cache
def rounds_of(name, **options):
    process = eager(name, MODEL, local_sgd(), **options, seed=1)
    return last(run_rounds(process, make_clients(process, (4, 6, 3)), ((0, 1), (1, 2), (0, 2))))


@pytest.mark.parametrize("options", [{"num_mixed_layers": 0}, {"mixing_learning_rate": 0.0}])
def test_without_mixing_it_is_fedavg(options):
    state, clients = rounds_of("fedala", **options)
    expected, own = rounds_of("fedavg", personalized="local")
    assert_equal(state.algorithm.weights, expected.algorithm.weights)
    assert_equal([c.state.model for c in clients], [c.state.model for c in own])


def test_shares_stay_between_0_and_1_and_each_weight_has_its_own():
    _, clients = rounds_of("fedala", mixing_learning_rate=50.0, max_passes=2)
    mixing = clients[2].state.mixing
    assert list(mixing) == ["head"]
    assert mixing["head"]["kernel"].shape == (5, 3)
    values = np.concatenate([np.ravel(leaf) for leaf in mixing["head"].values()])
    assert np.min(values) >= 0.0 and np.max(values) <= 1.0
    assert len(np.unique(values)) > 2


def test_what_is_evaluated():
    last_ones = eager("fedala", MODEL, local_sgd(), personalized="last", seed=1)
    initial = eager("fedala", MODEL, local_sgd(), seed=1)
    clients = make_clients(last_ones, (4, 6, 3))
    state, clients = last(run_rounds(last_ones, clients, ((0, 1), (0, 1))))
    models = last_ones.personalize(state, clients)
    assert_equal(models[:2], [c.state.model for c in clients[:2]])
    assert_equal(models[2], state.algorithm.weights)  # of a client that never took part
    models = initial.personalize(state, clients)
    for model, client in zip(models[:2], clients, strict=False):
        assert_equal(model["dense1"], state.algorithm.weights["dense1"])
        three = (model, state.algorithm.weights, client.state.model)
        mixed, *ends = (weights["head"]["kernel"] for weights in three)
        assert np.all((mixed >= np.minimum(*ends) - 1e-6) & (mixed <= np.maximum(*ends) + 1e-6))
        assert not np.array_equal(mixed, ends[0])
    assert_equal(models[2], state.algorithm.weights)
