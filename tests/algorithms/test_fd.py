"""Tests FD: its limit Local, its rounds against NumPy, and the teachers of a client."""

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
from tests.federation import COHORTS, assert_close, assert_equal, eager, trained
from tff_pfl.algorithms.fd import (
    ClassOutputs,
    Ensemble,
    OwnOutputs,
    mean_of_others,
    with_outputs,
)
from tff_pfl.local import LocalTraining

IN, CLASSES, SEED = 3, 3, 2
RATE, MOMENTUM, EPOCHS, BATCH = 0.2, 0.6, 2, 4
BATCHES = {"epochs": EPOCHS, "batch_size": BATCH, "seed": SEED}
SIZES = (5, 7, 4, 0)  # with partial batches, and a client without examples
# In the second round only one class is there; those of the first round stay for the third.
CHOICES = ([0, 2], [0, 1, 2], [1], [0])
ROUNDS = ((0, 1), (2, 3), (1, 2), (2, 1, 0))
XS, YS = drawn(SIZES, IN, CHOICES)


def models_of(client_states):
    return [state.model for state in client_states]


@pytest.mark.parametrize(
    ("gamma", "cohorts"), [(0.0, COHORTS), (1.0, ((0,), (0,), (0,)))], ids=["no_pull", "alone"]
)
def test_without_a_pull_or_others_it_is_local(gamma, cohorts):
    found, expected = (
        trained("fd", gamma=gamma, cohorts=cohorts),
        trained("local", cohorts=cohorts),
    )
    assert_equal(models_of(found.client_states), models_of(expected.client_states))
    assert_equal(found.personal, expected.personal)


def softmax(logits):
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


class Federation:
    """FD in NumPy, on a linear body and a head with a bias.

    It keeps what each client uploaded, and in which round; a teacher is a mean of uploads.
    """

    def __init__(self, weights, gamma):
        self.models = [[np.float64(leaf) for leaf in tf.nest.flatten(weights)]] * len(SIZES)
        self.gamma = gamma
        self.uploads = [{} for _ in range(CLASSES)]  # of the last cohort that had the class

    def teacher(self, i):
        """Returns the means of the others' uploads, and 0 for a class without any."""
        means = np.zeros((CLASSES, CLASSES))
        for label, uploads in enumerate(self.uploads):
            if others := [mean for j, mean in uploads.items() if j != i]:
                means[label] = np.mean(others, axis=0)
        return means

    def train(self, i, round_num):
        teacher = self.teacher(i)
        model, velocity, seen = self.models[i], [0.0] * 3, []
        for rows in batches_of(SIZES[i], i, round_num, **BATCHES):
            bias, kernel, body = model[1], model[2], model[0]
            x, y = XS[i][rows], YS[i][rows]
            logits = x @ body @ kernel + bias
            p, q = softmax(logits), teacher[y]
            seen += list(zip(y, p, strict=True))
            _, error = cross_entropy(logits, y)
            error = error + self.gamma * (p * q.sum(axis=1, keepdims=True) - q) / len(y)
            gradient = [x.T @ error @ kernel.T, np.sum(error, axis=0), (x @ body).T @ error]
            velocity = [MOMENTUM * v + g for v, g in zip(velocity, gradient, strict=True)]
            model = [w - RATE * v for w, v in zip(model, velocity, strict=True)]
        return model, {
            label: np.mean([p for y, p in seen if y == label], axis=0) for label, _ in seen
        }

    def next(self, cohort, round_num):
        results = {i: self.train(i, round_num) for i in cohort}
        for label in range(CLASSES):
            new = {i: means[label] for i, (_, means) in results.items() if label in means}
            self.uploads[label] = new or self.uploads[label]
        for i, (model, _) in results.items():
            self.models[i] = model


@pytest.mark.thorough_but_one
@pytest.mark.parametrize("gamma", [1.0, 2.5])
def test_rounds_agree_with_numpy(gamma):
    model = dataclasses.replace(linear_network(IN, has_bias=True), num_classes=CLASSES)
    local = LocalTraining(
        tff.learning.optimizers.build_sgdm(RATE, MOMENTUM), epochs=EPOCHS, batch_size=BATCH
    )
    options = {} if gamma == 1.0 else {"gamma": gamma}  # the default
    process = eager("fd", model, local, seed=SEED, **options)
    clients = clients_with(process, XS, YS)
    expected = Federation(model.init(SEED), gamma)
    rounds = each_round(process, clients, ROUNDS)
    for round_num, (cohort, state, now, _) in enumerate(rounds):
        expected.next(cohort, round_num)
        sums, counts = state.algorithm.outputs
        assert_close(list(sums), [sum(it.values(), np.zeros(CLASSES)) for it in expected.uploads])
        assert_equal(list(counts), list(map(len, expected.uploads)))
        assert_close(models_of(client.state for client in now), expected.models)
    assert_close(process.personalize(state, now), expected.models)


def test_class_of_a_single_client_has_no_teacher_for_it():
    """The number of clients of a class is not exact where the server gets means."""
    means = tf.constant([[0.3, 0.7], [0.1, 0.9]])
    own = OwnOutputs((), (), ClassOutputs(means, tf.constant([1.0, 1.0])), tf.constant(4))
    empty = Ensemble(ClassOutputs(tf.zeros([2, 2]), tf.zeros([2])), tf.constant([-1, -1]))
    received = ClassOutputs(means * [[1.0], [3.0]] + 1e-7, tf.constant([1.0, 3.0]) + 1e-6)
    ensemble = with_outputs(empty, received, tf.constant(4))
    assert_close(mean_of_others(ensemble, own), tf.constant([[0.0, 0.0], [0.1, 0.9]]))
    absent = own._replace(round_num=tf.constant(3))
    assert_close(mean_of_others(ensemble, absent), means)
