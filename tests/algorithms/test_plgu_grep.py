"""Tests PLGU-GRep: its rounds on quadratics against NumPy, and its limit FedRep."""

import dataclasses
import math

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.federation import (
    COHORTS,
    assert_close,
    eager,
    local_sgd,
    make_client,
    make_clients,
    run_rounds,
    tiny_model,
)
from tests.marks import slow
from tests.quadratics import objectives, quadratic_examples, quadratic_model, vector_of
from tff_pfl.local import LocalTraining

MODEL = tiny_model()
SIZES = (6, 9, 5)

# The quadratics have a body of two layers, with 3 weights and with 1, and a head with 2.
N, DIMS, DIM = 3, (3, 1, 2), 6
LAYERS, BODY, HEAD = (slice(0, 3), slice(3, 4)), slice(0, 4), slice(4, 6)
RATE, DECAY, EPOCHS, RHO = 0.2, 0.5, 2, 0.7
COPIES = (1, 3, 2)
A, C = objectives(N, DIM)


class NumPyPLGUGRep:
    """PLGU-GRep by equations (10) to (13), with exact gradients of quadratics."""

    def __init__(
        self,
        start,
        xi_scale=1.0,
        norm_order=2.0,
        body_steps=1,
        head_steps=EPOCHS,
        weighting="uniform",
    ):
        self.body, self.heads = start[BODY], [start[HEAD]] * N
        self.xi_scale, self.p = xi_scale, norm_order
        self.body_steps, self.head_steps = body_steps, head_steps
        self.sizes = COPIES if weighting == "num_examples" else (1,) * N

    def xi(self, g1):
        r = np.array([np.linalg.norm(g1[layer]) / len(g1[layer]) for layer in LAYERS])
        return self.xi_scale * r / r.sum()

    def eps(self, g2, xi):
        if math.isinf(self.p):
            direction = np.sign(g2)
        else:
            q = self.p / (self.p - 1)
            direction = np.sign(g2) * np.abs(g2) ** (q - 1)
            direction /= np.sum(np.abs(g2) ** q) ** (1 / self.p)
        return RHO * np.repeat(xi, DIMS[:2]) * direction

    def next(self, cohort, rate):
        bodies = []
        for i in cohort:
            head = self.heads[i]

            def gradient(body, head, i=i):
                return A[i] @ (np.append(body, head) - C[i])

            for _ in range(self.head_steps):
                head = head - rate * gradient(self.body, head)[HEAD]
            body = self.body
            for _ in range(self.body_steps):
                g1 = gradient(body, head)[BODY]
                body_1 = body - rate * g1
                eps = self.eps(gradient(body_1, head)[BODY], self.xi(g1))
                body = body_1 - rate * gradient(body_1 + eps, head)[BODY]
            self.heads[i] = head
            bodies.append(body)
        self.body = np.average(bodies, axis=0, weights=[self.sizes[i] for i in cohort])


def quadratic_process(rate=RATE, **options):
    optimizer = tff.learning.optimizers.build_sgdm(rate)
    return eager(
        "plgu_grep",
        quadratic_model(*DIMS),
        LocalTraining(optimizer, epochs=EPOCHS, batch_size=max(COPIES), learning_rate_decay=DECAY),
        **{"rho": RHO, **options},
        seed=2,
    )


def copies(client_id):
    """Returns all copies of the client's example, which make one batch."""
    return quadratic_examples(A[client_id], C[client_id], copies=COPIES[client_id])


def quadratic_clients(process):
    return [make_client(process, i, copies(i)) for i in range(N)]


@pytest.mark.thorough_but_one
@pytest.mark.parametrize(
    "options",
    [
        slow({}),
        {"body_steps": 3, "norm_order": math.inf, "xi_scale": 2.0},
        {"head_steps": 1, "body_steps": 2, "norm_order": 3.0, "weighting": "num_examples"},
        {"body_epochs": None},  # as long as the local training
    ],
    ids=str,
)
def test_rounds_match_numpy_on_quadratics(options):
    process = quadratic_process(**options)
    options = {"body_steps": EPOCHS} if "body_epochs" in options else options
    expected = NumPyPLGUGRep(vector_of(quadratic_model(*DIMS).init(2)), **options)
    cohorts = ((0, 1), (1, 2), (0, 1, 2))
    rounds = run_rounds(process, quadratic_clients(process), cohorts)
    for t, (cohort, (state, clients)) in enumerate(zip(cohorts, rounds, strict=True)):
        expected.next(cohort, RATE * DECAY**t)
        assert_close(vector_of(state.algorithm.weights), expected.body)
        assert_close([vector_of(c.state.head) for c in clients], expected.heads)
    for i, model in enumerate(process.personalize(state, clients)):
        assert_close(vector_of(model), np.append(expected.body, expected.heads[i]))


@pytest.mark.thorough
@pytest.mark.parametrize("limits", [slow({}), {"clip_norm": 0.2, "weight_decay": 0.1}])
def test_rho_0_equals_fedrep_with_two_steps_on_each_batch(limits):
    """A batch has all of a client's examples, so that FedRep sees the same batches."""
    options = {"head_epochs": 3, "weighting": "uniform", "seed": 1}
    local = dataclasses.replace(local_sgd(learning_rate=0.3, batch_size=max(SIZES)), **limits)
    twice = eager("fedrep", MODEL, dataclasses.replace(local, steps=2), **options)
    process = eager("plgu_grep", MODEL, local, rho=0.0, **options)
    pairs = [run_rounds(p, make_clients(p, SIZES), COHORTS) for p in (twice, process)]
    for (expected, theirs), (state, clients) in zip(*pairs, strict=True):
        assert_close(state.algorithm.weights, expected.algorithm.weights, tolerance=1e-6)
        assert_close([c.state for c in clients], [c.state for c in theirs], tolerance=1e-6)
