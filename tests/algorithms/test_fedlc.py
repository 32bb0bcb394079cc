"""Tests FedLC: its limit FedAvg, its rounds against NumPy, and the margins of classes."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.algorithms.rounds import batches_of, cross_entropy, drawn, each_round, linear_network
from tests.federation import (
    assert_close,
    assert_equal,
    eager,
    local_sgd,
    make_client,
    tiny_model,
    trained,
)
from tff_pfl.algorithms import make
from tff_pfl.algorithms.fedlc import class_counts
from tff_pfl.local import Examples, LocalTraining
from tff_pfl.models.example_weights import with_weights

IN, CLASSES, SEED = 3, 3, 2
RATE, MOMENTUM, EPOCHS, BATCH = 0.2, 0.6, 2, 4
BATCHES = {"epochs": EPOCHS, "batch_size": BATCH, "seed": SEED}
SIZES = (5, 7, 4, 0)  # with partial batches, and a client without examples
CHOICES = ([0, 1], [0, 1, 2], [1], [0])
COHORTS = ((0, 1), (0, 2, 3), (1, 0))
XS, YS = drawn(SIZES, IN, CHOICES)
MODEL = dataclasses.replace(linear_network(IN, has_bias=True), num_classes=CLASSES)


def test_without_tau_it_is_fedavg():
    found, expected = trained("fedlc", tau=0.0), trained("fedavg")
    assert_equal(found.shared, expected.shared)
    assert_equal(found.personal, expected.personal)


def client_of(process, i, x, y):
    return make_client(process, i, Examples(np.float32(x), np.int32(y), np.int32(len(y))))


def one_round(name, y, **options):
    """Returns the shared weights and the metrics after a round of a client with labels `y`."""
    process = eager(name, MODEL, local_sgd(RATE), seed=SEED, **options)
    x = np.random.default_rng(1).normal(size=(len(y), IN))
    output = process.next(process.initialize(), [client_of(process, 0, x, y)])
    return output.state.algorithm.weights, output.metrics["train"]


def test_with_equal_counts_it_is_fedavg():
    """A shift of all logits changes no softmax."""
    equal, others = [0, 1, 2, 2, 1, 0], [0, 1, 2, 2, 1, 1]
    assert_close(one_round("fedlc", equal)[0], one_round("fedavg", equal)[0], 1e-6)
    with pytest.raises(AssertionError):
        assert_close(one_round("fedlc", others)[0], one_round("fedavg", others)[0], 1e-3)


@pytest.mark.parametrize("tau", [0.01, 1.0])
def test_logit_of_a_class_without_examples_does_not_move(tau):
    start = MODEL.init(SEED)["head"]
    head = one_round("fedlc", [0, 2, 2, 0, 2], tau=tau)[0]["head"]
    assert_equal(head["bias"][1], start["bias"][1])
    assert_equal(head["kernel"][:, 1], start["kernel"][:, 1])
    assert np.abs(head["bias"][0] - start["bias"][0]) > 1e-3


def test_only_the_loss_is_calibrated():
    """The only class that a client has is alone in the sum."""
    (_, metrics), (_, plain) = (one_round(name, [1, 1]) for name in ("fedlc", "fedavg"))
    assert metrics["loss"] == 0.0 < plain["loss"]
    assert metrics["accuracy"] == plain["accuracy"] < 1.0


def test_weights_of_examples_count():
    y = with_weights(np.int32([0, 2, 0, 0]), np.float32([0.5, 2.0, 1.0, 9.0]))
    counts = class_counts(MODEL, Examples(np.zeros([4, IN], np.float32), y, np.int32(3)), CLASSES)
    assert_equal(counts, np.float32([1.5, 0.0, 2.0]))


def test_number_of_classes_must_be_known():
    model = dataclasses.replace(tiny_model(), num_classes=None)
    with pytest.raises(ValueError, match="fedlc needs the number of classes, but num_classes of"):
        make("fedlc", model, local_sgd())


def client_round(i, received, round_num, tau):
    """Returns the model after training: the body, and the bias and the kernel of the head."""
    counts = np.bincount(YS[i], minlength=CLASSES)
    with np.errstate(divide="ignore"):
        margins = tau * counts**-0.25  # infinite without examples
    model, velocity = received, [0.0] * 3
    for rows in batches_of(SIZES[i], i, round_num, **BATCHES):
        body, bias, kernel = model
        x, y = XS[i][rows], YS[i][rows]
        _, error = cross_entropy(x @ body @ kernel + bias - margins, y)
        gradient = [x.T @ error @ kernel.T, np.sum(error, axis=0), (x @ body).T @ error]
        velocity = [MOMENTUM * v + g for v, g in zip(velocity, gradient, strict=True)]
        model = [w - RATE * v for w, v in zip(model, velocity, strict=True)]
    return model


@pytest.mark.thorough_but_one
@pytest.mark.parametrize("tau", [1.0, 0.3])
def test_rounds_agree_with_numpy(tau):
    local = LocalTraining(
        tff.learning.optimizers.build_sgdm(RATE, MOMENTUM), epochs=EPOCHS, batch_size=BATCH
    )
    options = {} if tau == 1.0 else {"tau": tau}  # the default
    process = eager("fedlc", MODEL, local, seed=SEED, **options, personalized="local")
    clients = [client_of(process, i, x, y) for i, (x, y) in enumerate(zip(XS, YS, strict=True))]
    shared = [np.float64(leaf) for leaf in tf.nest.flatten(MODEL.init(SEED))]
    own = {}
    for round_num, (cohort, state, now, _) in enumerate(each_round(process, clients, COHORTS)):
        new = {i: client_round(i, shared, round_num, tau) for i in cohort}
        own |= {i: weights for i, weights in new.items() if SIZES[i]}
        sizes = [SIZES[i] for i in cohort]
        shared = [
            np.average(leaves, axis=0, weights=sizes) for leaves in zip(*new.values(), strict=True)
        ]
        assert_close(state.algorithm.weights, shared)
        assert_close([now[i].state.model for i in own], list(own.values()))
    expected = [own.get(i, shared) for i in range(len(SIZES))]
    assert_close(process.personalize(state, now), expected)
