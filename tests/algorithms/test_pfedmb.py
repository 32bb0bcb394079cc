"""Tests pFedMB: its rounds on quadratics against NumPy, and its limit FedAvg."""

import dataclasses
import functools

import numpy as np
import pytest
import scipy.optimize
import tensorflow_federated as tff

from tests.algorithms.rounds import each_round, personal
from tests.federation import COHORTS, assert_close, assert_equal, traced, trained
from tests.quadratics import objectives, quadratic_clients, quadratic_model, vector_of
from tff_pfl.local import LocalTraining
from tff_pfl.models import multi_branch

BRANCHES = 3
# The first two layers have branches.
DIMS, NAMED, DIM = (2, 2, 1), ("layer0", "layer1"), 5
RATE, DECAY, STEPS = 0.2, 0.9, 3
A, C = objectives(3, DIM)
COPIES = (1, 3, 2)  # copies of each client's only example


@dataclasses.dataclass(frozen=True)
class Variant:
    parametrization: str = "softmax"
    alpha_weighted: bool = True
    shared_alpha: bool = False
    alpha_learning_rate: float | None = None
    alpha_epochs: int | None = None
    normalize_step: bool = False
    init_scale: float = 1.0
    weighting: str = "num_examples"
    # Options of local training.
    momentum: float = 0.0
    weight_decay: float = 0.0
    persist: bool = False

    @functools.cached_property
    def process(self):
        local = LocalTraining(
            tff.learning.optimizers.build_sgdm(RATE, self.momentum or None),
            epochs=STEPS,
            batch_size=4,
            learning_rate_decay=DECAY,
            weight_decay=self.weight_decay,
            persist_optimizer_state=self.persist,
        )
        # Options with their defaults are left out, which tests the defaults of the method.
        options = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in ("momentum", "weight_decay", "persist")
            and getattr(self, field.name) != field.default
        }
        options |= {"branches": BRANCHES, "branched_layers": NAMED, "seed": 2}
        return traced("pfedmb", quadratic_model(*DIMS), local, **options)


def alphas_of(process, clients):
    """Returns alpha of all clients, `[clients, L, B]`."""
    rows = process.client_snapshot([client.state for client in clients])
    return np.array([list(rows_of_client.values()) for rows_of_client in rows])


def arrays_of(weights):
    """Returns the array of each layer; a branched layer has `[B, d]`."""
    return [np.asarray(layer["w"], np.float64) for layer in weights.values()]


def merged(weights, alpha):
    mixtures = [row @ w for row, w in zip(alpha, weights[:2], strict=True)]
    return np.concatenate([*mixtures, weights[2]])


def nearest(row):
    def excess(t):
        return np.sum(np.maximum(row - t, 0)) - 1

    return np.maximum(row - scipy.optimize.brentq(excess, row.min() - 2, row.max()), 0)


def client_round(v: Variant, t, weights, own, a, c):
    """Returns `(weights, alpha, client state, losses of alpha, losses of the weights)`."""

    def alpha_of(coefficients):
        if v.parametrization == "projection":
            return coefficients
        return np.exp(coefficients) / np.sum(np.exp(coefficients), axis=1, keepdims=True)

    def loss_and_gradient(weights, alpha):
        w = merged(weights, np.broadcast_to(alpha, (2, BRANCHES)))
        return 0.5 * (w - c) @ a @ (w - c), np.split(a @ (w - c), np.cumsum(DIMS)[:-1])

    coefficients, (u_alpha, u) = own
    if not v.persist:
        u_alpha, u = 0.0, [0.0] * 3
    alpha_rate = RATE if v.alpha_learning_rate is None else v.alpha_learning_rate
    alpha_losses, losses = [], []
    for _ in range(STEPS if v.alpha_epochs is None else v.alpha_epochs):
        alpha = alpha_of(coefficients)
        loss, (g0, g1, _) = loss_and_gradient(weights, alpha)
        alpha_losses.append(loss)
        g = np.stack([weights[0] @ g0, weights[1] @ g1])
        if v.shared_alpha:
            g = np.sum(g, axis=0, keepdims=True)
        if v.parametrization == "softmax":
            g = alpha * (g - np.sum(alpha * g, axis=1, keepdims=True))
        u_alpha = v.momentum * u_alpha + g
        coefficients = coefficients - alpha_rate * DECAY**t * u_alpha
        if v.parametrization == "projection":
            coefficients = np.stack([nearest(row) for row in coefficients])
    alpha = np.broadcast_to(alpha_of(coefficients), (2, BRANCHES))
    for _ in range(STEPS):
        loss, (g0, g1, g2) = loss_and_gradient(weights, alpha)
        losses.append(loss)
        gradient = [np.outer(alpha[0], g0), np.outer(alpha[1], g1), g2]
        if v.normalize_step:
            lengths = [*np.sum(alpha**2, axis=1), 1.0]
            gradient = [g / length for g, length in zip(gradient, lengths, strict=True)]
        decayed = [g + v.weight_decay * w for g, w in zip(gradient, weights, strict=True)]
        u = [v.momentum * m + g for m, g in zip(u, decayed, strict=True)]
        weights = [w - RATE * DECAY**t * m for w, m in zip(weights, u, strict=True)]
    return weights, alpha, (coefficients, (u_alpha, u)), alpha_losses, losses


def server_mean(v, weights, trained, alphas, counts):
    """Computes equation (5) or (6)."""
    new = []
    for layer, old in enumerate(weights):
        shares = np.array(counts)[:, np.newaxis] * np.ones(len(old))
        if layer < 2 and v.alpha_weighted:
            shares = shares * np.array([alpha[layer] for alpha in alphas])
        numerator = sum(
            s.reshape([-1, *[1] * (old.ndim - 1)]) * w[layer]
            for s, w in zip(shares, trained, strict=True)
        )
        denominator = np.sum(shares, axis=0).reshape([-1, *[1] * (old.ndim - 1)])
        new.append(
            np.where(denominator > 0, numerator / np.where(denominator > 0, denominator, 1), old)
        )
    return new


def rounds(v: Variant, weights):
    """Yields `(weights, alpha of all clients, mean losses)` for each round of `COHORTS`."""
    start = 0.0 if v.parametrization == "softmax" else 1 / BRANCHES
    shape = (1 if v.shared_alpha else 2, BRANCHES)
    own = [(np.full(shape, start), (0.0, [0.0] * 3))] * 3
    alphas = [np.full((2, BRANCHES), 1 / BRANCHES)] * 3
    for t, cohort in enumerate(COHORTS):
        counts = np.array([COPIES[i] for i in cohort])
        results = [client_round(v, t, weights, own[i], A[i], C[i]) for i in cohort]
        trained, new, kept, *losses = zip(*results, strict=True)
        for i, alpha, state in zip(cohort, new, kept, strict=True):
            alphas[i], own[i] = alpha, state
        n = counts if v.weighting == "num_examples" else np.ones(len(cohort))
        weights = server_mean(v, weights, trained, new, n)
        means = [
            counts @ np.mean(client_losses, axis=1) / np.sum(counts) for client_losses in losses
        ]
        yield weights, list(alphas), means


VARIANTS = {
    "softmax": Variant(),
    "projection": Variant("projection", alpha_learning_rate=0.6, init_scale=1.5),
    "not-weighed": Variant(alpha_weighted=False, alpha_learning_rate=0.8, momentum=0.7),
    "shared": Variant(
        shared_alpha=True, weighting="uniform", alpha_learning_rate=0.9, alpha_epochs=5
    ),
    "persist": Variant(
        persist=True, momentum=0.7, weight_decay=0.4, alpha_learning_rate=0.4, normalize_step=True
    ),
}


@pytest.mark.thorough_but_one
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_rounds_match_numpy_on_quadratics(variant):
    process = variant.process
    options = {"layers": NAMED, "init_scale": variant.init_scale}
    start = multi_branch(quadratic_model(*DIMS), BRANCHES, **options).init(2)
    assert_equal(process.initialize().algorithm.weights, start)
    found = each_round(process, quadratic_clients(process, A, C, COPIES))
    expected = rounds(variant, arrays_of(start))
    for (_, state, clients, metrics), (weights, alphas, losses) in zip(
        found, expected, strict=True
    ):
        assert_close(arrays_of(state.algorithm.weights), weights)
        own = alphas_of(process, clients)
        assert_close(np.broadcast_to(own, np.shape(alphas)), np.array(alphas))
        models = [merged(weights, alpha) for alpha in alphas]
        assert_close(personal(process, state, clients), models)
        uniform_mixture = merged(weights, np.full((2, BRANCHES), 1 / BRANCHES))
        assert_close(vector_of(process.global_weights(state)), uniform_mixture)
        measured = [metrics["train"][name] for name in ("alpha_loss", "loss")]
        assert_close(measured, losses, 1e-4)
    assert np.ptp(alphas, axis=-1).min() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"alpha_weighted": False, "parametrization": "projection"}], ids=str
)
def test_one_branch_equals_fedavg(options):
    found, expected = trained("pfedmb", branches=1, **options), trained("fedavg").shared
    assert np.all(alphas_of(found.process, found.clients) == 1.0)
    assert_close(found.process.global_weights(found.state), expected, 1e-6)
    assert_close(found.personal, [expected] * 3, 1e-6)
