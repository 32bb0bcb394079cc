"""Tests FedSAM: its rounds on quadratics, momentum, weight decay and clipping."""

import numpy as np
import tensorflow_federated as tff

from tests.federation import eager, local_sgd, make_client
from tests.quadratics import objectives, quadratic_examples, quadratic_model, vector_of
from tff_pfl.local import LocalTraining

RHO, RATE, STEPS = 0.3, 0.2, 4
A, C = objectives(2)


def build_quadratic(local):
    return eager("fedsam", quadratic_model(2, 1), local, rho=RHO, seed=2)


def run_on_quadratics(local, rounds=1):
    """Returns `(start, end, metrics)` of rounds with both clients."""
    process = build_quadratic(local)
    clients = [
        make_client(process, i, quadratic_examples(a, c))
        for i, (a, c) in enumerate(zip(A, C, strict=True))
    ]
    state = first = process.initialize()
    for _ in range(rounds):
        state, _, metrics = process.next(state, clients)
    return vector_of(first.algorithm.weights), vector_of(state.algorithm.weights), metrics["train"]


def second_gradient(w, a, c):
    ascent = a @ (w - c)
    return a @ (w + RHO * ascent / np.linalg.norm(ascent) - c)


def test_rounds_match_numpy_on_quadratics():
    start, end, metrics = run_on_quadratics(local_sgd(RATE, STEPS, 1), rounds=2)
    w = start.astype(np.float64)
    for _ in range(2):
        ends, losses = [], []
        for a, c in zip(A, C, strict=True):
            v = w
            for _ in range(STEPS):
                losses.append(0.5 * (v - c) @ a @ (v - c))  # before the step
                v = v - RATE * second_gradient(v, a, c)
            ends.append(v)
        w = np.mean(ends, axis=0)
    np.testing.assert_allclose(end, w, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(metrics["loss"], np.mean(losses), rtol=1e-5)


def test_momentum_and_weight_decay_act_on_the_second_gradient_only():
    optimizer = tff.learning.optimizers.build_sgdm(RATE, momentum=0.9)
    local = LocalTraining(optimizer, epochs=STEPS, batch_size=1, weight_decay=0.4)
    start, end, _ = run_on_quadratics(local)
    ends = []
    for a, c in zip(A, C, strict=True):
        v, u = start.astype(np.float64), np.zeros(3)
        for _ in range(STEPS):
            u = 0.9 * u + second_gradient(v, a, c) + 0.4 * v
            v = v - RATE * u
        ends.append(v)
    np.testing.assert_allclose(end, np.mean(ends, axis=0), rtol=1e-5, atol=1e-6)


def test_gradient_is_clipped_after_the_perturbation():
    start, end, _ = run_on_quadratics(local_sgd(RATE, 1, 1, clip_norm=0.5))
    gradients = [second_gradient(start, a, c) for a, c in zip(A, C, strict=True)]
    assert min(map(np.linalg.norm, gradients)) > 0.5
    clipped = [0.5 * g / np.linalg.norm(g) for g in gradients]
    np.testing.assert_allclose(end, start - RATE * np.mean(clipped, axis=0), rtol=1e-5, atol=1e-6)


def test_client_at_its_minimum_stays():
    """A gradient of 0 gives a perturbation of 0."""
    process = build_quadratic(local_sgd(RATE, 1, 1))
    state = process.initialize()
    c = vector_of(state.algorithm.weights)
    client = make_client(process, 0, quadratic_examples(np.eye(3), c))
    output = process.next(state, [client])
    np.testing.assert_array_equal(vector_of(output.state.algorithm.weights), c)
    assert output.metrics["train"]["num_nonfinite"] == 0
