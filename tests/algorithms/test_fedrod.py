"""Tests FedRoD: rounds of a linear network against NumPy, both heads, and class priors."""

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.algorithms.rounds import cross_entropy, each_round, linear_network
from tests.federation import (
    COHORTS,
    assert_close,
    eager,
    last,
    local_sgd,
    make_client,
    make_clients,
    run_rounds,
    tiny_model,
)
from tests.marks import slow
from tff_pfl.algorithms.fedrod import PersonalHeads, balanced_model, class_shares
from tff_pfl.local import Batch, Examples, LocalTraining

INPUTS, FEATURES, CLASSES = 4, 2, 3
RATE, STEPS = 0.3, 2
# The first client lacks a class, and the second has only one; each client is one batch.
LABELS = ([0, 0, 2], [1], [0, 1, 2, 2])
LINEAR = linear_network(INPUTS, has_bias=True)


def examples(i):
    x = np.random.default_rng(i).normal(size=(len(LABELS[i]), INPUTS)).astype(np.float32)
    return Examples(x, np.int32(LABELS[i]), np.int32(len(x)))


class NumPyClients:
    """Clients of FedRoD in NumPy: `generic` is body, kernel and bias; `own` makes H."""

    def __init__(self, is_hyper, momentum, clip_norm, persist):
        self.is_hyper, self.momentum, self.clip_norm = is_hyper, momentum, clip_norm
        self.persist, self.buffers = persist, {}

    def head(self, i, own):
        """Returns H's kernel and bias; the hypernetwork is affine, without hidden layers."""
        if not self.is_hyper:
            return own
        pi = prior(i)
        kernel, kernel_bias, bias, bias_bias = own
        return (pi @ kernel + kernel_bias).reshape(FEATURES, CLASSES), pi @ bias + bias_bias

    def train(self, i, generic, own):
        """Returns `generic`, `own` and the mean losses of both heads before each step."""
        n, losses = len(generic), []
        x, y, _ = examples(i)
        fresh = [np.zeros_like(w) for w in (*generic, *own)]
        buffers = self.buffers.get(i, fresh) if self.persist else fresh
        for _ in range(STEPS):
            body, kernel, bias = generic
            z, (own_kernel, own_bias) = x @ body, self.head(i, own)
            balanced = z @ kernel + bias + np.log(np.maximum(prior(i), 1e-12))
            loss, error = cross_entropy(balanced, y)
            own_loss, own_error = cross_entropy(z @ (kernel + own_kernel) + bias + own_bias, y)
            losses.append((loss, own_loss))
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
        return generic, own, np.mean(losses, axis=0)

    def clipped(self, gradient):
        norm = np.sqrt(sum(np.sum(g**2) for g in gradient))
        return [g * min(1, self.clip_norm / norm) for g in gradient]

    def personal(self, i, generic, own):
        kernel, bias = self.head(i, own)
        return [generic[0], generic[1] + kernel, generic[2] + bias]


def prior(i):
    return np.bincount(LABELS[i], minlength=CLASSES) / len(LABELS[i])


def mean(structures, weights):
    return [np.average(leaf, axis=0, weights=weights) for leaf in zip(*structures, strict=True)]


PLAIN = (None, None, False)
REGULAR = (0.9, 0.4, True)
HYPER = {"personal_head": "hyper", "hypernetwork_hidden": ()}


@pytest.mark.thorough_but_one
@pytest.mark.parametrize(
    ("options", "momentum", "clip_norm", "persist"),
    [
        slow({}, *PLAIN),
        ({"personal_init": "copy", "pm_body": "local", "weighting": "uniform"}, *PLAIN),
        ({}, *REGULAR),
        (HYPER, *REGULAR),
        (HYPER | {"pm_body": "local"}, *PLAIN),
    ],
)
def test_rounds_match_numpy(options, momentum, clip_norm, persist):
    """Covers the balanced loss, and the loss of the personal model."""
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
    for cohort, state, now, metrics in each_round(process, clients):
        losses = []
        for i in cohort:
            *kept[i], of_client = numpy_clients.train(i, generic, own[i])
            losses.append(of_client)
        sizes = [len(LABELS[i]) for i in cohort]
        found = [metrics["train"][name] for name in ("loss", "personal_loss")]
        assert_close(found, list(np.average(losses, axis=0, weights=sizes)))
        weights = None if is_uniform else sizes
        generic = mean([kept[i][0] for i in cohort], weights)
        if is_hyper:
            own = [mean([kept[i][1] for i in cohort], weights)] * 3
        else:
            own = [kept[i][1] if i in cohort else own[i] for i in range(3)]
            assert_close([vectors(c.state.head) for c in now], own)
        assert_close(vectors(process.global_weights(state)), generic)
        used = [(generic, own[i]) for i in range(3)]
        if "pm_body" in options:
            used = [kept.get(i, pair) for i, pair in enumerate(used)]
        expected = [numpy_clients.personal(i, *used[i]) for i in range(3)]
        assert_close(list(map(vectors, process.personalize(state, now))), expected)


def vectors(weights):
    """Returns the arrays of all layers, in order."""
    return [np.float64(leaf) for layer in weights.values() for leaf in layer.values()]


@pytest.mark.thorough
@pytest.mark.parametrize("personal_head", ["linear", "hyper"])
def test_generic_model_equals_fedavg_if_priors_are_uniform(personal_head):
    models = []
    for name, options in (("fedrod", {"personal_head": personal_head}), ("fedavg", {})):
        process = eager(name, tiny_model(), local_sgd(), **options, seed=1)
        clients = [
            client._replace(
                data=client.data._replace(y=np.int32(np.arange(len(client.data.y)) % 3))
            )
            for client in make_clients(process, (6, 9, 6))
        ]
        state, _ = last(run_rounds(process, clients, COHORTS[:2]))
        models.append(process.global_weights(state))
    assert_close(*models)


@pytest.mark.parametrize("hidden", [(16,), (16, 16)])
def test_hypernetwork_is_not_affine_in_the_prior(hidden):
    """Each hidden layer has a ReLU, even a single one."""
    hypernetwork = PersonalHeads(tiny_model(), hidden).hypernetwork
    p, q = np.float32([[1, 0, 0]]), np.float32([[0, 0.3, 0.7]])
    at_p, at_q, at_mixture = (
        hypernetwork.generate(hypernetwork.init(0), prior)["head"]["kernel"].numpy()
        for prior in (p, q, np.float32(0.4) * p + np.float32(0.6) * q)
    )
    assert np.max(np.abs(0.4 * at_p + 0.6 * at_q - at_mixture)) > 0.03


def test_class_shares_ignore_padding():
    padded = Examples(np.zeros([5, 1]), np.int32([2, 0, 2, 1, -9]), np.int32(3))
    np.testing.assert_allclose(class_shares(padded, 4), [1 / 3, 0, 2 / 3, 0], rtol=1e-6)
    none = padded._replace(size=np.int32(0))
    np.testing.assert_array_equal(class_shares(none, 4), np.zeros(4))


def test_missing_class_has_almost_no_gradient():
    x, y, size = examples(0)  # without class 1
    batch = Batch(x, y, np.ones(size, np.float32), np.zeros(2, np.int32))
    model = balanced_model(LINEAR, class_shares(examples(0), CLASSES))
    gradient = model.gradient(LINEAR.init(1), batch)[0]["head"]["bias"].numpy()
    assert np.all(np.isfinite(gradient)) and abs(gradient[1]) < 1e-9 < abs(gradient[0])
    unexpected = model.totals(LINEAR.init(1), batch._replace(y=np.ones_like(y)))["loss"]
    assert 20 < unexpected.mean < 40
