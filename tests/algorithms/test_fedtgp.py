"""Tests FedTGP: its limit Local, its rounds against NumPy, and its margins."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.algorithms import test_fedproto as fedproto
from tests.algorithms.rounds import batches_of, cross_entropy, each_round, linear_network
from tests.federation import assert_close, assert_equal, eager, make_client, trained
from tff_pfl.algorithms.fedproto import Prototypes
from tff_pfl.algorithms.fedtgp import distance_of_classes
from tff_pfl.local import LocalTraining

CLASSES, SEED, COHORTS = fedproto.CLASSES, fedproto.SEED, fedproto.COHORTS
SERVER = {"server_epochs": 3, "server_batch_size": 2, "server_learning_rate": 0.3}


def test_without_lambda_and_prototypes_it_is_local():
    found = trained("fedtgp", lambda_=0.0, predict="head", server_epochs=1)
    expected = trained("local")
    assert_equal(found.client_states, expected.client_states)
    assert_equal(found.personal, expected.personal)


def process_of(**options):
    local = LocalTraining(
        tff.learning.optimizers.build_sgdm(fedproto.RATE, fedproto.MOMENTUM),
        epochs=fedproto.EPOCHS,
        batch_size=fedproto.BATCH,
    )
    model = linear_network(fedproto.IN, has_bias=True)
    process = eager("fedtgp", model, local, seed=SEED, lambda_=fedproto.LAMBDA, **options)
    clients = [make_client(process, i, fedproto.examples_of(i)) for i in range(len(fedproto.SIZES))]
    return process, clients, model.init(SEED)


class Federation(fedproto.Federation):
    """FedTGP in NumPy; its clients are those of FedProto."""

    def __init__(self, weights, network, margin, threshold):
        super().__init__(weights, weighting=None)
        self.network = [np.float64(leaf) for leaf in tf.nest.flatten(network)]
        self.margin, self.threshold = margin, threshold

    def prototypes(self):
        hidden_bias, hidden, last_bias, last, vectors = self.network
        return np.maximum(vectors @ hidden + hidden_bias, 0) @ last + last_bias

    def step(self, means, labels, delta):
        hidden_bias, hidden, _, last, vectors = self.network
        inner = vectors @ hidden + hidden_bias
        apart = self.prototypes() - means[:, np.newaxis]
        distance = np.linalg.norm(apart, axis=-1)
        _, slope = cross_entropy(-distance - delta * np.eye(CLASSES)[labels], labels)
        upper = np.einsum("nc,ncd->cd", -slope / distance, apart)
        lower = (upper @ last.T) * (inner > 0)
        gradient = [
            *(lower.sum(axis=0), vectors.T @ lower),
            *(upper.sum(axis=0), np.maximum(inner, 0).T @ upper),
            lower @ hidden.T,
        ]
        rate = SERVER["server_learning_rate"]
        self.network = [w - rate * g for w, g in zip(self.network, gradient, strict=True)]

    def delta(self, means, labels):
        centres = np.array([means[labels == y].mean(axis=0) for y in np.unique(labels)])
        apart = np.linalg.norm(centres[:, np.newaxis] - centres, axis=-1)
        if self.margin == "nearest":
            apart = np.min(apart + np.diag(np.full(len(centres), np.inf)), axis=1)
        return min(np.max(apart), self.threshold)

    def next(self, cohort, round_num):
        means, labels = [], []
        for i in sorted(cohort):
            self.models[i] = self.train(i, round_num)
            features = fedproto.XS[i] @ self.models[i][0]
            for y in np.unique(fedproto.YS[i]):
                means.append(features[fedproto.YS[i] == y].mean(axis=0))
                labels.append(y)
        means, labels = np.array(means), np.array(labels)
        delta = self.delta(means, labels)
        order = {"epochs": SERVER["server_epochs"], "batch_size": SERVER["server_batch_size"]}
        for rows in batches_of(len(means), -1, round_num, **order, seed=SEED):
            self.step(means[rows], labels[rows], delta)
        self.known = np.maximum(self.known, np.isin(range(CLASSES), labels))
        self.values = self.known[:, np.newaxis] * self.prototypes()
        return delta


@pytest.mark.thorough_but_one
@pytest.mark.parametrize(
    ("margin", "threshold"), [("farthest", 100.0), ("nearest", 100.0), ("farthest", 0.5)]
)
def test_rounds_agree_with_numpy(margin, threshold):
    options = {"margin": margin, "threshold": threshold}
    process, clients, weights = process_of(**SERVER, **options)
    network = process.initialize().algorithm.network
    expected = Federation(weights, network, **options)
    for round_num, it in enumerate(each_round(process, clients, COHORTS)):
        delta = expected.next(it.cohort, round_num)
        assert_close(it.metrics["train"]["server"]["margin"], delta)
        assert_close([client.state.model for client in it.clients], expected.models)
        assert_close(it.state.algorithm.network, expected.network)
    (mine, *_) = process.personalize(it.state, it.clients)
    assert_close(mine["prototypes"]["values"], expected.values)


@pytest.mark.thorough
def test_class_has_a_prototype_as_soon_as_a_client_sent_a_mean():
    process, clients, _ = process_of(server_epochs=1)
    one_class, others = each_round(process, clients, [(2,), (0, 1)])
    assert one_class.metrics["train"]["server"]["margin"] == 0.0
    (mine,) = process.personalize(one_class.state, clients[:1])
    np.testing.assert_array_equal(mine["prototypes"]["known"], [0.0, 1.0, 0.0])
    assert np.all(np.any(mine["prototypes"]["values"], axis=1) == [False, True, False])
    np.testing.assert_array_equal(others.state.algorithm.known, np.ones(CLASSES))


def test_without_epochs_the_network_stays():
    process, clients, _ = process_of(server_epochs=0)
    (first,) = each_round(process, clients, [(0, 1)])
    assert_equal(first.state.algorithm.network, process.initialize().algorithm.network)


def test_distances_of_classes():
    values = tf.constant([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0], [90.0, 90.0]])
    centres = Prototypes(values, tf.constant([1.0, 1.0, 1.0, 0.0]))
    assert_close(distance_of_classes(centres, "farthest"), 5.0)
    assert_close(distance_of_classes(centres, "nearest"), np.sqrt(18.0))
    one = Prototypes(values, tf.constant([0.0, 1.0, 0.0, 0.0]))
    for margin in ("farthest", "nearest"):
        assert distance_of_classes(one, margin) == 0.0
