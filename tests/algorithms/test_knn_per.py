"""Tests kNN-Per: its rounds are FedAvg's, and its predictions those of NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.rounds import linear_network
from tests.federation import assert_close, eager, local_sgd, make_client, trained
from tff_pfl.algorithms import make
from tff_pfl.local import Examples

IN, CLASSES, PADDING = 3, 3, 4
SIZES = (9, 3, 0)  # the second client has fewer examples than neighbours are asked for
RNG = np.random.default_rng(0)
XS = [RNG.normal(i, 1, size=(n, IN)).astype(np.float32) for i, n in enumerate(SIZES)]
YS = [RNG.choice(CLASSES, n).astype(np.int32) for n in SIZES]
NEW = RNG.normal(size=(7, IN)).astype(np.float32)


def test_rounds_are_those_of_fedavg():
    found, expected = trained("knn_per"), trained("fedavg")
    assert_close(found.shared, expected.shared, 0)


def padded(i):
    """Returns a client's examples, with padding that must not count."""
    x = np.concatenate([XS[i], np.full([PADDING, IN], np.nan, np.float32)])
    y = np.concatenate([YS[i], np.zeros(PADDING, np.int32)])
    return Examples(x, y, np.int32(SIZES[i]))


def evaluated(**options):
    """Returns the evaluated model, and the weights of each client and of the global model."""
    algorithm = make("knn_per", linear_network(IN, has_bias=True), local_sgd(), **options)
    process = eager("knn_per", linear_network(IN, has_bias=True), local_sgd(), **options)
    state = process.initialize()
    clients = [make_client(process, i, padded(i)) for i in range(len(SIZES))]
    return algorithm.evaluated_model, process.personalize(state, clients), state.algorithm.weights


def softmax(logits):
    p = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True)


def mixed(weights, i, share, k, nearness):
    """Returns the probabilities of the classes for the new inputs."""
    body, bias, kernel = (np.float64(leaf) for leaf in tf.nest.flatten(weights))
    by_model = softmax(NEW @ body @ kernel + bias)
    if not SIZES[i]:
        return by_model
    distances = np.linalg.norm((NEW @ body)[:, np.newaxis] - XS[i] @ body, axis=2)
    votes = np.zeros_like(by_model)
    for row, order in enumerate(np.argsort(distances, axis=1)):
        for j in order[:k]:
            votes[row, YS[i][j]] += nearness(distances[row, j])
    return share * votes / votes.sum(axis=1, keepdims=True) + (1 - share) * by_model


@pytest.mark.thorough_but_one
@pytest.mark.parametrize(
    ("options", "share", "k", "nearness"),
    [
        ({}, 0.5, 10, lambda d: np.exp(-d)),
        ({"share": 0.8, "num_neighbors": 4, "scale": 0.3}, 0.8, 4, lambda d: np.exp(-d / 0.3)),
        ({"distance": "squared", "num_neighbors": 2}, 0.5, 2, lambda d: np.exp(-(d**2) / 2)),
    ],
)
def test_predictions_agree_with_numpy(options, share, k, nearness):
    model, of_clients, shared = evaluated(**options)
    for i, weights in enumerate(of_clients):
        found = softmax(np.float64(model.apply(weights, NEW)))
        assert_close(found, mixed(shared, i, share, k, nearness), 1e-4)


def test_without_a_share_predictions_are_those_of_the_global_model():
    model, of_clients, shared = evaluated(share=0.0)
    expected = linear_network(IN, has_bias=True).apply(shared, NEW)
    for weights in of_clients:
        assert_close(model.apply(weights, NEW), tf.nn.log_softmax(expected), 1e-5)


def test_memory_has_a_draw_of_the_examples_that_do_not_fit():
    drawn = []
    for seed in range(2):
        process = eager(
            "knn_per", linear_network(IN, has_bias=True), local_sgd(), seed=seed, capacity=4
        )
        (weights,) = process.personalize(process.initialize(), [make_client(process, 0, padded(0))])
        memory, body = weights["neighbors"], weights["body"]["kernel"]
        rows = [
            int(np.argmin(np.linalg.norm(XS[0] @ body - features, axis=1)))
            for features in np.asarray(memory["features"])
        ]
        assert len(set(rows)) == 4
        np.testing.assert_array_equal(np.argmax(memory["votes"], axis=1), YS[0][rows])
        drawn.append(set(rows))
    assert drawn[0] != drawn[1]
