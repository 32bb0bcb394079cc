"""Tests FedProto: its limit Local, its rounds against NumPy, and its predictions."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.algorithms.rounds import batches_of, cross_entropy, drawn, each_round, linear_network
from tests.federation import assert_close, assert_equal, eager, make_client, trained
from tff_pfl.algorithms.fedproto import nearest
from tff_pfl.local import Examples, LocalTraining

IN, DIM, CLASSES, SEED = 3, 2, 3, 2
RATE, MOMENTUM, EPOCHS, BATCH, LAMBDA = 0.05, 0.6, 2, 4, 1.5
BATCHES = {"epochs": EPOCHS, "batch_size": BATCH, "seed": SEED}
SIZES = (5, 7, 4, 0)  # with partial batches, and a client without examples
# In the second round no client has the third class, whose prototype stays for the third round.
CHOICES = ([0, 1], [0, 1, 2], [1], [0])
COHORTS = ((0, 1), (0, 2, 3), (1, 2))
XS, YS = drawn(SIZES, IN, CHOICES)


def test_without_lambda_and_prototypes_it_is_local():
    found, expected = trained("fedproto", lambda_=0.0, predict="head"), trained("local")
    assert_equal(found.client_states, expected.client_states)
    assert_equal(found.personal, expected.personal)


def examples_of(i):
    return Examples(np.float32(XS[i]), np.int32(YS[i]), np.int32(SIZES[i]))


class Federation:
    """FedProto in NumPy, on a linear body and a head with a bias."""

    def __init__(self, weights, weighting):
        self.models = [[np.float64(leaf) for leaf in tf.nest.flatten(weights)]] * len(SIZES)
        self.weighting = weighting
        self.values, self.known = np.zeros((CLASSES, DIM)), np.zeros(CLASSES)

    def train(self, i, round_num):
        model, velocity = self.models[i], [0.0] * 3
        for rows in batches_of(SIZES[i], i, round_num, **BATCHES):
            bias, kernel, body = model[1], model[2], model[0]
            x, y = XS[i][rows], YS[i][rows]
            features = x @ body
            _, error = cross_entropy(features @ kernel + bias, y)
            apart = self.known[y][:, np.newaxis] * (features - self.values[y])
            upstream = error @ kernel.T + 2 * LAMBDA / DIM / len(y) * apart
            gradient = [x.T @ upstream, np.sum(error, axis=0), features.T @ error]
            velocity = [MOMENTUM * v + g for v, g in zip(velocity, gradient, strict=True)]
            model = [w - RATE * v for w, v in zip(model, velocity, strict=True)]
        return model

    def next(self, cohort, round_num):
        sums, counts = np.zeros((CLASSES, DIM)), np.zeros((CLASSES, 1))
        trained = {i: self.train(i, round_num) for i in cohort}
        for i, model in trained.items():
            self.models[i] = model
            of_class = np.eye(CLASSES)[YS[i]]
            own, number = of_class.T @ (XS[i] @ model[0]), np.sum(of_class, axis=0)[:, np.newaxis]
            if self.weighting == "uniform":
                own, number = own / np.maximum(number, 1), np.sign(number)
            sums, counts = sums + own, counts + number
        self.values = np.where(counts > 0, sums / np.maximum(counts, 1), self.values)
        self.known = np.maximum(self.known, counts[:, 0] > 0)


@pytest.mark.thorough_but_one
@pytest.mark.parametrize("weighting", ["num_examples", "uniform"])
def test_rounds_agree_with_numpy(weighting):
    model = linear_network(IN, has_bias=True)
    local = LocalTraining(
        tff.learning.optimizers.build_sgdm(RATE, MOMENTUM), epochs=EPOCHS, batch_size=BATCH
    )
    options = {"lambda_": LAMBDA, "seed": SEED}
    if weighting != "num_examples":
        options["weighting"] = weighting
    process = eager("fedproto", model, local, **options)
    clients = [make_client(process, i, examples_of(i)) for i in range(len(SIZES))]
    expected = Federation(model.init(SEED), weighting)
    rounds = each_round(process, clients, COHORTS)
    for round_num, (cohort, state, now, _) in enumerate(rounds):
        expected.next(cohort, round_num)
        assert_close(state.algorithm.values, expected.values)
        np.testing.assert_array_equal(state.algorithm.known, expected.known)
        assert_close([client.state.model for client in now], expected.models)
    (mine, *_) = process.personalize(state, now)
    assert_close(mine["prototypes"]["values"], expected.values)
    assert np.ptp(expected.values) > 0.1


def test_nearest_prototype_is_predicted():
    model = linear_network(2, has_bias=False)
    body = {"body": {"kernel": tf.eye(2)}, "head": model.init(0)["head"]}
    layer = {"values": tf.constant([[0.0, 0.0], [3.0, 4.0], [9.0, 9.0]])}
    x = tf.constant([[0.0, 1.0], [3.0, 3.0]])
    predicted = nearest(model, CLASSES, DIM)
    known = layer | {"known": tf.constant([1.0, 1.0, 0.0])}
    found = predicted.apply(body | {"prototypes": known}, x)
    assert_close(found, np.array([[-1.0, -18.0, -19.0], [-18.0, -1.0, -19.0]]))
    nothing = layer | {"known": tf.zeros([3])}
    assert_close(predicted.apply(body | {"prototypes": nothing}, x), -np.ones((2, 3)))
    assert predicted.init(0).keys() == {"body", "head", "prototypes"}
