"""Tests LG-FedAvg: its rounds on quadratics, and alternating steps."""

import numpy as np
import pytest
import tensorflow_federated as tff

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
from tests.federation import assert_close, last
from tests.marks import slow
from tff_pfl.local import LocalTraining

DIM, BODY, RATE, STEPS = 3, 2, 0.2, 3


def joint(i, body, head, momentum, decay=0.0, clip_norm=np.inf):
    w, u = np.append(body, head), np.zeros(DIM)
    for _ in range(STEPS):
        gradient = A[i] @ (w - C[i])
        u = momentum * u + clipped(gradient, clip_norm) + decay * w
        w = w - RATE * u
    return w[:BODY], w[BODY:]


def alternating(i, body, head, momentum, decay=0.0, clip_norm=np.inf):
    """Runs block coordinate descent: the head's gradient is at the new body."""
    ub, uh = np.zeros(BODY), np.zeros(DIM - BODY)
    for _ in range(STEPS):
        gradient = (A[i] @ (np.append(body, head) - C[i]))[:BODY]
        ub = momentum * ub + clipped(gradient, clip_norm) + decay * body
        body = body - RATE * ub
        gradient = (A[i] @ (np.append(body, head) - C[i]))[BODY:]
        uh = momentum * uh + clipped(gradient, clip_norm) + decay * head
        head = head - RATE * uh
    return body, head


def clipped(gradient, clip_norm):
    return gradient * min(1, clip_norm / np.linalg.norm(gradient))


@pytest.mark.thorough_but_one
@pytest.mark.parametrize(
    ("steps", "weighting", "momentum", "decay", "clip_norm"),
    [
        (joint, "num_examples", 0.0, 0.0, None),
        slow(alternating, "num_examples", 0.0, 0.0, None),
        (alternating, "uniform", 0.9, 0.1, 0.4),
    ],
)
def test_rounds_match_numpy_on_quadratics(steps, weighting, momentum, decay, clip_norm):
    """Covers momentum and weight decay of both parts, and separate clipping."""
    sgdm = tff.learning.optimizers.build_sgdm(RATE, momentum or None)
    local = LocalTraining(sgdm, STEPS, max(COPIES), weight_decay=decay, clip_norm=clip_norm)
    options = {"alternate": steps is alternating, "weighting": weighting}
    process = on_quadratics("lg_fedavg", local, **options)
    bodies, head = [START[:BODY]] * 3, START[BODY:]
    for cohort, state, clients, _ in each_round(process, clients_of(process)):
        heads = []
        for i in cohort:
            bodies[i], own = steps(i, bodies[i], head, momentum, decay, clip_norm or np.inf)
            heads.append(own)
        weights = np.take(COPIES, cohort) if weighting == "num_examples" else None
        head = np.average(heads, axis=0, weights=weights)
        expected = [np.append(body, head) for body in bodies]
        assert_close(personal(process, state, clients), expected)


@pytest.mark.parametrize("steps", [joint, alternating])
def test_persistent_optimizers_continue(steps):
    """Rounds of one step each equal as many steps with momentum in one round."""
    sgdm = tff.learning.optimizers.build_sgdm(RATE, 0.9)
    local = LocalTraining(sgdm, batch_size=4, persist_optimizer_state=True)
    process = on_quadratics("lg_fedavg", local, alternate=steps is alternating)
    rounds = each_round(process, clients_of(process), [(0,)] * STEPS)
    _, state, clients, _ = last(rounds)
    expected = np.append(*steps(0, START[:BODY], START[BODY:], 0.9))
    assert_close(personal(process, state, clients)[0], expected)
