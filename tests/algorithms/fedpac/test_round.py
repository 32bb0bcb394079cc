"""Tests FedPAC: against NumPy on a linear body, and against FedRep."""

import collections
import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.algorithms.rounds import cross_entropy, each_round, linear_network
from tests.federation import (
    IMAGE_SHAPE,
    NUM_CLASSES,
    assert_close,
    eager,
    leaves,
    local_sgd,
    make_client,
    tiny_model,
    trained,
)
from tff_pfl import models
from tff_pfl.algorithms import make
from tff_pfl.local import Examples, LocalTraining

MODEL = tiny_model()


@functools.cache
def batch_normalized() -> models.Model:
    """Makes a network with batch normalisation below its head."""

    def network():
        return tf.keras.Sequential(
            [
                tf.keras.layers.Flatten(input_shape=IMAGE_SHAPE),
                tf.keras.layers.Dense(4, name="dense"),
                tf.keras.layers.BatchNormalization(momentum=0.7, name="norm"),
                tf.keras.layers.Dense(NUM_CLASSES, name="head"),
            ]
        )

    return models.from_keras(network, input_shape=IMAGE_SHAPE, preprocess=lambda x: x / 255)


@pytest.mark.thorough
@pytest.mark.parametrize("model", [tiny_model, batch_normalized])
def test_without_lambda_and_collaboration_it_equals_fedrep(model):
    """Tests one head epoch, with optimizers that persist from round to round."""
    sgd = tff.learning.optimizers.build_sgdm(0.3, momentum=0.9)
    local = LocalTraining(sgd, epochs=2, batch_size=4, persist_optimizer_state=True)
    found = trained("fedpac", model=model, local=local, lambda_=0.0, collaborate=False)
    expected = trained("fedrep", model=model, local=local, head_epochs=1)
    assert leaves([own.optimizer for own in found.client_states])
    assert_close(found.client_states, expected.client_states)
    assert_close(found.shared, expected.shared, tolerance=1e-6)


IN, DIM, CLASSES = 3, 2, 3
RATE, HEAD_RATE, STEPS, LAMBDA = 0.3, 0.2, 2, 1.5
# In the second round no client has the third class, whose centre stays for the third round.
LINEAR_COHORTS = ((0, 1), (0, 2), (1, 2))


def drawn_client(i):
    """Draws `x, y` of a client; not all clients have all classes."""
    rng = np.random.default_rng([i, 5])
    size = (5, 7, 4)[i]
    return rng.normal(size=(size, IN)), rng.choice([[0, 1], [0, 1, 2], [1]][i], size)


def of_classes(x, y, body):
    return np.eye(CLASSES)[y].T @ (x @ body)


class Federation:
    """FedPAC in NumPy, for cohorts of two clients, whose `alpha` has a closed form."""

    def __init__(self, body, head):
        self.body, self.heads = body, [head] * 3
        self.centres, self.known = np.zeros((CLASSES, DIM)), np.zeros(CLASSES)

    def client(self, i):
        """Returns `(body, head, h, V, sums of classes, counts of classes)`."""
        x, y = drawn_client(i)
        body, features = self.body.copy(), x @ self.body
        h = of_classes(x, y, body) / len(y)
        v = (np.sum(features**2) / len(y) - np.sum(h**2)) / len(y)
        head = (
            self.heads[i] - HEAD_RATE * features.T @ cross_entropy(features @ self.heads[i], y)[1]
        )
        for _ in range(STEPS):
            apart = self.known[y][:, np.newaxis] * (x @ body - self.centres[y])
            pull = 2 * LAMBDA / DIM / len(y) * x.T @ apart
            _, error = cross_entropy(x @ body @ head, y)
            body = body - RATE * (x.T @ error @ head.T + pull)
        return body, head, h, v, of_classes(x, y, body), np.bincount(y, minlength=CLASSES)

    def next(self, cohort):
        bodies, heads, h, v, sums, counts = zip(*map(self.client, cohort), strict=True)
        sizes = [len(drawn_client(i)[1]) for i in cohort]
        self.body = np.average(bodies, axis=0, weights=sizes)
        total = np.sum(counts, axis=0)
        means = np.sum(sums, axis=0) / np.maximum(total, 1)[:, np.newaxis]
        self.centres = np.where(total[:, np.newaxis] > 0, means, self.centres)
        self.known = np.maximum(self.known, total > 0)
        apart = np.sum((h[0] - h[1]) ** 2)
        for own, other, i in ((0, 1, cohort[0]), (1, 0, cohort[1])):
            alpha = (v[other] + apart) / (v[0] + v[1] + apart)
            self.heads[i] = alpha * heads[own] + (1 - alpha) * heads[other]


def test_rounds_agree_with_numpy():
    model, local = linear_network(IN, has_bias=False), local_sgd(RATE, STEPS, 16)
    process = eager("fedpac", model, local, lambda_=LAMBDA, head_learning_rate=HEAD_RATE, seed=2)
    clients = []
    for i in range(3):
        x, y = drawn_client(i)
        examples = Examples(x.astype(np.float32), y.astype(np.int32), np.int32(len(y)))
        clients.append(make_client(process, i, examples))
    start, head = (np.float64(layer["kernel"]) for layer in model.init(2).values())
    expected = Federation(start, head)
    for cohort, state, now, _ in each_round(process, clients, LINEAR_COHORTS):
        expected.next(cohort)
        server = state.algorithm
        assert_close(server.weights["body"]["kernel"], expected.body)
        assert_close(server.centres.values, expected.centres)
        np.testing.assert_array_equal(server.centres.known, expected.known)
        assert_close([client.state.head["head"]["kernel"] for client in now], expected.heads)
    assert np.max(np.abs(expected.heads[0] - head)) > 0.05


def test_heads_of_an_earlier_round_are_ignored():
    process, state, clients = trained("fedpac", cohorts=((0, 1),))
    exchange = make("fedpac", MODEL, local_sgd()).exchanges[1]
    client = clients[0]
    for client_id, round_num, is_taken in ((0, 0, True), (0, 1, False), (2, 0, False)):
        own = exchange.select(state.algorithm, tf.constant(client_id))
        before = client.state._replace(head=MODEL.init(9)["head"])
        before = before._replace(head=collections.OrderedDict(head=before.head))
        context = _Context(tf.constant(round_num))
        after = exchange.client_work(_Message(own), before, client.data, context).state
        expected = client.state.head if is_taken else before.head
        assert_close(leaves(after.head), leaves(expected), tolerance=1e-6)


_Message = collections.namedtuple("_Message", "own")
_Context = collections.namedtuple("_Context", "round_num")
