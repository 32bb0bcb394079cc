"""Tests FedALA: its rounds on quadratics, its passes, and its personal models."""

import numpy as np
import pytest

from tests.algorithms.rounds import START, A, C, each_round, personal
from tests.federation import (
    assert_close,
    assert_equal,
    eager,
    local_sgd,
    make_client,
    trained,
    with_shared,
)
from tests.quadratics import descended, quadratic_examples, quadratic_model, vector_of, weights_of

RATE, STEPS, WINDOW, LOWER = 0.2, 2, 10, 1
NEVER, AT_ONCE = 0.0, 1e9  # thresholds with which losses settle never, or at once


def process_of(**options):
    """Builds FedALA with a lower layer of one weight and an upper layer of two."""
    return eager("fedala", quadratic_model(LOWER, 2), local_sgd(RATE, STEPS, 1), **options, seed=2)


def clients_of(process):
    return [make_client(process, i, quadratic_examples(A[i], C[i])) for i in range(3)]


def initialized(i, shared, own, mixing, participations, rate, threshold, most):
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


@pytest.mark.thorough_but_one
@pytest.mark.parametrize(("rate", "threshold"), [(0.02, AT_ONCE), (0.02, NEVER), (2.0, AT_ONCE)])
def test_rounds_match_numpy_on_quadratics(rate, threshold):
    """A client learns in many passes in its second round, and in one pass in later rounds."""
    process = process_of(mixing_learning_rate=rate, threshold=threshold, max_passes=12)
    shared, own = START, [(START, np.ones(2), 0)] * 3
    cohorts = ((0, 1), (0, 2), (0, 1), (1, 2))
    for cohort, state, clients, _ in each_round(process, clients_of(process), cohorts):
        for i in cohort:
            start, mixing = initialized(i, shared, *own[i], rate, threshold, 12)
            own[i] = (descended(start, A[i], C[i], RATE, STEPS), mixing, own[i][2] + 1)
        shared = np.mean([own[i][0] for i in cohort], axis=0)
        assert_close(vector_of(state.algorithm.weights), shared)
        for client, (model, mixing, participations) in zip(clients, own, strict=True):
            assert_close(vector_of(client.state.model), model)
            assert_close(client.state.mixing["layer1"]["w"], mixing)
            assert client.state.participations == participations
        evaluated = [initialized(i, shared, *own[i], rate, threshold, 12)[0] for i in range(3)]
        assert_close(personal(process, state, clients), evaluated)
    mixings = np.array([mixing for _, mixing, _ in own])
    assert np.any((mixings > 0) & (mixings < 1)) or rate > 1
    assert np.any((mixings == 0) | (mixings == 1)) or rate < 1


def test_passes_end_once_the_last_losses_settle():
    """Uses a threshold that is reached after more than a window of passes."""
    process = process_of(mixing_learning_rate=0.005, threshold=0.1, max_passes=40)
    model, shared = C[0] + [0.0, 3.0, -2.0], C[0] + [0.0, -1.0, 2.0]
    client = clients_of(process)[0]
    own = client.state._replace(model=weights_of(model, LOWER, 2), participations=np.int32(1))
    state = with_shared(process.initialize(), weights_of(shared, LOWER, 2))
    (found,) = process.next(state, [client._replace(state=own)]).clients
    settled, fewest, most = (
        initialized(0, shared, model, np.ones(2), 1, 0.005, threshold, passes)[1]
        for threshold, passes in ((0.1, 40), (NEVER, WINDOW), (NEVER, 40))
    )
    assert_close(found.mixing["layer1"]["w"], settled)
    assert not np.allclose(settled, fewest, atol=1e-4)
    assert not np.allclose(settled, most, atol=1e-4)


def test_filled_batches_do_not_matter_while_mixing():
    """Compares one full batch of three examples with a batch of four rows."""
    full, filled = (
        trained("fedala", local=local_sgd(batch_size=size), cohorts=((0, 1), (0,)), sizes=(3, 3))
        for size in (3, 4)
    )
    assert_close(filled.client_states[0].mixing, full.client_states[0].mixing)
    assert np.any(full.client_states[0].mixing["head"]["kernel"] < 1)


def test_personal_model_may_be_the_last_one():
    found = trained("fedala", personalized="last", cohorts=((0, 1), (0, 1)))
    assert_equal(found.personal[:2], [own.model for own in found.client_states[:2]])
    assert_equal(found.personal[2], found.shared)  # a client that never took part
