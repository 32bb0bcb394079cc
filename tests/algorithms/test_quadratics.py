"""Tests closed forms of rounds on quadratics, with K exact gradient steps a round.

Client i minimises f_i(w) = 1/2 (w - c_i)^T A_i (w - c_i).
"""

import numpy as np
import pytest

from tests.algorithms import rounds
from tests.algorithms.rounds import START, clients_of, each_round, on_quadratics
from tests.federation import assert_close, last, local_sgd, with_shared
from tests.quadratics import descended, vector_of, weights_of

RATE, STEPS, ONE_EACH, ALL = 0.2, 4, (1, 1, 1), (0, 1, 2)
A, C = rounds.A[:3], rounds.C[:3]
LOCAL = local_sgd(learning_rate=RATE, epochs=STEPS, batch_size=1)
EYE = np.eye(3)
# K steps contract the distance to the minimiser by M_i = (I - eta A_i)^K.
M = [np.linalg.matrix_power(EYE - RATE * a, STEPS) for a in A]


def run(process, number, state=None):
    """Returns the last of some rounds with all clients."""
    return last(each_round(process, clients_of(process, ONE_EACH), [ALL] * number, state))


def test_local_descends_to_its_own_minimiser():
    """The reported loss is the mean before each of the K steps."""
    process = on_quadratics("local", LOCAL)
    first, second = each_round(process, clients_of(process, ONE_EACH), [ALL] * 2)
    ends = [descended(START, a, c, RATE, 2 * STEPS) for a, c in zip(A, C, strict=True)]
    assert_close([vector_of(client.state.model) for client in second.clients], ends)
    losses = []
    for a, c in zip(A, C, strict=True):
        for step in range(STEPS):
            offset = descended(START, a, c, RATE, step) - c
            losses.append(0.5 * offset @ a @ offset)
    assert_close(first.metrics["train"]["loss"], np.mean(losses))


@pytest.mark.thorough
def test_fedavg_converges_to_a_fixed_point_off_the_optimum():
    """A round contracts the distance to the fixed point by the mean of `M_i`."""
    drift, contraction = [EYE - m for m in M], np.mean(M, axis=0)
    fixed_point, optimum = (
        np.linalg.solve(sum(pulls), sum(p @ c for p, c in zip(pulls, C, strict=True)))
        for pulls in (drift, A)
    )
    assert np.linalg.norm(fixed_point - optimum) > 1e-2
    assert np.max(np.abs(np.linalg.eigvals(contraction))) < 0.9
    process = on_quadratics("fedavg", LOCAL)
    state = run(process, 3).state
    expected = fixed_point + np.linalg.matrix_power(contraction, 3) @ (START - fixed_point)
    assert_close(vector_of(state.algorithm.weights), expected)
    there = run(process, 1, with_shared(state, weights_of(fixed_point, 2, 1))).state
    assert_close(vector_of(there.algorithm.weights), fixed_point)


@pytest.mark.thorough_but_one
@pytest.mark.parametrize("lambda_", [2.0, 0.5, 0.0])
def test_ditto_descends_to_the_pulled_minimiser(lambda_):
    """The minimiser is `v* = (A + lambda I)^-1 (A c + lambda w)`."""
    process, w = on_quadratics("ditto", LOCAL, lambda_=lambda_), np.array([1.0, -2.0, 0.5])
    away = with_shared(process.initialize(), weights_of(w, 2, 1))
    for client, a, c in zip(run(process, 1, away).clients, A, C, strict=True):
        pulled = a + lambda_ * EYE
        minimiser = np.linalg.solve(pulled, a @ c + lambda_ * w)
        expected = descended(START, pulled, minimiser, RATE, STEPS)
        assert_close(vector_of(client.state.model), expected)


@pytest.mark.thorough
def test_fedper_takes_joint_steps():
    """K joint steps move (body, head) by M_i."""
    it = run(on_quadratics("fedper", LOCAL), 3)
    body, heads = START[:2], [START[2:]] * 3
    for _ in range(3):
        ends = [c + m @ (np.append(body, head) - c) for head, c, m in zip(heads, C, M, strict=True)]
        body, heads = np.mean(ends, axis=0)[:2], [end[2:] for end in ends]
    assert_close(vector_of(it.state.algorithm.weights), body)
    assert_close([vector_of(client.state.head) for client in it.clients], heads)
