"""Tests of `tff_pfl.algorithms.pfedhn.server` against explicit Jacobians in NumPy."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.federation import assert_close, assert_equal
from tests.marks import slow
from tests.quadratics import quadratic_model, weights_of
from tff_pfl.aggregators import Stack
from tff_pfl.algorithms.pfedhn.server import HypernetworkServer, OwnChange
from tff_pfl.local import trees
from tff_pfl.models import Hypernetwork

DIMS, SIZE, N = (2, 1), 3, 4
RATE, EMBEDDING_RATE = 0.3, 0.2
LINEAR = Hypernetwork(quadratic_model(*DIMS), 3, hidden=(), bias=False)
MLP = Hypernetwork(quadratic_model(*DIMS), 2, hidden=(5, 4))
# Client 3 never takes part.
COHORTS = ((2, 0), (1,), (2, 1, 0))


def server_of(
    hypernetwork, momentum=None, embedding_learning_rate=EMBEDDING_RATE, **options
) -> HypernetworkServer:
    optimizer = tff.learning.optimizers.build_sgdm(RATE, momentum)
    return HypernetworkServer(hypernetwork, optimizer, embedding_learning_rate, **options)


def start(server):
    """Returns the initial state, with random weights and biases."""
    rng = np.random.default_rng(1)
    embeddings = rng.normal(size=(N, server.hypernetwork.embedding_dim))
    state = server.init(tf.constant(embeddings, tf.float32), seed=1)
    phi = tf.nest.map_structure(
        lambda w: tf.constant(rng.normal(size=w.shape), tf.float32), state.phi
    )
    return state._replace(phi=phi)


def change_of(client_id, round_num=0):
    """Draws the change of a client's weights as a vector."""
    return np.random.default_rng([client_id, round_num]).normal(size=SIZE).astype(np.float32)


def uploads_of(cohort, round_num=0):
    changes = [weights_of(change_of(i, round_num), *DIMS) for i in cohort]
    stacked = tf.nest.map_structure(lambda *rows: tf.stack(rows), *changes)
    return Stack(OwnChange(tf.constant(cohort, tf.int32), stacked), tf.ones([len(cohort)]))


def finalize(server, state, cohort, round_num=0):
    return server.finalize(state, uploads_of(cohort, round_num), tf.constant(round_num))


class NumPyServer:
    """A server with explicit Jacobians and `phi` as one vector."""

    def __init__(
        self,
        hypernetwork,
        state,
        momentum=0.0,
        embedding_learning_rate=EMBEDDING_RATE,
        weight_decay=0.0,
        clip_norm=np.inf,
        rho=0.0,
        layer_wise=False,
        embedding_momentum=0.0,
        clip_jointly=False,
    ):
        self.jacobians = linear_jacobians if hypernetwork is LINEAR else mlp_jacobians
        self.phi = np.float64(trees.to_vector(state.phi))
        self.embeddings = np.float64(state.embeddings)
        self.velocity = 0.0 * self.phi
        self.momentum, self.embedding_rate = momentum, embedding_learning_rate
        self.weight_decay, self.clip_norm = weight_decay, clip_norm
        self.rho, self.layer_wise = rho, layer_wise
        self.embedding_momentum, self.clip_jointly = embedding_momentum, clip_jointly
        self.velocities = 0.0 * self.embeddings
        layers = enumerate(state.phi.values())
        indices = [
            tf.nest.map_structure(lambda w: tf.fill(w.shape, i), layer)  # noqa: B023
            for i, layer in layers
        ]
        self.layer_of_weight = np.array(trees.to_vector(dict(zip(state.phi, indices, strict=True))))

    def gradients(self, phi, cohort, changes):
        gradient, of_embeddings = 0.0, []
        for i, change in zip(cohort, changes, strict=True):
            by_phi, by_embedding = self.jacobians(phi, self.embeddings[i])
            gradient = gradient - by_phi.T @ change / len(cohort)
            of_embeddings.append(-by_embedding.T @ change)
        return gradient, of_embeddings

    def perturbation(self, gradient):
        xi = np.ones(self.layer_of_weight.max() + 1)
        if self.layer_wise:
            parts = [gradient[self.layer_of_weight == layer] for layer in range(len(xi))]
            r = np.array([np.linalg.norm(part) / len(part) for part in parts])
            xi = r / r.sum()
        return self.rho * xi[self.layer_of_weight] * gradient / np.linalg.norm(gradient)

    def clip(self, gradient):
        return gradient * min(1.0, self.clip_norm / np.linalg.norm(gradient))

    def next(self, cohort, round_num):
        """Runs a round; returns the norms of both gradients."""
        changes = [np.float64(change_of(i, round_num)) for i in cohort]
        first, _ = self.gradients(self.phi, cohort, changes)
        perturbed = self.phi + self.perturbation(first)
        gradient, of_embeddings = self.gradients(perturbed, cohort, changes)
        norm = np.linalg.norm(gradient)
        if self.clip_jointly:
            everything = self.clip(np.concatenate([gradient, *of_embeddings]))
            gradient, of_embeddings = np.split(everything, [len(gradient)])
            of_embeddings = of_embeddings.reshape(len(cohort), -1)
        else:
            gradient, of_embeddings = self.clip(gradient), list(map(self.clip, of_embeddings))
        step = gradient + self.weight_decay * self.phi
        self.velocity = self.momentum * self.velocity + step
        self.phi = self.phi - RATE * self.velocity
        gradients = dict(zip(cohort, of_embeddings, strict=True))
        for i in range(N) if self.embedding_momentum else cohort:
            step = gradients.get(i, 0.0) + self.weight_decay * self.embeddings[i]
            self.velocities[i] = self.embedding_momentum * self.velocities[i] + step
            self.embeddings[i] -= self.embedding_rate * self.velocities[i]
        return np.linalg.norm(first), norm


def linear_jacobians(phi, v):
    """Computes the Jacobians of `h = (v K0, v K1)`, `K0` 3x2 and `K1` 3x1, by phi and by v."""
    by_phi = np.zeros([SIZE, 9])
    by_phi[:2, :6] = np.kron(v, np.eye(2))
    by_phi[2:, 6:] = v
    return by_phi, np.hstack([phi[:6].reshape(3, 2), phi[6:].reshape(3, 1)]).T


def mlp_jacobians(phi, v):
    phi, v = tf.constant(phi, tf.float32), tf.constant(v, tf.float32)
    return [np.float64(jacobian) for jacobian in traced_mlp_jacobians(phi, v)]


@tf.function
def traced_mlp_jacobians(phi, v):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch((phi, v))
        weights = trees.from_vector(phi, MLP.init(0))
        h = trees.to_vector(MLP.generate(weights, v[tf.newaxis]))
    return [tape.jacobian(h, x, experimental_use_pfor=False) for x in (phi, v)]


@pytest.mark.thorough_but_one
@pytest.mark.parametrize("hypernetwork", [slow(LINEAR), MLP], ids=["linear", "mlp"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"rho": 0.6},
        {"embedding_learning_rate": 0.0, "weight_decay": 0.1, "rho": 0.6},
        {"momentum": 0.5, "weight_decay": 0.1, "clip_norm": 0.3, "rho": 0.9, "layer_wise": True},
        {
            "momentum": 0.9,
            "embedding_momentum": 0.9,
            "weight_decay": 0.1,
            "clip_norm": 0.3,
            "clip_jointly": True,
        },
    ],
    ids=str,
)
def test_rounds_agree_with_numpy(hypernetwork, options):
    server = server_of(hypernetwork, **options)
    state = start(server)
    expected = NumPyServer(hypernetwork, state, **options)
    first_embeddings, norms = state.embeddings, []
    for round_num, cohort in enumerate(COHORTS):
        absent = [i for i in range(N) if i not in cohort]
        before = tf.gather(state.embeddings, absent)
        state, metrics = finalize(server, state, cohort, round_num)
        first, second = expected.next(cohort, round_num)
        assert_close(trees.to_vector(state.phi), expected.phi)
        assert_close(state.embeddings, expected.embeddings)
        if "embedding_momentum" not in options:
            assert_equal(tf.gather(state.embeddings, absent), before)
        assert_close(metrics["gradient_norm"], first)
        assert ("perturbed_gradient_norm" in metrics) == ("rho" in options)
        if "rho" in options:
            assert_close(metrics["perturbed_gradient_norm"], second)
        norms.append(second)
    if "clip_norm" in options:
        assert min(norms) > options["clip_norm"]
    if "embedding_learning_rate" in options:
        assert_equal(state.embeddings, first_embeddings)


def test_rejected_clients_do_not_count():
    """Uploads of rejected clients are 0, ids included; client 0 does not take part here."""
    server = server_of(MLP, momentum=0.9, weight_decay=0.1, rho=0.3)
    state = start(server)
    expected = finalize(server, state, (1, 2))
    value = tf.nest.map_structure(
        lambda leaf: tf.stack([tf.zeros_like(leaf[0]), leaf[0], leaf[1]]), uploads_of((1, 2)).value
    )
    uploads = Stack(value, tf.constant([0.0, 1.0, 1.0]))
    found = server.finalize(state, uploads, tf.constant(0))
    assert_equal(found, expected)
    assert_equal(found[0].embeddings[0], state.embeddings[0])


@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_uploads_of_zero_move_nothing(rho):
    server = server_of(MLP, momentum=0.9, clip_norm=1.0, rho=rho, layer_wise=True)
    state, uploads = start(server), uploads_of((1, 2))
    change = tf.nest.map_structure(tf.zeros_like, uploads.value.change)
    uploads = uploads._replace(value=uploads.value._replace(change=change))
    found, metrics = server.finalize(state, uploads, tf.constant(0))
    assert_equal([found.phi, found.embeddings], [state.phi, state.embeddings])
    assert metrics["gradient_norm"] == 0
