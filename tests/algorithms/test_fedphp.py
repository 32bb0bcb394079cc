"""Tests FedPHP: its limit FedAvg, and its rounds against NumPy."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.algorithms.rounds import (
    QUADRATIC,
    batches_of,
    clients_with,
    cross_entropy,
    each_round,
    linear_network,
)
from tests.federation import assert_close, assert_equal, eager, local_sgd, trained
from tff_pfl.algorithms import make
from tff_pfl.algorithms.fedphp import discrepancy
from tff_pfl.local import Batch, LocalTraining
from tff_pfl.models import Forward

IN, CLASSES, SEED = 3, 3, 2
RATE, MOMENTUM, EPOCHS, BATCH = 0.1, 0.6, 2, 4
BATCHES = {"epochs": EPOCHS, "batch_size": BATCH, "seed": SEED}
SIZES = (5, 7, 4, 0)  # with partial batches, and a client without examples
COHORTS = ((0, 1), (0, 2, 3), (1, 0))
RNG = np.random.default_rng(0)
XS = [RNG.normal(i, 1, size=(n, IN)) for i, n in enumerate(SIZES)]
YS = [RNG.choice(CLASSES, n) for n in SIZES]


def test_without_lambda_and_mu_it_is_fedavg():
    found = trained("fedphp", lambda_=0.0, mu=0.0)
    expected = trained("fedavg", personalized="local")
    assert_equal(found.shared, expected.shared)
    assert_equal(found.personal, expected.personal)


def softmax(logits):
    p = np.exp(logits)
    return p / p.sum(axis=1, keepdims=True)


def mmd(own, other):
    """Returns the squared MMD, and its gradient by the features `own`."""
    both, m = np.concatenate([own, other]), len(own)
    if m == 1:
        return 0.0, 0.0
    apart = both[:, np.newaxis] - both
    distance = np.sum(apart**2, axis=2)
    widths = np.mean(distance) * 2.0 ** np.arange(-2, 3)
    kernels = np.exp(-distance[..., np.newaxis] / widths)
    sign = np.repeat([1 / m, -1 / m], m)
    slopes = -np.sum(kernels / widths, axis=2)
    gradient = 4 * np.einsum("i,j,ij,ijd->id", sign, sign, slopes, apart)
    return sign @ kernels.sum(axis=2) @ sign, gradient[:m]


def client_round(i, received, private, velocity, round_num, share, transfer):
    """Returns the model (the body, and the bias and the kernel of the head), and the velocity."""
    model = received
    for rows in batches_of(SIZES[i], i, round_num, **BATCHES):
        (body, bias, kernel), (own_body, own_bias, own_kernel) = model, private
        x, y = XS[i][rows], YS[i][rows]
        features, inherited = x @ body, x @ own_body
        logits = features @ kernel + bias
        error, pull = (1 - share) * cross_entropy(logits, y)[1], 0.0
        if transfer == "mmd":
            pull = share * mmd(features, inherited)[1]
        else:
            teacher = softmax((inherited @ own_kernel + own_bias) / 4)
            error = error + share * (softmax(logits) - teacher) / len(y)
        gradient = [
            x.T @ (error @ kernel.T + pull),
            np.sum(error, axis=0),
            features.T @ error,
        ]
        velocity = [MOMENTUM * v + g for v, g in zip(velocity, gradient, strict=True)]
        model = [w - RATE * v for w, v in zip(model, velocity, strict=True)]
    return model, velocity


def mean(models, weights):
    return [np.average(leaves, axis=0, weights=weights) for leaves in zip(*models, strict=True)]


KD = {"transfer": "kd", "lambda_": 0.4, "mu": 0.7, "mu_rounds": 1}


@pytest.mark.thorough_but_one
@pytest.mark.parametrize(
    ("options", "persists"), [({}, False), ({"lambda_": 0.8, "mu_rounds": 2}, False), (KD, True)]
)
def test_rounds_agree_with_numpy(options, persists):
    model = linear_network(IN, has_bias=True)
    optimizer = tff.learning.optimizers.build_sgdm(RATE, MOMENTUM)
    local = LocalTraining(optimizer, EPOCHS, BATCH, persist_optimizer_state=persists)
    process = eager("fedphp", model, local, seed=SEED, **options)
    clients = clients_with(process, XS, YS)
    options = {"transfer": "mmd", "lambda_": 0.1, "mu": 0.9, "mu_rounds": 100} | options
    shared = [np.float64(leaf) for leaf in tf.nest.flatten(model.init(SEED))]
    private, times = [shared] * len(SIZES), [0] * len(SIZES)
    velocities = [[0.0] * 3] * len(SIZES)
    for round_num, (cohort, state, now, _) in enumerate(each_round(process, clients, COHORTS)):
        cohort = [i for i in cohort if SIZES[i]]
        new = {}
        for i in cohort:
            new[i], velocity = client_round(
                i,
                shared,
                private[i],
                velocities[i],
                round_num,
                options["lambda_"],
                options["transfer"],
            )
            velocities[i] = velocity if persists else velocities[i]
            old = options["mu"] * min(times[i] / options["mu_rounds"], 1)
            private[i] = mean([private[i], new[i]], [old, 1 - old])
            times[i] += 1
        shared = mean(new.values(), [SIZES[i] for i in cohort])
        assert_close(state.algorithm.weights, shared)
        assert_close([client.state.model for client in now], private)
    expected = [own if number else shared for own, number in zip(private, times, strict=True)]
    assert_close(process.personalize(state, now), expected)


def of_batch(own, private, x, weight):
    """Returns the weighted mean of the values of rows."""
    model = linear_network(IN, has_bias=True)
    batch = Batch(x, tf.zeros([len(x)], tf.int32), tf.constant(weight), tf.zeros([2], tf.int32))
    forward = Forward(None, model.features(own, x), own)
    return np.average(discrepancy(model, private, forward, batch), weights=weight)


def test_discrepancy_is_mmd_of_rows_with_weight():
    model = linear_network(IN, has_bias=True)
    own, private = model.init(0), model.init(1)
    x = tf.constant(RNG.normal(size=(5, IN)), tf.float32)
    bodies = [np.float64(weights["body"]["kernel"]) for weights in (own, private)]
    expected, _ = mmd(*(x[:4] @ body for body in bodies))
    assert expected > 0.1
    assert_close(of_batch(own, private, x, [1.0, 1.0, 1.0, 1.0, 0.0]), expected)
    twice = of_batch(own, private, tf.concat([x[:1], x], axis=0), [1.0] * 6)
    assert_close(of_batch(own, private, x, [2.0, 1.0, 1.0, 1.0, 1.0]), twice)
    assert of_batch(own, own, x, [1.0] * 5) == 0.0


def test_distillation_needs_class_logits():
    model = dataclasses.replace(linear_network(IN, has_bias=False), features=None)
    with pytest.raises(ValueError, match="^fedphp needs the inputs of the last layer"):
        make("fedphp", model, local_sgd())
    make("fedphp", model, local_sgd(), transfer="kd")
    with pytest.raises(ValueError, match="^fedphp needs a class label"):
        make("fedphp", QUADRATIC, local_sgd(), transfer="kd")
