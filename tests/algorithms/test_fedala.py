"""Tests FedALA: its rounds on quadratics, its passes, its shares, and its personal models."""

import functools

import numpy as np
import pytest

from tests.federation import (
    assert_close,
    assert_equal,
    eager,
    local_sgd,
    make_client,
    run_rounds,
    trained,
    with_shared,
)
from tests.quadratics import (
    descended,
    objectives,
    quadratic_examples,
    quadratic_model,
    vector_of,
    weights_of,
)

RATE, STEPS, WINDOW, LOWER = 0.2, 2, 10, 1
A, C = objectives()
COHORTS = ((0, 1), (0, 2), (0, 1), (1, 2))  # the clients of each round
NEVER, AT_ONCE = 0.0, 1e9  # thresholds with which losses settle never, or at once


@functools.cache
def process_of(**options):
    """Builds FedALA with a lower layer of one weight and an upper layer of two."""
    options = {"mixing_learning_rate": 0.1, "max_passes": 3} | options
    return eager("fedala", quadratic_model(LOWER, 2), local_sgd(RATE, STEPS, 1), **options, seed=2)


def clients_of(process):
    return [make_client(process, i, quadratic_examples(A[i], C[i])) for i in range(3)]


def initialized(i, shared, own, mixing, participations, rate=0.1, threshold=0.1, most=3):
    """Returns `(start, W)`, computed as in the paper."""

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


def end(i, w):
    return descended(w, A[i], C[i], RATE, STEPS)


@pytest.mark.thorough_but_one
@pytest.mark.parametrize(
    ("options", "learning"),
    [
        (
            {"mixing_learning_rate": 0.02, "max_passes": 12, "threshold": AT_ONCE},
            {"rate": 0.02, "most": 12, "threshold": AT_ONCE},  # after 10 passes
        ),
        (
            {"mixing_learning_rate": 0.02, "max_passes": 12, "threshold": NEVER},
            {"rate": 0.02, "most": 12, "threshold": NEVER},
        ),
    ],
)
def test_rounds_match_numpy_on_quadratics(options, learning):
    """A client learns in many passes in its second round, and in one pass in later rounds."""
    process = process_of(**options)
    shared = vector_of(process.initialize().algorithm.weights).astype(np.float64)
    own = [(shared, np.ones(2), 0)] * 3
    for cohort, (state, clients) in zip(
        COHORTS, run_rounds(process, clients_of(process), COHORTS), strict=True
    ):
        for i in cohort:
            start, mixing = initialized(i, shared, *own[i], **learning)
            own[i] = (end(i, start), mixing, own[i][2] + 1)
        shared = np.mean([own[i][0] for i in cohort], axis=0)
        assert_close(vector_of(state.algorithm.weights), shared)
        for client, (model, mixing, participations) in zip(clients, own, strict=True):
            assert_close(vector_of(client.state.model), model)
            assert_close(client.state.mixing["layer1"]["w"], mixing)
            assert client.state.participations == participations
    mixings = np.array([mixing for _, mixing, _ in own])
    assert np.any((mixings > 0) & (mixings < 1))  # some lie inside the range
    evaluated = process.personalize(state, clients)
    for i, model in enumerate(evaluated):
        expected, _ = initialized(i, shared, *own[i], **learning)
        assert_close(vector_of(model), expected)


def test_passes_end_once_the_last_losses_settle():
    """Uses a threshold that is reached after more than a window of passes."""
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
    mixings = [
        initialized(0, shared, model, np.ones(2), 1, rate=0.02, threshold=NEVER, most=most)[1]
        for most in range(WINDOW, 41)
    ]
    (number,) = np.flatnonzero(
        [np.allclose(m, found.mixing["layer1"]["w"], atol=1e-5) for m in mixings]
    )
    assert 0 < number < 30
    _, expected = initialized(0, shared, model, np.ones(2), 1, rate=0.02, most=40)
    assert_close(found.mixing["layer1"]["w"], expected)


def test_each_weight_has_its_own_share_between_0_and_1():
    mixing = trained("fedala", mixing_learning_rate=50.0, max_passes=2).client_states[2].mixing
    assert list(mixing) == ["head"]
    assert mixing["head"]["kernel"].shape == (5, 3)
    values = np.concatenate([np.ravel(leaf) for leaf in mixing["head"].values()])
    assert np.min(values) >= 0.0 and np.max(values) <= 1.0
    assert len(np.unique(values)) > 2


def test_filled_batches_do_not_matter_while_mixing():
    """Compares one full batch of three examples with a batch of four rows."""
    full, filled = (
        trained("fedala", local=local_sgd(batch_size=size), cohorts=((0, 1), (0,)), sizes=(3, 3))
        for size in (3, 4)
    )
    assert_close(filled.client_states[0].mixing, full.client_states[0].mixing)
    assert np.any(full.client_states[0].mixing["head"]["kernel"] < 1)


@pytest.mark.thorough
def test_personal_model_is_the_last_or_the_initialized_one():
    cohorts = ((0, 1), (0, 1))
    last_ones = trained("fedala", personalized="last", cohorts=cohorts)
    models, shared = last_ones.personal, last_ones.shared
    assert_equal(models[:2], [own.model for own in last_ones.client_states[:2]])
    assert_equal(models[2], shared)  # a client that never took part
    models = trained("fedala", cohorts=cohorts).personal
    for model, own in zip(models[:2], last_ones.client_states, strict=False):
        assert_equal(model["dense1"], shared["dense1"])
        mixed, *ends = (weights["head"]["kernel"] for weights in (model, shared, own.model))
        assert np.all((mixed >= np.minimum(*ends) - 1e-6) & (mixed <= np.maximum(*ends) + 1e-6))
        assert not np.array_equal(mixed, ends[0])
    assert_equal(models[2], shared)
