"""Tests FedBABU: its rounds on quadratics, and fine-tuning."""

import numpy as np
import pytest

from tests.algorithms.rounds import (
    COPIES,
    START,
    A,
    C,
    clients_of,
    each_round,
    on_quadratics,
    personal,
)
from tests.federation import assert_close, assert_equal, eager, local_sgd, make_clients, tiny_model
from tests.marks import slow, together
from tests.quadratics import vector_of
from tff_pfl.algorithms import fedbabu, make
from tff_pfl.evaluation import fine_tuned
from tff_pfl.testing import EagerProcess

MODEL = tiny_model()
RATE, STEPS, DECAY = 0.2, 3, 0.5
LOCAL = local_sgd(RATE, STEPS, max(COPIES), learning_rate_decay=DECAY)
IS_BODY = np.array([True, True, False])


def client_result(i, w, steps=STEPS, moves=IS_BODY, rate=RATE):
    """Returns `w` after gradient steps of the coordinates `moves`."""
    for _ in range(steps):
        w = w - rate * np.where(moves, A[i] @ (w - C[i]), 0.0)
    return w


@pytest.mark.parametrize(
    ("weighting", "weights"), [("num_examples", COPIES), slow("uniform", (1, 1, 1))]
)
def test_rounds_match_numpy_on_quadratics(weighting, weights):
    """Covers personal models, which are fine-tuned at the rate of the last round."""
    process = on_quadratics("fedbabu", LOCAL, weighting=weighting, fine_tune_epochs=2)
    w = START
    for t, (cohort, state, clients, _) in enumerate(each_round(process, clients_of(process))):
        ends = [client_result(i, w, rate=RATE * DECAY**t) for i in cohort]
        w = np.average(ends, axis=0, weights=np.take(weights, cohort))
        assert_close(vector_of(process.global_weights(state)), w)
        expected = [client_result(i, w, 2, True, RATE * DECAY**t) for i in range(3)]
        assert_close(personal(process, state, clients), expected)


@together(
    ("options", "expected"),
    [
        ({}, {"steps": 1, "moves": True}),
        ({"fine_tune_epochs": 0}, {"steps": 0}),
        ({"fine_tune_part": "body", "fine_tune_epochs": 2}, {"steps": 2, "moves": IS_BODY}),
        ({"fine_tune_part": "head", "fine_tune_epochs": 2}, {"steps": 2, "moves": ~IS_BODY}),
        ({"fine_tune_learning_rate": 0.05}, {"steps": 1, "moves": True, "rate": 0.05}),
    ],
)
def test_fine_tuning_trains_the_chosen_part(options, expected):
    """Covers new clients, which fine-tune the global model."""
    process = on_quadratics("fedbabu", LOCAL, **options)
    found = personal(process, process.initialize(), clients_of(process))
    assert_close(found, [client_result(i, START, **expected) for i in range(3)])


@pytest.mark.thorough
def test_fine_tuned_replaces_the_fine_tuning():
    local, clients = local_sgd(), make_clients(eager("fedbabu", MODEL, local_sgd()), (9, 6))
    expected = EagerProcess(fedbabu(MODEL, local, fine_tune_epochs=2), seed=1)
    for epochs in (0, 1):
        algorithm = make("fedbabu", MODEL, local, fine_tune_epochs=epochs)
        process = EagerProcess(fine_tuned(algorithm, local, epochs=2), seed=1)
        state = process.initialize()
        assert_equal(process.personalize(state, clients), expected.personalize(state, clients))
