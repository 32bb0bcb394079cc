"""Tests FedPAC: against NumPy on a linear body, and against FedRep."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.federation import (
    assert_close,
    eager,
    leaves,
    local_sgd,
    make_client,
    run_rounds,
    tiny_model,
    trained,
)
from tests.marks import slow
from tff_pfl.algorithms import make
from tff_pfl.local import Examples, LocalTraining
from tff_pfl.models import TASKS, Model, linear

MODEL = tiny_model()


@pytest.mark.parametrize("persist", [slow(False), slow(True)])
def test_without_lambda_and_collaboration_it_equals_fedrep(persist):
    """Tests one head epoch, also with optimizers that persist from round to round."""
    sgd = tff.learning.optimizers.build_sgdm(0.3, momentum=0.9)
    local = LocalTraining(sgd, epochs=2, batch_size=4, persist_optimizer_state=persist)
    _, state, clients = trained("fedpac", local=local, lambda_=0.0, collaborate=False)
    _, expected, expected_clients = trained("fedrep", local=local, head_epochs=1)
    optimizers = [[c.state.optimizer for c in run] for run in (clients, expected_clients)]
    assert_close(*optimizers, tolerance=1e-5)
    assert bool(leaves(optimizers[0])) == persist
    assert_close(state.algorithm.weights, expected.algorithm.weights, tolerance=1e-6)
    heads = [[c.state.head for c in run] for run in (clients, expected_clients)]
    assert_close(*heads, tolerance=1e-6)


IN, DIM, CLASSES = 3, 2, 3
RATE, STEPS, LAMBDA = 0.3, 2, 1.5
# In the second round no client has the third class, whose centre stays for the third round.
LINEAR_COHORTS = ((0, 1), (0, 2), (1, 2))


def linear_model() -> Model:
    """Makes the model `x B K` with a body `B` and a head `K`."""

    def init(seed):
        drawn = tf.random.stateless_normal([IN + CLASSES, DIM], [seed, 0])
        body, head = drawn[:IN], tf.transpose(drawn[IN:])
        layer = lambda kernel: collections.OrderedDict(kernel=kernel)  # noqa: E731
        return collections.OrderedDict(body=layer(body), head=layer(head))

    def features(weights, x, training=False, seed=None):
        return tf.matmul(x, weights["body"]["kernel"])

    def apply(weights, x, training=False, seed=None):
        return linear(weights["head"], features(weights, x))

    return Model(init, apply, TASKS["classification"](), name="linear", features=features)


def drawn_client(i):
    """Draws `x, y` of a client; not all clients have all classes."""
    rng = np.random.default_rng([i, 5])
    size = (5, 7, 4)[i]
    return rng.normal(size=(size, IN)), rng.choice([[0, 1], [0, 1, 2], [1]][i], size)


def errors(x, y, body, head):
    """Computes the gradient of the mean cross-entropy with respect to logits."""
    logits = x @ body @ head
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    return (p / p.sum(axis=1, keepdims=True) - np.eye(CLASSES)[y]) / len(y)


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
        head = self.heads[i] - RATE * features.T @ errors(x, y, body, self.heads[i])
        for _ in range(STEPS):
            apart = self.known[y][:, np.newaxis] * (x @ body - self.centres[y])
            pull = 2 * LAMBDA / DIM / len(y) * x.T @ apart
            body = body - RATE * (x.T @ errors(x, y, body, head) @ head.T + pull)
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
    model = linear_model()
    process = eager(
        "fedpac", model, local_sgd(RATE, STEPS, 16), lambda_=LAMBDA, head_epochs=1, seed=2
    )
    clients = []
    for i in range(3):
        x, y = drawn_client(i)
        examples = Examples(x.astype(np.float32), y.astype(np.int32), np.int32(len(y)))
        clients.append(make_client(process, i, examples))
    start = model.init(2)
    expected = Federation(*(np.asarray(start[n]["kernel"], np.float64) for n in ("body", "head")))
    for cohort, (state, after) in zip(
        LINEAR_COHORTS, run_rounds(process, clients, LINEAR_COHORTS), strict=True
    ):
        expected.next(cohort)
        server = state.algorithm
        np.testing.assert_allclose(
            state.algorithm.weights["body"]["kernel"], expected.body, atol=1e-5
        )
        np.testing.assert_allclose(server.centres.values, expected.centres, atol=1e-5)
        np.testing.assert_array_equal(server.centres.known, expected.known)
        for client, head in zip(after, expected.heads, strict=True):
            np.testing.assert_allclose(client.state.head["head"]["kernel"], head, atol=1e-5)
    assert np.max(np.abs(expected.heads[0] - np.asarray(start["head"]["kernel"]))) > 0.05


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


@pytest.mark.thorough
@pytest.mark.parametrize("rate", [None, 0.0])
def test_heads_use_their_learning_rate(rate):
    """Tests that heads with rate 0 stay; bodies use the rate of the local training."""
    _, state, clients = trained("fedpac", head_learning_rate=rate, collaborate=False)
    heads = [leaves(c.state.head)[0] for c in clients]
    moves = [np.any(head != leaves(MODEL.init(1)["head"])[0]) for head in heads]
    assert moves == [rate is None] * 3
    assert np.any(leaves(state.algorithm.weights)[0] != leaves(MODEL.init(1)["dense1"])[0])
