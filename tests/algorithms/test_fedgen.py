"""Tests FedGen: its limit FedAvg, its rounds against NumPy, and the draws of its generator."""

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
from tests.federation import assert_close, assert_equal, eager, trained
from tff_pfl.algorithms.fedgen import draw, generator_network
from tff_pfl.local import Examples, LocalTraining, scan_batches
from tff_pfl.local.seeds import client_seed, run_seed

IN, DIM, CLASSES, SEED = 3, 2, 3, 2
RATE, MOMENTUM, EPOCHS, BATCH, WEIGHT = 0.1, 0.6, 2, 4, 0.7
BATCHES = {"epochs": EPOCHS, "batch_size": BATCH, "seed": SEED}
NOISE, HIDDEN, STEPS, DRAWN, ADAM = 2, 4, 3, 6, 0.05
GENERATOR = {
    "noise_dim": NOISE,
    "generator_hidden": HIDDEN,
    "generator_steps": STEPS,
    "generator_batch_size": DRAWN,
    "generator_learning_rate": ADAM,
}
SIZES = (5, 7, 4, 0)  # with partial batches, and a client without examples
CHOICES = ([0, 1], [0, 1, 2], [1], [0])
COHORTS = ((0, 1), (0, 2, 3), (1, 2))
XS, YS = drawn(SIZES, IN, CHOICES)
FEW = {"noise_dim": NOISE, "generator_hidden": HIDDEN, "generator_steps": 1}


def test_without_weight_it_is_fedavg():
    found, expected = trained("fedgen", weight=0.0, **FEW), trained("fedavg")
    assert_equal(found.shared, expected.shared)
    assert_equal(found.personal, expected.personal)


@pytest.mark.thorough
def test_ensembles_of_one_client_are_the_same():
    of_one = {"cohorts": ((1,), (2,)), "weight": 2.0}
    logits, losses = (
        trained("fedgen", ensemble=ensemble, **of_one, **FEW).state.algorithm
        for ensemble in ("logits", "losses")
    )
    assert_close(logits.generator, losses.generator)
    assert_close(logits.weights, losses.weights)


def test_labels_are_drawn_by_their_shares():
    generator = generator_network(NOISE + CLASSES, HIDDEN, DIM)
    weights, shares = generator.init(0), tf.constant([0.25, 0.0, 0.75])
    features, y = draw(generator, weights, shares, 2000, tf.constant([3, 4]))
    np.testing.assert_allclose(np.bincount(y) / 2000, shares, atol=0.03)
    again, _ = draw(generator, weights, tf.constant([0.0, 0.0, 1.0]), 2000, tf.constant([3, 4]))
    same = np.all(np.isclose(features, again), axis=1)  # the noise is
    assert np.all(same[y == 2]) and np.mean(same[y == 0]) < 0.1


def normal_and_labels(shares, number, seed):
    """Returns noise and labels; `draw` has them from the same random numbers."""
    of_labels, of_noise = (tf.random.experimental.stateless_fold_in(seed, i) for i in range(2))
    uniform = tf.random.stateless_uniform([number], of_labels).numpy()
    labels = np.searchsorted(np.cumsum(shares)[:-1], uniform, side="right")
    return tf.random.stateless_normal([number, NOISE], of_noise).numpy(), labels


def seeds_of(i, round_num):
    """Returns the seed of the generated features of each batch of a client."""

    def step(carry, batch):
        index, found = carry
        own = tf.random.experimental.stateless_fold_in(batch.seed, -1)
        return index + 1, tf.tensor_scatter_nd_update(found, [[index]], [own])

    seed = client_seed(run_seed(SEED, 0), tf.constant(round_num), tf.constant(i))
    start = (tf.constant(0), tf.zeros([EPOCHS * -(-SIZES[i] // BATCH), 2], tf.int32))
    examples = Examples(XS[i], YS[i], np.int32(SIZES[i]))
    return scan_batches(step, start, examples, **BATCHES | {"seed": seed})[1]


class Federation:
    """FedGen in NumPy, on a linear body and a head with a bias."""

    def __init__(self, weights, generator, ensemble, weighting):
        self.model = [np.float64(leaf) for leaf in tf.nest.flatten(weights)]
        self.generator = [np.float64(leaf) for leaf in tf.nest.flatten(generator)]
        self.moments, self.steps = [[0.0, 0.0] for _ in self.generator], 0
        self.ensemble, self.weighting = ensemble, weighting
        self.labels = np.full(CLASSES, 1 / CLASSES)

    def generate(self, noise, labels):
        bias, kernel, hidden_bias, hidden = self.generator
        inputs = np.concatenate([noise, np.eye(CLASSES)[labels]], axis=1)
        inner = inputs @ hidden + hidden_bias
        return inputs, inner, np.maximum(inner, 0) @ kernel + bias

    def train(self, i, round_num):
        model, velocity = self.model, [0.0] * 3
        batches = batches_of(SIZES[i], i, round_num, **BATCHES)
        for rows, seed in zip(batches, seeds_of(i, round_num), strict=True):
            body, bias, kernel = model
            x, y = XS[i][rows], YS[i][rows]
            noise, labels = (it[: len(y)] for it in normal_and_labels(self.labels, BATCH, seed))
            *_, z = self.generate(noise, labels)
            features = x @ body
            _, error = cross_entropy(features @ kernel + bias, y)
            _, own = cross_entropy(z @ kernel + bias, labels)
            gradient = [
                x.T @ error @ kernel.T,
                np.sum(error + WEIGHT * own, axis=0),
                features.T @ error + WEIGHT * z.T @ own,
            ]
            velocity = [MOMENTUM * v + g for v, g in zip(velocity, gradient, strict=True)]
            model = [w - RATE * v for w, v in zip(model, velocity, strict=True)]
        return model

    def step(self, heads, shares, seed):
        """Makes a step of Adam along the gradient of the sum of the heads' losses."""
        noise, labels = normal_and_labels(self.labels, DRAWN, seed)
        inputs, inner, z = self.generate(noise, labels)
        loss, upper = 0.0, 0.0
        for (bias, kernel), share in zip(heads, shares, strict=True):
            logits = z @ kernel + bias
            losses = [
                cross_entropy(row[np.newaxis], [y])[0]
                for row, y in zip(logits, labels, strict=True)
            ]
            loss += np.mean(share[labels] * losses)
            upper += share[labels][:, np.newaxis] * cross_entropy(logits, labels)[1] @ kernel.T
        _, kernel, _, hidden = self.generator
        lower = (upper @ kernel.T) * (inner > 0)
        gradient = [
            *(np.sum(upper, axis=0), np.maximum(inner, 0).T @ upper),
            *(np.sum(lower, axis=0), inputs.T @ lower),
        ]
        self.steps += 1
        rate = ADAM * np.sqrt(1 - 0.999**self.steps) / (1 - 0.9**self.steps)
        for index, g in enumerate(gradient):
            first, second = self.moments[index]
            first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g**2
            self.moments[index] = [first, second]
            self.generator[index] = self.generator[index] - rate * first / (np.sqrt(second) + 1e-7)
        return loss

    def next(self, cohort, round_num):
        cohort = [i for i in cohort if SIZES[i]]
        models = [self.train(i, round_num) for i in cohort]
        p = np.array([1 if self.weighting == "uniform" else SIZES[i] for i in cohort])
        p = p / np.sum(p)
        pi = np.array([np.bincount(YS[i], minlength=CLASSES) / SIZES[i] for i in cohort])
        self.model = [np.average(it, axis=0, weights=p) for it in zip(*models, strict=True)]
        self.labels = p @ pi
        heads, shares = [self.model[1:]], np.ones((1, CLASSES))
        if self.ensemble == "losses":
            heads = [model[1:] for model in models]
            shares = p[:, np.newaxis] * pi / np.where(self.labels > 0, self.labels, 1)
        seed = client_seed(run_seed(SEED, 0), tf.constant(round_num), tf.constant(-1))
        seeds = (tf.random.experimental.stateless_fold_in(seed, index) for index in range(STEPS))
        return np.mean([self.step(heads, shares, own) for own in seeds])


@pytest.mark.thorough_but_one
@pytest.mark.parametrize(
    ("ensemble", "weighting"),
    [("logits", "num_examples"), ("losses", "num_examples"), ("losses", "uniform")],
)
def test_rounds_agree_with_numpy(ensemble, weighting):
    model = linear_network(IN, has_bias=True)
    local = LocalTraining(
        tff.learning.optimizers.build_sgdm(RATE, MOMENTUM), epochs=EPOCHS, batch_size=BATCH
    )
    options = {"ensemble": ensemble, "weighting": weighting}
    process = eager("fedgen", model, local, seed=SEED, weight=WEIGHT, **options, **GENERATOR)
    clients = clients_with(process, XS, YS)
    first = process.initialize().algorithm
    expected = Federation(first.weights, first.generator, **options)
    for round_num, it in enumerate(each_round(process, clients, COHORTS)):
        loss = expected.next(it.cohort, round_num)
        server = it.state.algorithm
        assert_close(server.weights, expected.model)
        assert_close(server.labels, expected.labels)
        assert_close(it.metrics["train"]["server"]["generator_loss"], loss)
        assert_close(server.generator, expected.generator)
