"""Tests pFedMe: its rounds on quadratics, its limits, and the bound of its learning rates."""

import functools

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.federation import assert_equal, eager, local_sgd
from tests.quadratics import (
    descended,
    objectives,
    quadratic_clients,
    quadratic_model,
    vector_of,
    weights_of,
)
from tff_pfl.algorithms import make
from tff_pfl.local import LocalTraining

DIM = 3
EYE = np.eye(DIM)
A, C = objectives()
SIZES = (1, 3, 2)  # copies of each client's only example, all in one batch
EPOCHS, STEPS = 3, 2
LAMBDA, ETA, PERSONAL_ETA, DECAY, BETA = 2.0, 0.2, 0.15, 0.1, 0.7
FAR = np.array([9.0, -9.0, 9.0], np.float32)


@functools.cache
def build(learning_rate=ETA, epochs=EPOCHS, weight_decay=0.0, rate_decay=1.0, **options):
    local = local_sgd(
        learning_rate,
        epochs,
        max(SIZES),
        weight_decay=weight_decay,
        learning_rate_decay=rate_decay,
    )
    defaults = {
        "lambda_": LAMBDA,
        "beta": BETA,
        "personal_learning_rate": PERSONAL_ETA,
        "personal_steps": STEPS,
        "personal_weight_decay": DECAY,
    }
    return eager("pfedme", quadratic_model(2, 1), local, **defaults | options, seed=2)


def make_clients(process):
    return quadratic_clients(process, A, C, SIZES)


def one_round(process, cohort=(0, 1, 2), state=None):
    """Returns `(w before, w after, thetas, output)` of a round."""
    state, clients = state or process.initialize(), make_clients(process)
    output = process.next(state, [clients[i] for i in cohort])
    thetas = [vector_of(client.model) for client in output.clients]
    return (
        vector_of(state.algorithm.weights),
        vector_of(output.state.algorithm.weights),
        thetas,
        output,
    )


def train(w, a, c, weight_decay=0.0):
    """Returns `(w_i, theta, mean loss of theta before each batch)` of a client."""
    shared = theta = w
    losses = []
    for _ in range(EPOCHS):
        losses.append(0.5 * (theta - c) @ a @ (theta - c))
        for _ in range(STEPS):
            pull = LAMBDA * (theta - shared)
            theta = theta - PERSONAL_ETA * (a @ (theta - c) + pull + DECAY * theta)
        step = LAMBDA * (shared - theta) + weight_decay * shared
        shared = shared - ETA * step
    return shared, theta, np.mean(losses)


@pytest.mark.thorough_but_one
@pytest.mark.parametrize(
    ("weighting", "counts", "weight_decay"),
    [("num_examples", SIZES, 0.0), ("uniform", (1, 1, 1), 0.3)],
)
def test_rounds_match_numpy_on_quadratics(weighting, counts, weight_decay):
    process = build(weighting=weighting, weight_decay=weight_decay)
    state, clients = process.initialize(), make_clients(process)
    w, thetas = vector_of(state.algorithm.weights).astype(np.float64), {}
    for cohort in ((0, 1), (1, 2)):
        output = process.next(state, [clients[i] for i in cohort])
        state = output.state
        results = [train(w, A[i], C[i], weight_decay) for i in cohort]
        weights = np.take(counts, cohort)
        mean = np.average([shared for shared, _, _ in results], axis=0, weights=weights)
        w = w + BETA * (mean - w)
        np.testing.assert_allclose(vector_of(state.algorithm.weights), w, rtol=1e-5, atol=1e-6)
        losses = [loss for _, _, loss in results]
        loss = np.average(losses, weights=np.take(SIZES, cohort))  # over all examples
        np.testing.assert_allclose(output.metrics["train"]["loss"], loss, rtol=1e-5)
        for i, own, (_, theta, _) in zip(cohort, output.clients, results, strict=True):
            clients[i], thetas[i] = clients[i]._replace(state=own), theta
    assert [int(client.state.participations) for client in clients] == [1, 2, 1]
    for model, client in zip(process.personalize(state, clients), clients, strict=True):
        theta = thetas[int(client.client_id)]
        np.testing.assert_allclose(vector_of(model), theta, rtol=1e-5, atol=1e-6)


def test_theta_starts_from_the_received_model():
    process = build()
    clients = make_clients(process)
    stored = [
        c._replace(state=c.state._replace(model=weights_of(FAR, 2, 1), participations=np.int32(4)))
        for c in clients
    ]
    new, with_stored = (process.next(process.initialize(), c) for c in (clients, stored))
    assert_equal(new.state, with_stored.state)
    assert_equal([c.model for c in new.clients], [c.model for c in with_stored.clients])
    assert [int(c.participations) for c in with_stored.clients] == [5, 5, 5]


def test_lambda_0_keeps_w_and_theta_descends_alone():
    """Theta takes K steps on each of E batches."""
    process = build(lambda_=0.0, personal_weight_decay=0.0)
    before, after, thetas, _ = one_round(process)
    np.testing.assert_array_equal(after, before)
    for theta, a, c in zip(thetas, A, C, strict=True):
        expected = descended(before, a, c, PERSONAL_ETA, STEPS * EPOCHS)
        np.testing.assert_allclose(theta, expected, rtol=1e-5, atol=1e-6)


def test_beta_0_keeps_w_and_does_not_change_theta():
    before, after, thetas, _ = one_round(build(beta=0.0))
    np.testing.assert_array_equal(after, before)
    np.testing.assert_array_equal(thetas, one_round(build())[2])
    assert min(np.linalg.norm(theta - before) for theta in thetas) > 0.05


def test_personal_learning_rate_does_not_decay():
    """The rate of `w_i` is 0, so theta descends towards a fixed point."""
    process = build(learning_rate=0.0, rate_decay=0.5)
    state = process.initialize()._replace(round_num=np.int32(7))
    before, after, thetas, _ = one_round(process, state=state)
    np.testing.assert_array_equal(after, before)
    for theta, a, c in zip(thetas, A, C, strict=True):
        pulled = a + (LAMBDA + DECAY) * EYE
        end = np.linalg.solve(pulled, a @ c + LAMBDA * before)
        contraction = np.linalg.matrix_power(EYE - PERSONAL_ETA * pulled, STEPS * EPOCHS)
        np.testing.assert_allclose(theta, end + contraction @ (before - end), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["learning_rate", "personal_learning_rate"])
def test_product_below_2_is_allowed(name):
    build(**{name: 0.49, "lambda_": 4.0})


def test_bound_applies_to_the_rate_of_sgd_after_warm_up():
    model, adam = quadratic_model(2, 1), tff.learning.optimizers.build_adam(0.5)
    with pytest.raises(ValueError, match="The learning rate 0.5 times lambda_=4 is 2"):
        make("pfedme", model, local_sgd(0.5, warm_up_rounds=10), lambda_=4.0)
    make("pfedme", model, LocalTraining(adam), lambda_=4.0)
