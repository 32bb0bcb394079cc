"""Tests APPLE: its limit Local, its rounds against NumPy, and the choice of downloads."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.algorithms.rounds import (
    batches_of,
    clients_with,
    cross_entropy,
    drawn,
    each_round,
    linear_network,
)
from tests.federation import assert_close, assert_equal, eager, leaves, trained
from tests.marks import together
from tff_pfl.algorithms.apple import choose, falling
from tff_pfl.local import ClientContext, LocalTraining
from tff_pfl.models import from_keras

IN, CLASSES, SEED, N = 3, 3, 2, 4
RATE, MOMENTUM, EPOCHS, BATCH = 0.1, 0.6, 2, 4
BATCHES = {"epochs": EPOCHS, "batch_size": BATCH, "seed": SEED, "exchange": 1}
SIZES = (5, 7, 4, 0)  # with partial batches, and a client without examples
COHORTS = ((0, 1), (0, 2, 3), (1, 0))
XS, YS = drawn(SIZES, IN, CLASSES)


def test_own_weights_that_stay_are_local():
    """The batches are in another order, but here a client has only one."""
    one_batch = {"sizes": (4, 2, 3)}
    options = {"num_clients": 3, "initial": "own", "p_learning_rate": 0.0}
    found, expected = trained("apple", **one_batch, **options), trained("local", **one_batch)
    models = [own.model for own in expected.client_states]
    assert_close([own.core for own in found.client_states], models, 1e-6)
    assert_close(found.personal, models, 1e-6)
    np.testing.assert_array_equal([own.p for own in found.client_states], np.eye(3))


def normalized_model():
    layers = tf.keras.layers

    def network():
        norm, head = layers.BatchNormalization(name="norm"), layers.Dense(CLASSES, name="head")
        return tf.keras.Sequential([tf.keras.Input((4, 4, 1)), layers.Flatten(), norm, head])

    return from_keras(network, input_shape=(4, 4, 1))


@pytest.mark.thorough
def test_statistics_are_those_of_the_clients_own_batches():
    options = {"model": normalized_model, "sizes": (4, 2, 3)}
    found, expected = trained("apple", num_clients=3, **options), trained("local", **options)
    for own, personal, alone in zip(
        found.client_states, found.personal, expected.personal, strict=True
    ):
        for name in ("moving_mean", "moving_variance"):
            assert_close(own.core["norm"][name], alone["norm"][name])
            assert_equal(personal["norm"][name], own.core["norm"][name])


class Federation:
    """APPLE in NumPy: a model is the kernel of the body, and the bias and kernel of the head."""

    def __init__(self, weights, persists, options):
        start = [np.float64(leaf) for leaf in tf.nest.flatten(weights)]
        self.cores, self.personal = [start] * N, [start] * N
        self.seen = [[start] * N for _ in range(N)]  # by each client
        self.p, self.sizes = [None] * N, np.zeros(N)
        self.velocities, self.persists = [[0.0] * 3] * N, persists
        defaults = {"p_learning_rate": 0.001, "mu": 0.1, "mu_rounds": 16, "initial": "num_examples"}
        self.options = defaults | {"mu_schedule": "exponential"} | options

    def pull(self, round_num):
        progress = round_num / self.options["mu_rounds"]
        if progress >= 1:
            return 0.0
        cosine = self.options["mu_schedule"] == "cosine"
        factor = (1 + np.cos(np.pi * progress)) / 2 if cosine else 1e-3**progress
        return self.options["mu"] * factor

    def mixture(self, i):
        return [np.tensordot(self.p[i], leaves, 1) for leaves in zip(*self.seen[i], strict=True)]

    def train(self, i, round_num):
        """Trains the client's core model, which is one of those that it has."""
        own = np.eye(N)[i]
        p_0 = own if self.options["initial"] == "own" else self.sizes / np.sum(self.sizes)
        self.p[i] = p_0 if self.p[i] is None else self.p[i]
        velocity = self.velocities[i] if self.persists else [0.0] * 3
        for rows in batches_of(SIZES[i], i, round_num, **BATCHES):
            body, bias, kernel = self.mixture(i)
            x, y = XS[i][rows], YS[i][rows]
            _, error = cross_entropy(x @ body @ kernel + bias, y)
            gradient = [x.T @ error @ kernel.T, np.sum(error, axis=0), (x @ body).T @ error]
            slopes = [
                sum(np.sum(g * w) for g, w in zip(gradient, model, strict=True))
                for model in self.seen[i]
            ]
            step = [self.p[i][i] * g for g in gradient]
            velocity = [MOMENTUM * v + g for v, g in zip(velocity, step, strict=True)]
            core = [w - RATE * v for w, v in zip(self.seen[i][i], velocity, strict=True)]
            slopes = slopes + self.pull(round_num) * (self.p[i] - p_0)
            self.p[i] = self.p[i] - self.options["p_learning_rate"] * slopes
            self.seen[i][i] = core
        self.velocities[i] = velocity

    def next(self, cohort, round_num, downloads):
        self.sizes[cohort] = np.take(SIZES, cohort)
        for i in cohort:
            for j in downloads[i]:
                self.seen[i][j] = self.cores[j]
            self.train(i, round_num)
            self.personal[i] = self.mixture(i)
        for i in cohort:
            self.cores[i] = self.seen[i][i]


CASES = {
    "default": {},
    "cosine": {"mu": 2.0, "mu_rounds": 2, "mu_schedule": "cosine", "p_learning_rate": 0.05},
    "own": {"initial": "own", "mu": 3.0, "p_learning_rate": 0.05},
    "limited": {"num_downloads": 2, "p_learning_rate": 0.02},
}


@pytest.mark.thorough_but_one
@pytest.mark.parametrize("case", CASES)
def test_rounds_agree_with_numpy(case):
    model, persists = linear_network(IN, has_bias=True), case == "own"
    optimizer = tff.learning.optimizers.build_sgdm(RATE, MOMENTUM)
    local = LocalTraining(optimizer, EPOCHS, BATCH, persist_optimizer_state=persists)
    process = eager("apple", model, local, seed=SEED, num_clients=N, **CASES[case])
    clients = clients_with(process, XS, YS)
    expected, ever = Federation(model.init(SEED), persists, CASES[case]), np.zeros((N, N), bool)
    rounds = each_round(process, clients, COHORTS)
    for round_num, (cohort, state, now, metrics) in enumerate(rounds):
        cohort = [i for i in cohort if SIZES[i]]
        downloads = [set(range(N)) - {i} for i in range(N)]
        if case == "limited":
            for i in cohort:
                downloads[i] = wanted = state.algorithm.wanted[i]
                assert len(set(wanted) - {i}) == 2
                assert sum(~ever[i, wanted]) == min(sum(~ever[i]) - 1, 2)
                ever[i, wanted] = True
                np.testing.assert_array_equal(now[i].state.received.ever, ever[i])
        expected.next(cohort, round_num, downloads)
        found = zip(*leaves(state.algorithm.models), strict=True)
        assert_close(list(found), expected.cores)
        assert_close([client.state.core for client in now], expected.cores)
        assert_close([now[i].state.p for i in cohort], [expected.p[i] for i in cohort])
        assert_close(process.personalize(state, now), expected.personal)
        p_own = np.mean([expected.p[i][i] for i in cohort])
        assert_close(metrics["train"]["p_own"], p_own)
    np.testing.assert_array_equal(state.algorithm.sizes, SIZES)


def choices(p, ever, number, round_num, draws=400):
    """Returns the clients that client 1 asks for, `[draws, number]`."""

    def draw(seed):
        context = ClientContext(tf.constant(round_num), tf.constant(1), seed)
        return choose(tf.constant(p, tf.float32), tf.constant(ever), number, context)

    seeds = tf.random.stateless_uniform([draws, 2], [3, 4], 0, 2**20, tf.int32)
    spec = tf.TensorSpec([number], tf.int32)
    return tf.function(lambda: tf.map_fn(draw, seeds, fn_output_signature=spec))().numpy()


@together(("round_num", "base"), [(20, 5.0), (0, 1.5)])
def test_models_with_large_weights_are_asked_for_more_often(round_num, base):
    """The base of the chances is the mean number of downloads of a model, at least 1.5."""
    p = np.array([0.0, 3.0, -2.0, 1.0])
    found = choices(p, [True] * 4, 1, round_num)
    chance = np.where(np.arange(4) == 1, 0.0, base ** np.abs(p))
    counts = np.bincount(found[:, 0], minlength=4)
    np.testing.assert_allclose(counts / len(found), chance / chance.sum(), atol=0.06)


def test_models_that_were_never_received_are_asked_for_first():
    found = choices([9.0, 0.0, 0.0, 0.0, 9.0], [True, False, False, False, True], 3, 20)
    assert all({2, 3} < set(row) and len(set(row)) == 3 for row in found.tolist())
    counts = np.bincount(found.ravel(), minlength=5)
    np.testing.assert_allclose(counts / len(found), [0.5, 0.0, 1.0, 1.0, 0.5], atol=0.08)


@together(("schedule", "half"), [("cosine", 0.5), ("exponential", 1e-3**0.5)])
def test_pull_ends(schedule, half):
    found = [falling(schedule, tf.constant(round_num), 8).numpy() for round_num in (0, 4, 8, 12)]
    np.testing.assert_allclose(found, [1.0, half, 0.0, 0.0], rtol=1e-6)
