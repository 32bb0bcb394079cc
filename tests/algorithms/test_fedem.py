"""Tests FedEM: its limit FedAvg, its rounds against NumPy, and its mixtures."""

import dataclasses

import numpy as np
import pytest
import scipy.special
import tensorflow as tf
import tensorflow_federated as tff

from tests.algorithms.rounds import batches_of, cross_entropy, drawn, each_round, linear_network
from tests.federation import assert_close, assert_equal, eager, local_sgd, make_client, trained
from tff_pfl.algorithms.fedem import mixed, mixture_model
from tff_pfl.local import Examples, LocalTraining, trees
from tff_pfl.models import TASKS, distinct_seeds
from tff_pfl.models.example_weights import with_weights

IN, CLASSES, SEED = 3, 3, 2
RATE, MOMENTUM, EPOCHS, BATCH = 0.4, 0.6, 2, 4
BATCHES = {"epochs": EPOCHS, "batch_size": BATCH, "seed": SEED}
SIZES = (5, 7, 4, 0, 6)  # with partial batches, a client without examples, and a new one
COHORTS = ((0, 1), (0, 2, 3), (1, 0))
XS, YS = drawn(SIZES, IN, CLASSES)
NETWORK = linear_network(IN, has_bias=True)


@pytest.mark.thorough
def test_one_component_is_fedavg():
    local = LocalTraining(
        tff.learning.optimizers.build_sgdm(0.3, momentum=0.5),
        epochs=2,
        batch_size=4,
        persist_optimizer_state=True,
    )
    found, expected = (
        trained(name, local=local, **options)
        for name, options in (("fedem", {"num_components": 1}), ("fedavg", {}))
    )
    assert_equal(trees.row(found.shared, 0), expected.shared)
    optimizers = [state.optimizers[0] for state in found.client_states]
    assert_equal(optimizers, [state.optimizer for state in expected.client_states])


def examples_of(i):
    return Examples(np.float32(XS[i]), np.int32(YS[i]), np.int32(SIZES[i]))


def likelihoods(component, x, y):
    """Returns the probability of each label; components are body, bias and kernel."""
    body, bias, kernel = component
    return scipy.special.softmax(x @ body @ kernel + bias, axis=1)[range(len(y)), y]


def responsibilities(components, pi, x, y):
    joint = np.stack([p * likelihoods(w, x, y) for p, w in zip(pi, components, strict=True)], 1)
    return joint / np.sum(joint, axis=1, keepdims=True), -np.sum(np.log(np.sum(joint, axis=1)))


def descended(component, q, i, round_num, velocity):
    """Returns the component and the velocity after a client's training."""
    for rows in batches_of(SIZES[i], i, round_num, **BATCHES):
        body, bias, kernel = component
        x, y = XS[i][rows], YS[i][rows]
        features = x @ body
        _, error = cross_entropy(features @ kernel + bias, y)
        error = error * q[rows, np.newaxis]
        gradient = [x.T @ error @ kernel.T, np.sum(error, axis=0), features.T @ error]
        velocity = [MOMENTUM * v + g for v, g in zip(velocity, gradient, strict=True)]
        component = [w - RATE * v for w, v in zip(component, velocity, strict=True)]
    return component, velocity


@pytest.mark.thorough_but_one
@pytest.mark.parametrize(("k", "weighting", "persist"), [(2, "uniform", True), (3, None, False)])
def test_rounds_agree_with_numpy(k, weighting, persist):
    local = LocalTraining(
        tff.learning.optimizers.build_sgdm(RATE, MOMENTUM),
        epochs=EPOCHS,
        batch_size=BATCH,
        persist_optimizer_state=persist,
    )
    options = {"num_components": k, "weighting": weighting} if weighting else {}  # the defaults
    process = eager("fedem", NETWORK, local, seed=SEED, **options)
    clients = [make_client(process, i, examples_of(i)) for i in range(len(SIZES))]
    shared = [
        [np.float64(leaf) for leaf in tf.nest.flatten(NETWORK.init(seed))]
        for seed in distinct_seeds(SEED, k)
    ]
    pi, velocities, seen = np.full((len(SIZES), k), 1 / k), {}, set()
    rounds = each_round(process, clients, COHORTS)
    for round_num, (cohort, state, now, metrics) in enumerate(rounds):
        ends, loss = {}, 0.0
        for i in filter(SIZES.__getitem__, cohort):
            q, of_client = responsibilities(shared, pi[i], XS[i], YS[i])
            pi[i], loss = np.mean(q, axis=0), loss + of_client
            starts = velocities.get(i, [[0.0] * 3] * k) if persist else [[0.0] * 3] * k
            ends[i], velocities[i] = zip(
                *(descended(shared[j], q[:, j], i, round_num, starts[j]) for j in range(k)),
                strict=True,
            )
        weights = [1 if weighting else SIZES[i] for i in ends]
        shared = [
            [np.average(leaves, axis=0, weights=weights) for leaves in zip(*models, strict=True)]
            for models in zip(*ends.values(), strict=True)
        ]
        seen |= set(ends)
        assert_close([trees.row(state.algorithm.weights, j) for j in range(k)], shared)
        assert_close([client.state.pi for client in now], list(pi))
        assert metrics["train"]["loss"] == pytest.approx(loss / sum(SIZES[i] for i in ends), 1e-5)
    assert seen == {0, 1, 2} and np.ptp(pi[:3]) > 0.1
    pi[4] = np.mean(responsibilities(shared, np.full(k, 1 / k), XS[4], YS[4])[0], axis=0)
    evaluated = [0, 1, 2, 4]
    found = process.personalize(state, [now[i] for i in evaluated])
    assert_close([np.exp(own["mixture"]["log_pi"]) for own in found], list(pi[evaluated]))
    assert_close(process.global_weights(state)["mixture"]["log_pi"], np.full(k, -np.log(k)))


@pytest.mark.thorough
def test_an_example_of_weight_two_counts_like_two():
    """All examples are in one batch."""
    process = eager("fedem", NETWORK, local_sgd(RATE, batch_size=8), seed=SEED)
    weights = np.float32([2, 1, 1, 0, 1])
    rows = np.repeat(np.arange(5), np.int32(weights))
    weighted = examples_of(0)._replace(y=with_weights(np.int32(YS[0]), weights))
    repeated = Examples(np.float32(XS[0][rows]), np.int32(YS[0][rows]), np.int32(len(rows)))
    found, expected = (
        process.next(process.initialize(), [make_client(process, 0, its)])
        for its in (weighted, repeated)
    )
    assert_close(found.state.algorithm, expected.state.algorithm)
    assert_close(found.clients[0].pi, expected.clients[0].pi)
    assert found.metrics["train"]["loss"] == pytest.approx(expected.metrics["train"]["loss"])


def softmax(logits):
    return scipy.special.softmax(np.float64(logits), axis=-1)


def sigmoid(logits):
    return scipy.special.expit(np.float64(logits))


@pytest.mark.parametrize(
    ("task", "probabilities"),
    [("classification", softmax), ("binary", sigmoid), ("multi_label", sigmoid)],
)
def test_mixture_has_the_logits_of_mixed_probabilities(task, probabilities):
    model = dataclasses.replace(NETWORK, task=TASKS[task]())
    components, pi = trees.stack(map(model.init, (0, 1, 2))), np.float32([0.2, 0.7, 0.1])
    mixture, x = mixture_model(model, 3), np.float32(3 * XS[0])
    logits = np.stack([model.apply(trees.row(components, k), x) for k in range(3)])
    expected = np.tensordot(pi, probabilities(logits), 1)
    assert_close(probabilities(mixture.apply(mixed(components, pi), x)), expected)
    assert not np.allclose(probabilities(np.tensordot(pi, logits, 1)), expected)
    alone = mixture.apply(mixed(components, np.float32([0, 1, 0])), x)
    assert_close(probabilities(alone), probabilities(logits[1]))
    drawn = [model.apply(model.init(seed), x) for seed in distinct_seeds(SEED, 3)]
    initial = mixture.apply(mixture.init(SEED), x)
    assert_close(probabilities(initial), np.mean(probabilities(drawn), axis=0))
