"""Tests closed forms of rounds on quadratics, with K exact gradient steps a round.

Client i minimises f_i(w) = 1/2 (w - c_i)^T A_i (w - c_i).
"""

import numpy as np
import pytest

from tests.federation import eager, local_sgd, make_client, with_shared
from tests.quadratics import objectives, quadratic_examples, quadratic_model, vector_of, weights_of

DIM, RATE, STEPS = 3, 0.2, 4
A, C = objectives()
LOCAL = local_sgd(learning_rate=RATE, epochs=STEPS, batch_size=1)
# K steps contract the distance to the minimiser by M_i = (I - eta A_i)^K.
M = [np.linalg.matrix_power(np.eye(DIM) - RATE * a, STEPS) for a in A]


def quadratic_process(build, *dims, **options):
    return eager(build, quadratic_model(*dims), LOCAL, **options, seed=2)


def quadratic_clients(process):
    return [make_client(process, i, quadratic_examples(A[i], C[i], 0.5)) for i in range(3)]


def run(process, rounds):
    """Returns `(server state, clients)` after rounds with all clients."""
    state, clients = process.initialize(), quadratic_clients(process)
    for _ in range(rounds):
        state, states, _ = process.next(state, clients)
        clients = [c._replace(state=s) for c, s in zip(clients, states, strict=True)]
    return state, clients


def start() -> np.ndarray:
    return vector_of(quadratic_model(DIM).init(2))


def test_local_descends_to_its_own_minimiser():
    _, clients = run(quadratic_process("local", DIM), rounds=2)
    for client, c, m in zip(clients, C, M, strict=True):
        expected = c + m @ m @ (start() - c)
        np.testing.assert_allclose(vector_of(client.state.model), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
def test_fedavg_converges_to_a_fixed_point_off_the_optimum():
    """A round contracts the distance to the fixed point by the mean of `M_i`."""
    drift = [np.eye(DIM) - m for m in M]
    fixed_point = np.linalg.solve(
        np.sum(drift, axis=0), np.sum([d @ c for d, c in zip(drift, C, strict=True)], axis=0)
    )
    optimum = np.linalg.solve(
        np.sum(A, axis=0), np.sum([a @ c for a, c in zip(A, C, strict=True)], axis=0)
    )
    assert np.linalg.norm(fixed_point - optimum) > 1e-2
    assert np.max(np.abs(np.linalg.eigvals(np.mean(M, axis=0)))) < 0.9
    process = quadratic_process("fedavg", DIM)
    state, _ = run(process, rounds=3)
    expected = fixed_point + np.linalg.matrix_power(np.mean(M, axis=0), 3) @ (start() - fixed_point)
    np.testing.assert_allclose(vector_of(state.algorithm.weights), expected, rtol=1e-5, atol=1e-6)
    there = with_shared(state, weights_of(fixed_point, DIM))
    state = process.next(there, quadratic_clients(process)).state
    np.testing.assert_allclose(vector_of(state.algorithm.weights), fixed_point, atol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("lambda_", [0.0, 0.5, 2.0])
def test_ditto_descends_to_the_pulled_minimiser(lambda_):
    """A round ends at `v* + (I - eta (A + lambda I))^K (v - v*)`.

    The minimiser is `v* = (A + lambda I)^-1 (A c + lambda w)`.
    """
    process = quadratic_process("ditto", DIM, lambda_=lambda_)
    state, clients = process.initialize(), quadratic_clients(process)
    w = np.array([1.0, -2.0, 0.5])
    away = with_shared(state, weights_of(w, DIM))
    for client, a, c in zip(process.next(away, clients).clients, A, C, strict=True):
        pulled = a + lambda_ * np.eye(DIM)
        v_star = np.linalg.solve(pulled, a @ c + lambda_ * w)
        contraction = np.linalg.matrix_power(np.eye(DIM) - RATE * pulled, STEPS)
        expected = v_star + contraction @ (start() - v_star)
        np.testing.assert_allclose(vector_of(client.model), expected, rtol=1e-5, atol=1e-6)


def fedper_rounds(number):
    """Returns `(body, heads)` after rounds of K joint steps, which move (body, head) by M_i."""
    body, heads = start()[:2], [start()[2:]] * 3
    for _ in range(number):
        ends = [c + m @ (np.append(body, head) - c) for head, c, m in zip(heads, C, M, strict=True)]
        body, heads = np.mean(ends, axis=0)[:2], [end[2:] for end in ends]
    return body, heads


@pytest.mark.thorough
def test_fedper_takes_joint_steps():
    state, clients = run(quadratic_process("fedper", 2, 1), rounds=3)
    body, heads = fedper_rounds(3)
    np.testing.assert_allclose(vector_of(state.algorithm.weights), body, rtol=1e-5, atol=1e-6)
    found = [vector_of(client.state.head) for client in clients]
    np.testing.assert_allclose(found, heads, rtol=1e-5, atol=1e-6)


def test_reported_loss_is_the_mean_over_steps():
    """The loss is measured before each of the K steps."""
    process = quadratic_process("local", DIM)
    metrics = process.next(process.initialize(), quadratic_clients(process)).metrics
    losses = []
    for a, c in zip(A, C, strict=True):
        w = start().astype(np.float64)
        for _ in range(STEPS):
            losses.append(0.5 * (w - c) @ a @ (w - c) + 0.5)
            w = w - RATE * a @ (w - c)
    np.testing.assert_allclose(metrics["train"]["loss"], np.mean(losses), rtol=1e-5)
