"""Tests PLGU-GRep: its rounds on quadratics against NumPy, and its limit FedRep."""

import dataclasses
import math

import numpy as np
import pytest

from tests.algorithms.rounds import each_round, personal
from tests.federation import assert_close, eager, local_sgd, make_clients, tiny_model
from tests.marks import slow
from tests.quadratics import objectives, quadratic_clients, quadratic_model, vector_of

MODEL = tiny_model()

# The quadratics have a body of two layers, with 3 weights and with 1, and a head with 2.
N, DIMS = 3, (3, 1, 2)
QUADRATIC = quadratic_model(*DIMS)
LAYERS, BODY, HEAD = (slice(0, 3), slice(3, 4)), slice(0, 4), slice(4, 6)
RATE, DECAY, EPOCHS, RHO = 0.2, 0.5, 2, 0.7
COPIES = (1, 3, 2)
A, C = objectives(N, sum(DIMS))


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
    local = local_sgd(RATE, EPOCHS, max(COPIES), learning_rate_decay=DECAY)
    process = eager("plgu_grep", QUADRATIC, local, **{"rho": RHO, **options}, seed=2)
    options = {"body_steps": EPOCHS} if "body_epochs" in options else options
    expected = NumPyPLGUGRep(vector_of(QUADRATIC.init(2)), **options)
    cohorts = ((0, 1), (1, 2), (0, 1, 2))
    rounds = each_round(process, quadratic_clients(process, A, C, COPIES), cohorts)
    for t, (cohort, state, clients, _) in enumerate(rounds):
        expected.next(cohort, RATE * DECAY**t)
        assert_close(vector_of(state.algorithm.weights), expected.body)
        assert_close([vector_of(c.state.head) for c in clients], expected.heads)
        models = [np.append(expected.body, head) for head in expected.heads]
        assert_close(personal(process, state, clients), models)


@pytest.mark.thorough
@pytest.mark.parametrize("limits", [slow({}), {"clip_norm": 0.2, "weight_decay": 0.1}])
def test_rho_0_equals_fedrep_with_two_steps_on_each_batch(limits):
    """A batch has all of a client's examples, so that FedRep sees the same batches."""
    sizes, options = (6, 9, 5), {"head_epochs": 3, "weighting": "uniform", "seed": 1}
    local = local_sgd(0.3, batch_size=max(sizes), **limits)
    twice = eager("fedrep", MODEL, dataclasses.replace(local, steps=2), **options)
    process = eager("plgu_grep", MODEL, local, rho=0.0, **options)
    pairs = [each_round(p, make_clients(p, sizes)) for p in (twice, process)]
    for expected, found in zip(*pairs, strict=True):
        assert_close(found.state.algorithm.weights, expected.state.algorithm.weights, 1e-6)
        states = ([client.state for client in it.clients] for it in (found, expected))
        assert_close(*states, tolerance=1e-6)
