"""Tests FedRoD: rounds of a linear network against NumPy, both heads, and class priors."""

import collections
import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.federation import (
    COHORTS,
    assert_close,
    assert_equal,
    eager,
    last,
    local_sgd,
    make_client,
    make_clients,
    random_examples,
    run_rounds,
    tiny_model,
)
from tests.marks import slow
from tff_pfl.algorithms.fedrod import PersonalHeads, balanced_model, class_shares
from tff_pfl.local import Batch, Examples, LocalTraining
from tff_pfl.models import TASKS, Model, linear

INPUTS, FEATURES, CLASSES = 4, 2, 3
RATE, STEPS = 0.3, 2
# The first client lacks a class, and the second has only one; each client is one batch.
LABELS = ([0, 0, 2], [1], [0, 1, 2, 2])
IMAGES = tiny_model()


def linear_network() -> Model:
    """Returns a network with a body without bias and a head with bias."""

    def init(seed):
        def normal(index, *shape):
            return tf.random.stateless_normal(shape, [seed, index])

        head = collections.OrderedDict(kernel=normal(1, FEATURES, CLASSES), bias=normal(2, CLASSES))
        body = collections.OrderedDict(kernel=normal(0, INPUTS, FEATURES))
        return collections.OrderedDict(body=body, head=head)

    def features(weights, x, training=False, seed=None):
        return x @ weights["body"]["kernel"]

    def apply(weights, x, training=False, seed=None):
        return linear(weights["head"], features(weights, x))

    return Model(init, apply, TASKS["classification"](), name="linear", features=features)


LINEAR = linear_network()


def examples(i):
    x = np.random.default_rng(i).normal(size=(len(LABELS[i]), INPUTS)).astype(np.float32)
    return Examples(x, np.int32(LABELS[i]), np.int32(len(x)))


class NumPyClients:
    """Clients of FedRoD in NumPy: `generic` is body, kernel and bias; `own` makes H."""

    def __init__(self, is_hyper, momentum, clip_norm, persist):
        self.is_hyper, self.momentum, self.clip_norm = is_hyper, momentum, clip_norm
        self.persist, self.buffers = persist, {}
        self.losses = []  # losses of both heads, before each step

    def head(self, i, own):
        """Returns H's kernel and bias; the hypernetwork is affine, without hidden layers."""
        if not self.is_hyper:
            return own
        pi = prior(i)
        kernel, kernel_bias, bias, bias_bias = own
        return (pi @ kernel + kernel_bias).reshape(FEATURES, CLASSES), pi @ bias + bias_bias

    def train(self, i, generic, own):
        n = len(generic)
        x, y, _ = examples(i)
        fresh = [np.zeros_like(w) for w in (*generic, *own)]
        buffers = self.buffers.get(i, fresh) if self.persist else fresh
        for _ in range(STEPS):
            body, kernel, bias = generic
            z, (own_kernel, own_bias) = x @ body, self.head(i, own)
            balanced = z @ kernel + bias + np.log(np.maximum(prior(i), 1e-12))
            loss, error = cross_entropy(balanced, y)
            own_loss, own_error = cross_entropy(z @ (kernel + own_kernel) + bias + own_bias, y)
            self.losses.append((loss, own_loss))
            gradient = [x.T @ error @ kernel.T, z.T @ error, error.sum(axis=0)]
            own_gradient = [z.T @ own_error, own_error.sum(axis=0)]
            if self.is_hyper:
                flat = [g.ravel() for g in own_gradient]
                own_gradient = [g for f in flat for g in (np.outer(prior(i), f), f)]
            clipped = self.clipped(gradient) + self.clipped(own_gradient)
            buffers = [self.momentum * u + g for u, g in zip(buffers, clipped, strict=True)]
            steps = [w - RATE * u for w, u in zip((*generic, *own), buffers, strict=True)]
            generic, own = steps[:n], steps[n:]
        self.buffers[i] = buffers
        return generic, own

    def clipped(self, gradient):
        norm = np.sqrt(sum(np.sum(g**2) for g in gradient))
        return [g * min(1, self.clip_norm / norm) for g in gradient]

    def personal(self, i, generic, own):
        kernel, bias = self.head(i, own)
        return [generic[0], generic[1] + kernel, generic[2] + bias]


def prior(i):
    return np.bincount(LABELS[i], minlength=CLASSES) / len(LABELS[i])


def cross_entropy(logits, y):
    """Returns the mean and its gradient by the logits."""
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    return -np.mean(np.log(p[range(len(y)), y])), (p - np.eye(CLASSES)[y]) / len(y)


def mean(structures, weights):
    return [np.average(leaf, axis=0, weights=weights) for leaf in zip(*structures, strict=True)]


@pytest.mark.thorough_but_one
@pytest.mark.parametrize(
    ("options", "momentum", "clip_norm", "persist"),
    [
        slow({}, None, None, False),
        ({"personal_init": "copy", "pm_body": "local", "weighting": "uniform"}, None, None, False),
        ({}, 0.9, 0.4, True),
        ({"personal_head": "hyper", "hypernetwork_hidden": ()}, 0.9, 0.4, True),
        (
            {"personal_head": "hyper", "hypernetwork_hidden": (), "pm_body": "local"},
            None,
            None,
            False,
        ),
    ],
)
def test_rounds_match_numpy(options, momentum, clip_norm, persist):
    sgdm = tff.learning.optimizers.build_sgdm(RATE, momentum)
    local = LocalTraining(sgdm, STEPS, 4, clip_norm=clip_norm, persist_optimizer_state=persist)
    process = eager("fedrod", LINEAR, local, **options, seed=2)
    is_hyper, is_uniform = "personal_head" in options, "weighting" in options
    numpy_clients = NumPyClients(is_hyper, momentum or 0.0, clip_norm or np.inf, persist)

    server = process.initialize()
    generic = vectors(server.algorithm.weights.model)
    own = [[np.zeros_like(w) for w in generic[1:]]] * 3  # linear heads
    if "personal_init" in options:
        own = [generic[1:]] * 3
    if is_hyper:
        own = [vectors(server.algorithm.weights.hypernetwork)] * 3
    kept = {}
    clients = [make_client(process, i, examples(i)) for i in range(3)]
    for cohort, (state, clients_after) in zip(
        COHORTS, run_rounds(process, clients, COHORTS), strict=True
    ):
        for i in cohort:
            kept[i] = numpy_clients.train(i, generic, own[i])
        weights = [1 if is_uniform else len(LABELS[i]) for i in cohort]
        generic = mean([kept[i][0] for i in cohort], weights)
        if is_hyper:
            own = [mean([kept[i][1] for i in cohort], weights)] * 3
        else:
            own = [kept[i][1] if i in cohort else own[i] for i in range(3)]
            assert_close([vectors(c.state.head) for c in clients_after], own)
        assert_close(vectors(process.global_weights(state)), generic)
        used = [(generic, own[i]) for i in range(3)]
        if "pm_body" in options:
            used = [kept.get(i, now) for i, now in enumerate(used)]
        expected = [numpy_clients.personal(i, *used[i]) for i in range(3)]
        assert_close(list(map(vectors, process.personalize(state, clients_after))), expected)


def vectors(weights):
    """Returns the arrays of all layers, in order."""
    return [np.float64(leaf) for layer in weights.values() for leaf in layer.values()]


def test_losses_of_both_models_are_measured():
    """Covers the balanced loss and the loss of the personal model."""
    process = eager("fedrod", LINEAR, local_sgd(RATE, STEPS), personal_init="copy", seed=2)
    client = make_client(process, 2, examples(2))
    state = process.initialize()
    measured = process.next(state, [client]).metrics["train"]
    numpy_clients, generic = (
        NumPyClients(False, 0.0, np.inf, False),
        vectors(process.global_weights(state)),
    )
    numpy_clients.train(2, generic, generic[1:])
    expected = np.mean(numpy_clients.losses, axis=0)
    np.testing.assert_allclose([measured["loss"], measured["personal_loss"]], expected, rtol=1e-5)


@functools.cache
def trained(algorithm, **options):
    """Returns `(process, server state, clients)` after some rounds on images."""
    process = eager(algorithm, IMAGES, local_sgd(), **options, seed=1)
    clients = [
        client._replace(data=client.data._replace(y=np.int32(np.arange(size) % CLASSES)))
        for client, size in zip(make_clients(process, (6, 9, 6)), (6, 9, 6), strict=True)
    ]
    return process, *last(run_rounds(process, clients, COHORTS[:2]))


class TestUniformPriors:
    @pytest.mark.thorough
    @pytest.mark.parametrize("personal_head", ["linear", "hyper"])
    def test_generic_model_equals_fedavg(self, personal_head):
        process, state, _ = trained("fedrod", personal_head=personal_head)
        expected, expected_state, _ = trained("fedavg")
        assert_close(process.global_weights(state), expected.global_weights(expected_state))


class TestNewClients:
    def models(self, **options):
        """Returns the model of a new client and the global model, after some rounds."""
        process, state, _ = trained("fedrod", **options)
        client = make_client(process, 5, random_examples(4))
        return process.personalize(state, [client])[0], process.global_weights(state)

    @pytest.mark.thorough
    @pytest.mark.parametrize("pm_body", ["global", "local"])
    def test_head_of_zeros_gives_the_global_model(self, pm_body):
        assert_equal(*self.models(pm_body=pm_body))


@pytest.mark.parametrize("hidden", [(16,), (16, 16)])
def test_hypernetwork_is_not_affine_in_the_prior(hidden):
    """Each hidden layer has a ReLU, even a single one."""
    hypernetwork = PersonalHeads(IMAGES, hidden).hypernetwork
    p, q = np.float32([[1, 0, 0]]), np.float32([[0, 0.3, 0.7]])
    at_p, at_q, at_mixture = (
        hypernetwork.generate(hypernetwork.init(0), prior)["head"]["kernel"].numpy()
        for prior in (p, q, np.float32(0.4) * p + np.float32(0.6) * q)
    )
    assert np.max(np.abs(0.4 * at_p + 0.6 * at_q - at_mixture)) > 0.03


class TestPriors:
    def test_class_shares_ignore_padding(self):
        padded = Examples(np.zeros([5, 1]), np.int32([2, 0, 2, 1, -9]), np.int32(3))
        np.testing.assert_allclose(class_shares(padded, 4), [1 / 3, 0, 2 / 3, 0], rtol=1e-6)
        none = padded._replace(size=np.int32(0))
        np.testing.assert_array_equal(class_shares(none, 4), np.zeros(4))

    def test_missing_class_has_almost_no_gradient(self):
        x, y, size = examples(0)  # without class 1
        batch = Batch(x, y, np.ones(size, np.float32), np.zeros(2, np.int32))
        model = balanced_model(LINEAR, class_shares(examples(0), CLASSES))
        gradient = model.gradient(LINEAR.init(1), batch)[0]["head"]["bias"].numpy()
        assert np.all(np.isfinite(gradient)) and abs(gradient[1]) < 1e-9 < abs(gradient[0])
        unexpected = model.totals(LINEAR.init(1), batch._replace(y=np.ones_like(y)))["loss"]
        assert 20 < unexpected.mean < 40
