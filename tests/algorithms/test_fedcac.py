"""Tests FedCAC: its limit FedAvg, its rounds against NumPy, and who collaborates when."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.algorithms.rounds import (
    batches_of,
    clients_with,
    cross_entropy,
    each_round,
    linear_network,
)
from tests.federation import assert_close, assert_equal, differ, eager, trained
from tff_pfl.algorithms.fedcac import collaborators, critical_weights
from tff_pfl.local import LocalTraining, trees
from tff_pfl.models.statistics import STATISTICS

IN, CLASSES, SEED = 3, 3, 2
RATE, MOMENTUM, EPOCHS, BATCH = 0.2, 0.6, 2, 4
BATCHES = {"epochs": EPOCHS, "batch_size": BATCH, "seed": SEED}
SIZES = (5, 7, 4, 6, 0)  # with partial batches, and a client without examples
COHORTS = ((0, 1, 2, 3), (1, 3, 4), (0, 2, 1))
RNG = np.random.default_rng(0)
XS = [RNG.normal(i % 2, 1, size=(n, IN)) for i, n in enumerate(SIZES)]
YS = [RNG.choice(CLASSES, n) for n in SIZES]
CLIENTS = {"num_clients": 3}


def test_without_critical_weights_it_is_fedavg():
    sgdm = tff.learning.optimizers.build_sgdm(RATE, MOMENTUM)
    local = LocalTraining(sgdm, batch_size=4, persist_optimizer_state=True)
    found, expected = (
        trained("fedcac", local=local, **CLIENTS, tau=0.0),
        trained("fedavg", local=local),
    )
    assert_close(found.shared, expected.shared, 1e-6)
    assert_close(found.personal, expected.personal, 1e-6)


def descended(model, i, round_num):
    velocity = [0.0] * 3
    for rows in batches_of(SIZES[i], i, round_num, **BATCHES):
        body, bias, kernel = model
        x, y = XS[i][rows], YS[i][rows]
        _, error = cross_entropy(x @ body @ kernel + bias, y)
        gradient = [x.T @ error @ kernel.T, np.sum(error, axis=0), (x @ body).T @ error]
        velocity = [MOMENTUM * v + g for v, g in zip(velocity, gradient, strict=True)]
        model = [w - RATE * v for w, v in zip(model, velocity, strict=True)]
    return model


def mask(weights, change, tau):
    sensitivity = np.abs(weights * change)
    chosen = np.argsort(-sensitivity, axis=None)[: int(tau * sensitivity.size)]
    return np.isin(np.arange(weights.size), chosen).reshape(weights.shape) & (sensitivity > 0)


class Federation:
    """FedCAC in NumPy."""

    def __init__(self, weights, tau, beta, weighting):
        self.shared = [np.float64(leaf) for leaf in tf.nest.flatten(weights)]
        self.customized = [self.shared] * len(SIZES)
        self.masks = [[np.zeros(leaf.shape, bool) for leaf in self.shared]] * len(SIZES)
        self.tau, self.beta, self.weighting = tau, beta, weighting

    def start(self, i):
        return [
            np.where(m, c, w)
            for m, c, w in zip(self.masks[i], self.customized[i], self.shared, strict=True)
        ]

    def next(self, cohort, round_num):
        starts = {i: self.start(i) for i in cohort}
        models = {i: descended(start, i, round_num) for i, start in starts.items()}
        for i, start in starts.items():
            pairs = zip(models[i], start, strict=True)
            self.masks[i] = [mask(w, w - old, self.tau) for w, old in pairs]
        sizes = {i: 1 if self.weighting == "uniform" else SIZES[i] for i in cohort}
        self.shared = average(models, sizes)
        common = {
            (i, j): sum(np.sum(a & b) for a, b in zip(self.masks[i], self.masks[j], strict=True))
            for i in cohort
            for j in cohort
            if i != j
        }
        mean, most = np.mean(list(common.values())), max(common.values())
        threshold = mean + (round_num + 1) / self.beta * (most - mean)
        for i in cohort:
            group = {j: 1 for j in cohort if j == i or common[i, j] >= threshold}
            self.customized[i] = average({j: models[j] for j in group}, group)
        return models


def average(models, weights):
    return [
        np.average(leaves, axis=0, weights=list(weights.values()))
        for leaves in zip(*models.values(), strict=True)
    ]


@pytest.mark.thorough_but_one
@pytest.mark.parametrize(
    "options", [{}, {"tau": 0.8, "beta": 2, "weighting": "uniform", "personalized": "last"}]
)
def test_rounds_agree_with_numpy(options):
    model = linear_network(IN, has_bias=True)
    local = LocalTraining(
        tff.learning.optimizers.build_sgdm(RATE, MOMENTUM), epochs=EPOCHS, batch_size=BATCH
    )
    process = eager("fedcac", model, local, seed=SEED, num_clients=len(SIZES), **options)
    clients = clients_with(process, XS, YS)
    defaults = {"tau": 0.5, "beta": 100, "weighting": "num_examples"}
    is_last = options.get("personalized") == "last"
    values = {name: options.get(name, value) for name, value in defaults.items()}
    expected, own = Federation(model.init(SEED), **values), {}
    for round_num, (cohort, state, now, _) in enumerate(each_round(process, clients, COHORTS)):
        own |= expected.next([i for i in cohort if SIZES[i]], round_num)
        assert_close(state.algorithm.weights, expected.shared)
        for i, masks in enumerate(expected.masks):
            assert_equal(trees.row(state.algorithm.critical, i), masks)
        models = [expected.start(i) for i in range(len(SIZES))]
        if is_last:
            models = [own.get(i, start) for i, start in enumerate(models)]
        assert_close(process.personalize(state, now), models)
    assert differ(expected.customized[1], expected.customized[3])


def test_the_most_similar_clients_collaborate_until_round_beta():
    """Clients have 3, 2, 1, 0, 0, 0 critical weights in common, so the threshold is 1 + t / 4."""
    rows = ["11110000", "11101000", "00101110", "00000001"]
    critical = {"layer": {"kernel": tf.constant([[digit == "1" for digit in row] for row in rows])}}
    for t, pairs in ((1, [(0, 1), (1, 2)]), (4, [(0, 1), (1, 2)]), (5, [(0, 1)]), (9, [])):
        expected = np.eye(4)
        for i, j in pairs:
            expected[i, j] = expected[j, i] = 1
        np.testing.assert_array_equal(collaborators(critical, tf.constant(t), beta=8), expected)


def test_clients_that_are_equally_similar_always_collaborate():
    """Rounding would keep them apart."""
    critical = {"kernel": tf.constant(np.ones((7, 3), bool))}
    np.testing.assert_array_equal(collaborators(critical, tf.constant(99), beta=3), np.ones((7, 7)))
    alone = {"kernel": tf.constant([[True, False]])}
    np.testing.assert_array_equal(collaborators(alone, tf.constant(1), beta=3), [[1]])


def test_weights_that_did_not_move_and_statistics_are_not_critical():
    weights = {"norm": {"gamma": tf.constant([1.0, 2.0, 3.0, 0.0])}}
    weights["norm"] |= {name: tf.ones(4) for name in STATISTICS}
    change = {"norm": {"gamma": tf.constant([-3.0, 1.0, 0.0, 9.0])}}
    change["norm"] |= {name: tf.ones(4) for name in STATISTICS}
    for tau, number in ((0.2, 0), (0.25, 1), (0.5, 2), (1.0, 2)):
        found = critical_weights(weights, change, tau)["norm"]
        assert list(found.pop("gamma").numpy()) == [number > 0, number > 1, False, False]
        assert not np.any(list(found.values()))
