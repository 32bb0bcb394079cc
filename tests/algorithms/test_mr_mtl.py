"""Tests MR-MTL: its limit Local, and its rounds against NumPy."""

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
from tests.federation import assert_close, assert_equal, eager, trained
from tff_pfl.local import LocalTraining

IN, CLASSES, SEED = 3, 3, 2
RATE, MOMENTUM, EPOCHS, BATCH = 0.2, 0.6, 2, 4
BATCHES = {"epochs": EPOCHS, "batch_size": BATCH, "seed": SEED}
SIZES = (5, 7, 4, 0)  # with partial batches, and a client without examples
COHORTS = ((0, 1), (0, 2, 3), (1, 0))
XS, YS = drawn(SIZES, IN, CLASSES)


def test_without_lambda_it_is_local():
    found, expected = trained("mr_mtl", lambda_=0.0), trained("local")
    assert_equal([own.model for own in found.client_states], [w for w, _ in expected.client_states])
    assert_equal(found.personal, expected.personal)


def client_round(i, own, velocity, mean, round_num, strength):
    """Returns the model (the body, and the bias and the kernel of the head), and the velocity."""
    for rows in batches_of(SIZES[i], i, round_num, **BATCHES):
        body, bias, kernel = own
        x, y = XS[i][rows], YS[i][rows]
        features = x @ body
        _, error = cross_entropy(features @ kernel + bias, y)
        gradient = [x.T @ error @ kernel.T, np.sum(error, axis=0), features.T @ error]
        gradient = [g + strength * (w - m) for g, w, m in zip(gradient, own, mean, strict=True)]
        velocity = [MOMENTUM * v + g for v, g in zip(velocity, gradient, strict=True)]
        own = [w - RATE * v for w, v in zip(own, velocity, strict=True)]
    return own, velocity


@pytest.mark.thorough_but_one
@pytest.mark.parametrize(
    ("options", "persists"), [({}, False), ({"lambda_": 2.0, "weighting": "uniform"}, True)]
)
def test_rounds_agree_with_numpy(options, persists):
    model = linear_network(IN, has_bias=True)
    optimizer = tff.learning.optimizers.build_sgdm(RATE, MOMENTUM)
    local = LocalTraining(optimizer, EPOCHS, BATCH, persist_optimizer_state=persists)
    process = eager("mr_mtl", model, local, seed=SEED, **options)
    clients = clients_with(process, XS, YS)
    mean = [np.float64(leaf) for leaf in tf.nest.flatten(model.init(SEED))]
    own, velocities = [mean] * len(SIZES), [[0.0] * 3] * len(SIZES)
    for round_num, (cohort, state, now, _) in enumerate(each_round(process, clients, COHORTS)):
        cohort = [i for i in cohort if SIZES[i]]
        for i in cohort:
            velocity = velocities[i] if persists else [0.0] * 3
            own[i], velocities[i] = client_round(
                i, own[i], velocity, mean, round_num, options.get("lambda_", 0.1)
            )
        weights = None if options else [SIZES[i] for i in cohort]
        models = [own[i] for i in cohort]
        mean = [np.average(leaves, axis=0, weights=weights) for leaves in zip(*models, strict=True)]
        assert_close(state.algorithm.weights, mean)
        assert_close([client.state.model for client in now], own)
    expected = [weights if size else mean for weights, size in zip(own, SIZES, strict=True)]
    assert_close(process.personalize(state, now), expected)
    assert_close(process.global_weights(state), mean)
