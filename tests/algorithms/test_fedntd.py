"""Tests FedNTD: its limits FedAvg, and its rounds against NumPy."""

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
from tff_pfl import models
from tff_pfl.algorithms.fedntd import distillation
from tff_pfl.local import Batch, LocalTraining

IN, CLASSES, SEED = 3, 3, 2
RATE, MOMENTUM, EPOCHS, BATCH = 0.2, 0.6, 2, 4
BATCHES = {"epochs": EPOCHS, "batch_size": BATCH, "seed": SEED}
SIZES = (5, 7, 4, 0)  # with partial batches, and a client without examples
COHORTS = ((0, 1), (0, 2, 3), (1, 0))
XS, YS = drawn(SIZES, IN, CLASSES)


def test_without_beta_it_is_fedavg():
    found, expected = trained("fedntd", beta=0.0), trained("fedavg")
    assert_equal(found.shared, expected.shared)
    assert_equal(found.personal, expected.personal)


def softmax_of_others(logits, y, temperature):
    """Returns the softmax over the classes other than the label, and 0 for the label."""
    p = np.exp(logits / temperature) * (1 - np.eye(CLASSES)[y])
    return p / p.sum(axis=1, keepdims=True)


def client_round(i, received, round_num, beta, temperature):
    """Returns the model after training: the body, and the bias and the kernel of the head."""

    def logits_of(model, x):
        return x @ model[0] @ model[2] + model[1]

    model, velocity = received, [0.0] * 3
    for rows in batches_of(SIZES[i], i, round_num, **BATCHES):
        body, _, kernel = model
        x, y = XS[i][rows], YS[i][rows]
        logits = logits_of(model, x)
        _, error = cross_entropy(logits, y)
        p, q = (softmax_of_others(z, y, temperature) for z in (logits, logits_of(received, x)))
        error = error + beta * temperature * (p - q) / len(y)
        gradient = [x.T @ error @ kernel.T, np.sum(error, axis=0), (x @ body).T @ error]
        velocity = [MOMENTUM * v + g for v, g in zip(velocity, gradient, strict=True)]
        model = [w - RATE * v for w, v in zip(model, velocity, strict=True)]
    return model


@pytest.mark.thorough_but_one
@pytest.mark.parametrize(("beta", "temperature"), [(1.0, 1.0), (0.7, 3.0)])
def test_rounds_agree_with_numpy(beta, temperature):
    model = linear_network(IN, has_bias=True)
    local = LocalTraining(
        tff.learning.optimizers.build_sgdm(RATE, MOMENTUM), epochs=EPOCHS, batch_size=BATCH
    )
    options = {} if beta == 1.0 else {"beta": beta, "temperature": temperature}  # the defaults
    process = eager("fedntd", model, local, seed=SEED, **options, personalized="local")
    clients = clients_with(process, XS, YS)
    shared = [np.float64(leaf) for leaf in tf.nest.flatten(model.init(SEED))]
    own = {}
    for round_num, (cohort, state, now, _) in enumerate(each_round(process, clients, COHORTS)):
        new = {i: client_round(i, shared, round_num, beta, temperature) for i in cohort}
        own |= {i: weights for i, weights in new.items() if SIZES[i]}
        sizes = [SIZES[i] for i in cohort]
        shared = [
            np.average(leaves, axis=0, weights=sizes) for leaves in zip(*new.values(), strict=True)
        ]
        assert_close(state.algorithm.weights, shared)
        assert_close([now[i].state.model for i in own], list(own.values()))
    expected = [own.get(i, shared) for i in range(len(SIZES))]
    assert_close(process.personalize(state, now), expected)


def term_and_gradient(logits, received, y, temperature):
    """Returns the term of given logits, and its gradient."""
    model = models.Model(
        init=lambda seed: {"layer": {"logits": tf.zeros([1])}},
        apply=lambda weights, x, training, seed: weights["layer"]["logits"],
        task=models.TASKS["classification"](),
    )
    logits = tf.constant(logits)
    batch = Batch(tf.zeros([len(y)]), tf.constant(y), tf.ones([len(y)]), tf.zeros([2], tf.int32))
    with tf.GradientTape() as tape:
        tape.watch(logits)
        term = distillation(
            model, {"layer": {"logits": tf.constant(received)}}, 1.0, temperature=temperature
        )
        values = term(models.Forward(logits, None, {}), batch)
    return values.numpy(), tape.gradient(values, logits).numpy()


def test_logit_of_the_label_does_not_count():
    logits, received = [[1.0, 2.0, 5.0]], [[0.5, -1.0, 3.0]]
    found, gradient = term_and_gradient(logits, received, [2], 0.5)
    p, q = (softmax_of_others(np.array(z), [2], 0.5)[0, :2] for z in (logits, received))
    assert_close(found, [0.25 * np.sum(q * np.log(q / p))])
    other, _ = term_and_gradient([[-999.0, -998.0, 5.0]], [[0.5, -1.0, 700.0]], [2], 0.5)
    assert_close(other, found)
    assert gradient[0, 2] == 0.0 != gradient[0, 1]


def test_two_classes_and_large_logits_stay_finite():
    """The other of two classes is certain; a class may be ruled out."""
    found, gradient = term_and_gradient([[4.0, -3.0]], [[-2.0, 1.0]], [1], 1.0)
    assert_equal((found, gradient), (np.zeros(1), np.zeros((1, 2))))
    found, gradient = term_and_gradient([[1e4, -1e4, 3.0]], [[-1e4, 1e4, 2.0]], [2], 0.01)
    assert_close(found, [1e-4 * 2e6])
    assert np.isfinite(gradient).all()
