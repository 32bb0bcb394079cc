"""Tests FedGH: its limit Local, its rounds against NumPy, and the server's head."""

import dataclasses

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
from tests.federation import (
    assert_close,
    assert_equal,
    eager,
    tiny_model,
    trained,
)
from tff_pfl.algorithms.fedgh import examples_of, head_model
from tff_pfl.algorithms.fedproto import ClassSums
from tff_pfl.local import Batch, LocalTraining
from tff_pfl.models import layer_parts

IN, DIM, CLASSES, SEED = 3, 2, 3, 2
RATE, MOMENTUM, EPOCHS, BATCH = 0.2, 0.6, 2, 4
BATCHES = {"epochs": EPOCHS, "batch_size": BATCH, "seed": SEED}
SIZES = (5, 7, 4, 0)  # with partial batches, and a client without examples
CHOICES = ([0, 2], [0, 1, 2], [1], [0])
COHORTS = ((0, 1), (2, 0, 3), (1, 2))
XS, YS = drawn(SIZES, IN, CHOICES)


@pytest.mark.thorough_but_one
@pytest.mark.parametrize("personalized", ["local", "global"])
def test_without_server_epochs_it_is_local(personalized):
    found, expected = trained("fedgh", server_epochs=0, personalized=personalized), trained("local")
    assert_equal(found.client_states, expected.client_states)
    assert_equal(found.personal, expected.personal)


class Federation:
    """FedGH in NumPy, on a linear body and a head with a bias."""

    def __init__(self, weights, rate, epochs, batch_size):
        start = [np.float64(leaf) for leaf in tf.nest.flatten(weights)]
        self.models = [start] * len(SIZES)
        self.header, self.is_trained = start[1:], False
        self.rate, self.epochs, self.batch_size = rate, epochs, batch_size

    def start(self, i):
        return [self.models[i][0], *self.header] if self.is_trained else self.models[i]

    def train(self, i, round_num):
        model, velocity = self.start(i), [0.0] * 3
        for rows in batches_of(SIZES[i], i, round_num, **BATCHES):
            body, bias, kernel = model
            x, y = XS[i][rows], YS[i][rows]
            _, error = cross_entropy(x @ body @ kernel + bias, y)
            gradient = [x.T @ error @ kernel.T, np.sum(error, axis=0), (x @ body).T @ error]
            velocity = [MOMENTUM * v + g for v, g in zip(velocity, gradient, strict=True)]
            model = [w - RATE * v for w, v in zip(model, velocity, strict=True)]
        return model

    def train_header(self, pairs):
        bias, kernel = self.header
        for first in [*range(0, len(pairs), self.batch_size)] * self.epochs:
            features, y = map(np.array, zip(*pairs[first : first + self.batch_size], strict=True))
            _, error = cross_entropy(features @ kernel + bias, y)
            bias = bias - self.rate * np.sum(error, axis=0)
            kernel = kernel - self.rate * features.T @ error
        self.header, self.is_trained = [bias, kernel], True

    def next(self, cohort, round_num):
        for i in cohort:
            self.models[i] = self.train(i, round_num) if SIZES[i] else self.models[i]
        self.train_header(
            [
                (np.mean(XS[i][YS[i] == y] @ self.models[i][0], axis=0), y)
                for i in sorted(cohort)
                for y in np.unique(YS[i])
            ]
        )


@pytest.mark.thorough_but_one
@pytest.mark.parametrize(
    ("rate", "epochs", "batch_size", "personalized"), [(0.01, 1, 1, "local"), (0.5, 2, 2, "global")]
)
def test_rounds_agree_with_numpy(rate, epochs, batch_size, personalized):
    model = linear_network(IN, has_bias=True)
    local = LocalTraining(
        tff.learning.optimizers.build_sgdm(RATE, MOMENTUM), epochs=EPOCHS, batch_size=BATCH
    )
    options = {
        "server_learning_rate": rate,
        "server_epochs": epochs,
        "server_batch_size": batch_size,
        "personalized": personalized,
    }
    process = eager("fedgh", model, local, seed=SEED, **(options if epochs > 1 else {}))
    clients = clients_with(process, XS, YS)
    expected = Federation(model.init(SEED), rate, epochs, batch_size)
    for round_num, (cohort, state, now, _) in enumerate(each_round(process, clients, COHORTS)):
        expected.next(cohort, round_num)
        assert_close(state.algorithm.weights, expected.header)
        assert_close([client.state.model for client in now], expected.models)
    own = [expected.start(i) if personalized == "global" else expected.models[i] for i in range(4)]
    assert_close(process.personalize(state, now), own)


def test_classes_that_a_client_does_not_have_are_left_out():
    features = tf.reshape(tf.range(12.0), [2, 3, 2])
    sent = ClassSums(features, tf.constant([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]]))
    found = examples_of(sent)
    assert_equal(found.x, tf.constant([[2.0, 3.0], [4.0, 5.0], [6.0, 7.0]]))
    assert_equal((found.y, found.size), (np.array([1, 2, 0]), 3))
    nothing = examples_of(sent._replace(counts=tf.zeros([2, 3])))
    assert nothing.x.shape == (0, 2)
    assert nothing.size == 0


def test_head_has_its_penalty():
    model = tiny_model()
    parts = layer_parts(model)

    def penalty(weights):
        return sum(tf.reduce_sum(leaf**2) for leaf in tf.nest.flatten(weights))

    penalized = dataclasses.replace(model, penalty=penalty)
    weights = parts.split(model.init(0))[1]
    batch = Batch(tf.ones([2, 5]), tf.constant([0, 1]), tf.ones([2]), tf.zeros([2], tf.int32))
    plain, found = (head_model(it, parts).gradient(weights, batch)[0] for it in (model, penalized))
    kernel = weights["head"]["kernel"]
    assert_close(found["head"]["kernel"] - plain["head"]["kernel"], 2 * kernel)
