"""Tests pFedMe: its rounds on quadratics, its limits, and the bound of its learning rates."""

import functools

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.algorithms.rounds import (
    COPIES,
    QUADRATIC,
    START,
    A,
    C,
    clients_of,
    each_round,
    on_quadratics,
    personal,
)
from tests.federation import assert_close, local_sgd
from tests.quadratics import descended, vector_of
from tff_pfl.algorithms import make
from tff_pfl.local import LocalTraining

EPOCHS, STEPS = 3, 2
LAMBDA, ETA, PERSONAL_ETA, DECAY, BETA = 2.0, 0.2, 0.15, 0.1, 0.7
OPTIONS = {
    "lambda_": LAMBDA,
    "beta": BETA,
    "personal_learning_rate": PERSONAL_ETA,
    "personal_steps": STEPS,
    "personal_weight_decay": DECAY,
}


@functools.cache
def build(learning_rate=ETA, weight_decay=0.0, rate_decay=1.0, **options):
    regular = {"weight_decay": weight_decay, "learning_rate_decay": rate_decay}
    local = local_sgd(learning_rate, EPOCHS, max(COPIES), **regular)
    return on_quadratics("pfedme", local, **OPTIONS | options)


def one_round(process):
    """Returns `(w after the round, all thetas)`."""
    output = process.next(process.initialize(), clients_of(process))
    thetas = [vector_of(client.model) for client in output.clients]
    return vector_of(output.state.algorithm.weights), thetas


def train(w, a, c, weight_decay, eta):
    """Returns `(w_i, theta, mean loss of theta before each batch)` of a client."""
    shared = theta = w
    losses = []
    for _ in range(EPOCHS):
        losses.append(0.5 * (theta - c) @ a @ (theta - c))
        for _ in range(STEPS):
            pull = LAMBDA * (theta - shared)
            theta = theta - PERSONAL_ETA * (a @ (theta - c) + pull + DECAY * theta)
        step = LAMBDA * (shared - theta) + weight_decay * shared
        shared = shared - eta * step
    return shared, theta, np.mean(losses)


@pytest.mark.thorough_but_one
@pytest.mark.parametrize(
    ("weighting", "counts", "weight_decay", "rate_decay"),
    [("num_examples", COPIES, 0.0, 0.5), ("uniform", (1, 1, 1), 0.3, 1.0)],
)
def test_rounds_match_numpy_on_quadratics(weighting, counts, weight_decay, rate_decay):
    """Theta starts from the received model, also of a client that returns; its rate stays."""
    process = build(weighting=weighting, weight_decay=weight_decay, rate_decay=rate_decay)
    w, thetas = START, [None] * 3
    rounds = each_round(process, clients_of(process), ((0, 1), (1, 2)))
    for t, (cohort, state, clients, metrics) in enumerate(rounds):
        results = [train(w, A[i], C[i], weight_decay, ETA * rate_decay**t) for i in cohort]
        mean = np.average([own for own, *_ in results], axis=0, weights=np.take(counts, cohort))
        w = w + BETA * (mean - w)
        assert_close(vector_of(state.algorithm.weights), w)
        losses = [loss for *_, loss in results]
        loss = np.average(losses, weights=np.take(COPIES, cohort))  # over all examples
        assert_close(metrics["train"]["loss"], loss)
        for i, (_, theta, _) in zip(cohort, results, strict=True):
            thetas[i] = theta
        models = [w if theta is None else theta for theta in thetas]
        assert_close(personal(process, state, clients), models)


def test_lambda_0_keeps_w_and_theta_descends_alone():
    """Theta takes K steps on each of E batches."""
    after, thetas = one_round(build(lambda_=0.0, personal_weight_decay=0.0))
    np.testing.assert_array_equal(after, START)
    steps = STEPS * EPOCHS
    assert_close(thetas, [descended(START, A[i], C[i], PERSONAL_ETA, steps) for i in range(3)])


def test_beta_0_keeps_w_and_does_not_change_theta():
    after, thetas = one_round(build(beta=0.0))
    np.testing.assert_array_equal(after, START)
    np.testing.assert_array_equal(thetas, one_round(build())[1])


@pytest.mark.parametrize("name", ["learning_rate", "personal_learning_rate"])
def test_product_below_2_is_allowed(name):
    build(**{name: 0.49, "lambda_": 4.0})


def test_bound_applies_to_the_rate_of_sgd_after_warm_up():
    with pytest.raises(ValueError, match="lambda_=4"):
        make("pfedme", QUADRATIC, local_sgd(0.5, warm_up_rounds=10), lambda_=4.0)
    adam = tff.learning.optimizers.build_adam(0.5)
    make("pfedme", QUADRATIC, LocalTraining(adam), lambda_=4.0)
