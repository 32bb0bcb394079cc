"""Tests FedDBE: its limit FedAvg, and its rounds against NumPy."""

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
    local_sgd,
    random_examples,
    tiny_model,
    trained,
)
from tff_pfl.algorithms import make
from tff_pfl.local import ClientContext, LocalTraining

IN, DIM, CLASSES, SEED = 3, 2, 3, 2
RATE, MOMENTUM, EPOCHS, BATCH, KAPPA = 0.05, 0.6, 2, 4, 0.8
BATCHES = {"epochs": EPOCHS, "batch_size": BATCH, "seed": SEED}
SIZES = (5, 7, 4, 0)  # with partial batches, and a client without examples
COHORTS = ((0, 1), (0, 2, 3), (1, 2))
XS, YS = drawn(SIZES, IN, CLASSES)


def test_without_pull_and_bias_it_is_fedavg():
    found, expected = trained("feddbe", kappa=0.0, bias=False), trained("fedavg")
    assert_equal(found.shared, expected.shared)
    assert_equal(found.personal, expected.personal)


def test_first_round_is_fedavgs():
    first = ((0, 1, 2),)
    found = trained("feddbe", cohorts=first)
    assert_equal(found.shared, trained("fedavg", cohorts=first).shared)
    assert_equal(found.client_states, [(np.zeros(5), ())] * 3)


def test_means_are_sent_until_the_common_one_is_known():
    algorithm = make("feddbe", tiny_model(), local_sgd())
    (exchange,) = algorithm.exchanges
    server, state = algorithm.server_init(0), algorithm.client_init(0, 0)
    context = ClientContext(tf.constant(3), tf.constant(0), tf.constant([1, 2]))
    for known in (0.0, 1.0):
        mean = server.mean._replace(known=tf.constant(known))
        message = exchange.distribute(server._replace(mean=mean))
        upload = exchange.client_work(message, state, random_examples(5), context).upload
        assert np.any(upload.mean) == (known == 0.0)


def test_last_layer_needs_a_bias():
    with pytest.raises(ValueError, match="^feddbe adds to the bias .* 'linear' has no bias"):
        make("feddbe", linear_network(IN, has_bias=False), local_sgd())


class Federation:
    """FedDBE in NumPy, on a linear body and a head with a bias."""

    def __init__(self, weights, momentum=1.0, bias=True, weighting="num_examples"):
        self.model = [np.float64(leaf) for leaf in tf.nest.flatten(weights)]
        self.biases = [np.zeros(DIM)] * len(SIZES)
        self.mean, self.known = np.zeros(DIM), 0.0
        self.momentum, self.bias, self.weighting = momentum, bias, weighting

    def train(self, i, round_num):
        parts, velocity, running = [*self.model, self.biases[i]], [0.0] * 4, np.zeros(DIM)
        for rows in batches_of(SIZES[i], i, round_num, **BATCHES):
            body, head_bias, kernel, bias = parts
            x, y = XS[i][rows], YS[i][rows]
            features = x @ body
            _, error = cross_entropy((features + bias) @ kernel + head_bias, y)
            running = (1 - self.momentum) * running + self.momentum * np.mean(features, axis=0)
            pull = KAPPA * self.known * 2 / DIM * (running - self.mean) * self.momentum / len(y)
            own = np.sum(error @ kernel.T, axis=0) * self.known * self.bias
            gradient = [
                x.T @ (error @ kernel.T + pull),
                np.sum(error, axis=0),
                (features + bias).T @ error,
                own,
            ]
            velocity = [MOMENTUM * v + g for v, g in zip(velocity, gradient, strict=True)]
            parts = [w - RATE * v for w, v in zip(parts, velocity, strict=True)]
        return parts

    def next(self, cohort, round_num):
        cohort = [i for i in cohort if SIZES[i]]
        p = [1 if self.weighting == "uniform" else SIZES[i] for i in cohort]
        new = {i: self.train(i, round_num) for i in cohort}
        for i, parts in new.items():
            self.biases[i] = parts.pop()
        if not self.known:
            means = [np.mean(XS[i] @ model[0], axis=0) for i, model in new.items()]
            self.mean, self.known = np.average(means, axis=0, weights=p), 1.0
        self.model = [np.average(it, axis=0, weights=p) for it in zip(*new.values(), strict=True)]

    def personal(self, i):
        body, head_bias, kernel = self.model
        return [body, head_bias + self.biases[i] @ kernel, kernel]


@pytest.mark.thorough_but_one
@pytest.mark.parametrize(
    "options",
    [{"momentum": 0.4}, {}, {"momentum": 0.4, "bias": False, "weighting": "uniform"}],
    ids=["momentum", "defaults", "without bias"],
)
def test_rounds_agree_with_numpy(options):
    model = linear_network(IN, has_bias=True)
    local = LocalTraining(
        tff.learning.optimizers.build_sgdm(RATE, MOMENTUM), epochs=EPOCHS, batch_size=BATCH
    )
    process = eager("feddbe", model, local, seed=SEED, kappa=KAPPA, **options)
    clients = clients_with(process, XS, YS)
    expected = Federation(model.init(SEED), **options)
    for round_num, it in enumerate(each_round(process, clients, COHORTS)):
        expected.next(it.cohort, round_num)
        server = it.state.algorithm
        assert_close(server.weights, expected.model)
        assert_close(server.mean, [expected.mean, expected.known])
        assert_close([client.state.bias for client in it.clients], expected.biases)
        personal = [expected.personal(i) for i in range(len(SIZES))]
        assert_close(process.personalize(it.state, it.clients), personal)
