"""Tests FedAMP and HeurFedAMP: against NumPy on quadratics, and against Local."""

import functools

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.algorithms.rounds import DIMS, QUADRATIC, as_rows, each_round, personal, stacked
from tests.federation import (
    assert_close,
    assert_equal,
    differ,
    local_sgd,
    make_client,
    traced,
    trained,
)
from tests.quadratics import quadratic_examples, spd, vector_of, weights_of
from tff_pfl.local import LocalTraining

N, DIM = 4, 3
RATE, STEPS = 0.2, 3
A = [spd(DIM, seed) for seed in range(N)]
C = [2 * np.random.default_rng(10 + i).normal(size=DIM) for i in range(N)]
START = np.random.default_rng(5).normal(size=(N, DIM)).astype(np.float32)
COHORTS = ((0, 1), (1, 2, 3), (3, 0), (2,), (0, 1, 2, 3))
BASE = {"alpha": 0.5, "sigma": 3.0, "lambda_": 0.4}
SIZES = (4, 6, 3, 5)


@functools.cache
def process_of(build="fedamp", momentum=None, **options):
    local = LocalTraining(
        tff.learning.optimizers.build_sgdm(RATE, momentum),
        epochs=STEPS,
        batch_size=1,
        persist_optimizer_state=momentum is not None,
    )
    return traced(build, QUADRATIC, local, num_clients=N, **options, seed=2)


def clients_of(process, models=START):
    """Makes all clients, with these models."""
    clients = [make_client(process, i, quadratic_examples(A[i], C[i])) for i in range(N)]
    return [
        client._replace(state=client.state._replace(model=weights_of(model, *DIMS)))
        for client, model in zip(clients, models, strict=True)
    ]


def server_of(process, models=START):
    state = process.initialize()
    return state._replace(algorithm=state.algorithm._replace(models=stacked(models)))


class Reference:
    """FedAMP in NumPy."""

    def __init__(
        self,
        alpha,
        sigma,
        lambda_,
        similarity="distance",
        self_weight=None,
        distance_scale="none",
        neighbours="cohort",
        start="own",
        alpha_decay=1.0,
        alpha_decay_rounds=30,
        momentum=0.0,
    ):
        self.__dict__.update(locals())
        self.w, self.xi = START.astype(np.float64), np.eye(N)
        self.velocity = np.zeros([N, DIM])

    def attention(self, cohort, alpha):
        neighbours = sorted(cohort) if self.neighbours == "cohort" else range(N)
        pairs = [(i, j) for i in cohort for j in neighbours if i != j]
        square = {(i, j): np.sum((self.w[i] - self.w[j]) ** 2) for i, j in pairs}
        unit = {"none": 1.0, "num_weights": DIM}.get(self.distance_scale)
        unit = unit or np.median(list(square.values()) or [1.0])
        for i in cohort:
            others = {}
            for j in neighbours:
                if i != j and self.similarity == "cosine":
                    norms = np.linalg.norm(self.w[i]) * np.linalg.norm(self.w[j])
                    others[j] = np.exp(self.sigma * (self.w[i] @ self.w[j]) / norms)
                elif i != j:
                    others[j] = alpha * np.exp(-square[i, j] / unit / self.sigma) / self.sigma
            total = sum(others.values())
            if self.similarity == "cosine":
                own = 1 / len(neighbours) if self.self_weight is None else self.self_weight
                own = own if others else 1.0
                factor = (1 - own) / (total or 1.0)
            else:
                factor = 1 / max(total, 1.0)
                own = 1 - factor * total
            self.xi[i] = 0.0
            self.xi[i, i] = own
            for j, value in others.items():
                self.xi[i, j] = factor * value

    def next(self, cohort, round_num):
        """Runs a round; the results are kept for the next one."""
        alpha = self.alpha * self.alpha_decay ** (round_num // self.alpha_decay_rounds)
        self.attention(cohort, alpha)
        mixtures = self.xi @ self.w
        for i in cohort:
            w = self.w[i] if self.start == "own" else mixtures[i]
            for _ in range(STEPS):
                gradient = A[i] @ (w - C[i]) + self.lambda_ / alpha * (w - mixtures[i])
                self.velocity[i] = self.momentum * self.velocity[i] + gradient
                w = w - RATE * self.velocity[i]
            self.w[i] = w
            if not self.momentum:
                self.velocity[i] = 0.0


def check_against_numpy(process, expected, tolerance=1e-5, cohorts=COHORTS):
    """Runs rounds, after which the models of clients are those of the server."""
    rounds = each_round(process, clients_of(process), cohorts, server_of(process))
    for t, (cohort, state, clients, metrics) in enumerate(rounds):
        expected.next(cohort, t)
        models = as_rows(state.algorithm.models)
        assert_close(models, expected.w, tolerance)
        assert_close(process.snapshot(state)["xi"], expected.xi, tolerance)
        own = np.mean(np.diag(expected.xi)[list(cohort)])
        assert_close(metrics["arrivals"]["server"]["xi_own"], own, tolerance)
        assert_equal([vector_of(client.state.model) for client in clients], list(models))
        assert_equal(personal(process, state, clients), list(models))


OPTIONS = {
    "own": {},
    "all": {"neighbours": "all", "alpha": 1.2},
    "num_weights": {"distance_scale": "num_weights"},
    "median": {"distance_scale": "median", "sigma": 1.0},
    "clamped": {"alpha": 50.0, "lambda_": 30.0},
    "decay": {"alpha_decay": 0.7, "alpha_decay_rounds": 2},
    "cosine": {
        "similarity": "cosine",
        "alpha_decay": 0.8,
        "alpha_decay_rounds": 1,
        "neighbours": "all",
    },
    "cosine, self": {"similarity": "cosine", "self_weight": 0.3, "start": "mixture"},
    "momentum": {"momentum": 0.5},  # continues, including the pull to the mixture
}


@pytest.mark.thorough_but_one
@pytest.mark.parametrize("name", OPTIONS)
def test_rounds_agree_with_numpy(name):
    options = BASE | OPTIONS[name]
    expected = Reference(**options)
    check_against_numpy(process_of(**options), expected)
    # The options make a difference.
    assert np.max(np.abs(expected.xi - np.eye(N))) > 0.05
    if name == "clamped":
        assert np.min(np.diag(expected.xi)) < 1e-9


@pytest.mark.thorough
def test_heur_fedamp_uses_cosines_and_its_own_sigma():
    process = process_of("heur_fedamp", lambda_=0.4, alpha=0.5)
    expected = Reference(alpha=0.5, sigma=25.0, lambda_=0.4, similarity="cosine")
    # Sharp attention loses digits of float32.
    check_against_numpy(process, expected, tolerance=1e-4, cohorts=((0, 1, 2),))


def on_images(method, **options):
    # One batch of all examples, because the two methods shuffle differently.
    local = local_sgd(batch_size=max(SIZES))
    return trained(method, local=local, cohorts=COHORTS, sizes=SIZES, **options)


@pytest.mark.slow
def test_lambda_0_equals_local():
    """Tests strong attention, which does not matter unless training starts from mixtures."""
    options = {"num_clients": N, "alpha": 1e4, "sigma": 1e4, "lambda_": 0.0}
    found, alone = on_images("fedamp", **options), on_images("local")
    assert_close(found.personal, [own.model for own in alone.client_states], tolerance=1e-6)
    assert np.max(np.diag(found.state.algorithm.xi)) < 1e-3
    assert differ(found.personal, on_images("fedamp", start="mixture", **options).personal)


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{"similarity": "cosine"}, {"distance_scale": "median"}])
def test_distant_models_do_not_disturb_others(options):
    """Tests models whose squares overflow float32."""
    models = START * np.float32([[1.0], [1e25], [1e25], [1.0]])
    process = process_of(**BASE | options)
    state = process.next(server_of(process, models), clients_of(process, models)).state
    assert np.all(np.isfinite(as_rows(state.algorithm.models)))
    assert state.algorithm.xi[0, 3] > 0.01
    np.testing.assert_allclose(np.sum(state.algorithm.xi, axis=1), 1.0, rtol=1e-6)
