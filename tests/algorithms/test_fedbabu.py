"""Tests FedBABU: its rounds on quadratics, and fine-tuning."""

import numpy as np
import pytest

from tests.federation import (
    COHORTS,
    assert_close,
    assert_equal,
    eager,
    local_sgd,
    make_clients,
    run_rounds,
    tiny_model,
)
from tests.marks import slow, together
from tests.quadratics import objectives, quadratic_clients, quadratic_model, vector_of
from tff_pfl.algorithms import fedbabu, make
from tff_pfl.evaluation import fine_tuned
from tff_pfl.testing import EagerProcess

MODEL = tiny_model()
DIM, BODY_DIM, RATE, STEPS = 3, 2, 0.2, 3
A, C = objectives()
IS_BODY = np.arange(DIM) < BODY_DIM
SIZES = (1, 3, 2)  # copies of each client's only example, all in one batch


def client_result(i, w, steps=STEPS, moves=IS_BODY, rate=RATE):
    """Returns `w` after gradient steps of the coordinates `moves`."""
    for _ in range(steps):
        w = w - rate * np.where(moves, A[i] @ (w - C[i]), 0.0)
    return w


def quadratic_process(**options):
    local = local_sgd(RATE, STEPS, max(SIZES), learning_rate_decay=0.5)
    return eager("fedbabu", quadratic_model(BODY_DIM, 1), local, **options, seed=2)


def quadratic_start():
    return vector_of(quadratic_model(BODY_DIM, 1).init(2)).astype(np.float64)


@pytest.mark.parametrize(
    ("weighting", "weights"), [("num_examples", SIZES), slow("uniform", (1, 1, 1))]
)
def test_rounds_match_numpy_on_quadratics(weighting, weights):
    """Covers personal models, which are fine-tuned at the rate of the last round."""
    process = quadratic_process(weighting=weighting, fine_tune_epochs=2)
    w = quadratic_start()
    rounds = run_rounds(process, quadratic_clients(process, A, C, SIZES), COHORTS)
    for t, (cohort, (state, clients)) in enumerate(zip(COHORTS, rounds, strict=True), start=1):
        ends = [client_result(i, w, rate=RATE * 0.5 ** (t - 1)) for i in cohort]
        w = np.average(ends, axis=0, weights=[weights[i] for i in cohort])
        assert_close(vector_of(process.global_weights(state)), w)
        # Fine-tuning has the rate of the last round.
        expected = [client_result(i, w, 2, True, RATE * 0.5 ** (t - 1)) for i in range(3)]
        assert_close(list(map(vector_of, process.personalize(state, clients))), expected)


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
    """Covers new clients, which fine-tune the global model, or have it unchanged without epochs."""
    process = quadratic_process(**options)
    models = process.personalize(process.initialize(), quadratic_clients(process, A, C, SIZES))
    results = [client_result(i, quadratic_start(), **expected) for i in range(3)]
    assert_close([vector_of(model) for model in models], results)
    if not expected["steps"]:
        assert_equal(models, [process.global_weights(process.initialize())] * 3)


@pytest.mark.thorough
def test_fine_tuned_replaces_the_fine_tuning():
    local, clients = local_sgd(), make_clients(eager("fedbabu", MODEL, local_sgd()), (9, 6))
    expected = EagerProcess(fedbabu(MODEL, local, fine_tune_epochs=2), seed=1)
    for epochs in (0, 1):
        algorithm = make("fedbabu", MODEL, local, fine_tune_epochs=epochs)
        process = EagerProcess(fine_tuned(algorithm, local, epochs=2), seed=1)
        state = process.initialize()
        assert_equal(process.personalize(state, clients), expected.personalize(state, clients))
