"""Tests MOON: its limit FedAvg, and its rounds against NumPy."""

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
from tests.federation import assert_close, eager, trained
from tff_pfl.local import LocalTraining

IN, CLASSES, SEED = 3, 3, 2
RATE, MOMENTUM, EPOCHS, BATCH = 0.2, 0.6, 2, 4
BATCHES = {"epochs": EPOCHS, "batch_size": BATCH, "seed": SEED}
SIZES = (5, 7, 4, 0)  # with partial batches, and a client without examples
COHORTS = ((0, 1), (0, 2, 3), (1, 0))
XS, YS = drawn(SIZES, IN, CLASSES)


def test_without_mu_it_is_fedavg():
    found, expected = trained("moon", mu=0.0), trained("fedavg")
    assert_close(found.shared, expected.shared, 1e-6)
    assert_close(found.personal, expected.personal, 1e-6)


def test_before_a_second_participation_it_is_fedavg():
    """The two models of the contrast are the same then."""
    first = ((0, 1, 2),)
    assert_close(trained("moon", cohorts=first).shared, trained("fedavg", cohorts=first).shared)
    twice = first * 2
    with pytest.raises(AssertionError):
        assert_close(
            trained("moon", cohorts=twice).shared, trained("fedavg", cohorts=twice).shared, 1e-4
        )


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def contrast(features, near, far, mu, temperature):
    """Returns the gradient of the contrast of each row with respect to its features."""
    direction = unit(features)

    def cosine(other):
        value = np.sum(direction * unit(other), axis=1, keepdims=True)
        slope = (unit(other) - value * direction) / np.linalg.norm(features, axis=1, keepdims=True)
        return value, slope

    (near, to_near), (far, to_far) = cosine(near), cosine(far)
    share = 1 / (1 + np.exp((near - far) / temperature))
    return mu * share / temperature * (to_far - to_near)


def client_round(i, received, last, round_num, mu, temperature):
    """Returns the model after training: the body, and the bias and the kernel of the head."""
    model, velocity = received, [0.0] * 3
    for rows in batches_of(SIZES[i], i, round_num, **BATCHES):
        body, bias, kernel = model
        x, y = XS[i][rows], YS[i][rows]
        features = x @ body
        _, error = cross_entropy(features @ kernel + bias, y)
        pull = contrast(features, x @ received[0], x @ last[0], mu, temperature) / len(y)
        upstream = error @ kernel.T + pull
        gradient = [x.T @ upstream, np.sum(error, axis=0), features.T @ error]
        velocity = [MOMENTUM * v + g for v, g in zip(velocity, gradient, strict=True)]
        model = [w - RATE * v for w, v in zip(model, velocity, strict=True)]
    return model


@pytest.mark.thorough_but_one
@pytest.mark.parametrize(("mu", "temperature"), [(1.0, 0.5), (3.0, 2.0)])
def test_rounds_agree_with_numpy(mu, temperature):
    model = linear_network(IN, has_bias=True)
    local = LocalTraining(
        tff.learning.optimizers.build_sgdm(RATE, MOMENTUM), epochs=EPOCHS, batch_size=BATCH
    )
    options = {} if mu == 1.0 else {"mu": mu, "temperature": temperature}  # the defaults
    process = eager("moon", model, local, seed=SEED, **options, personalized="local")
    clients = clients_with(process, XS, YS)
    shared = [np.float64(leaf) for leaf in tf.nest.flatten(model.init(SEED))]
    own = {}
    for round_num, (cohort, state, now, _) in enumerate(each_round(process, clients, COHORTS)):
        last = {i: own.get(i, shared) for i in cohort}
        new = {i: client_round(i, shared, last[i], round_num, mu, temperature) for i in cohort}
        own |= {i: weights for i, weights in new.items() if SIZES[i]}
        sizes = [SIZES[i] for i in cohort]
        shared = [
            np.average(leaves, axis=0, weights=sizes) for leaves in zip(*new.values(), strict=True)
        ]
        assert_close(state.algorithm.weights, shared)
        assert_close([now[i].state.model for i in own], list(own.values()))
    expected = [own.get(i, shared) for i in range(len(SIZES))]
    assert_close(process.personalize(state, now), expected)
