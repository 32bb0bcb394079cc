"""Tests GPFL: its rounds against NumPy, its limit FedPer, and its guidance."""

import collections
import sys

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.algorithms.rounds import (
    batches_of,
    by_name,
    clients_with,
    cross_entropy,
    drawn,
    each_round,
    linear_network,
    slopes,
)
from tests.federation import assert_close, last, run_rounds, traced
from tff_pfl.algorithms.gpfl import guidance
from tff_pfl.local import Batch, LocalTraining
from tff_pfl.models import Forward

IN, CLASSES, SEED, WIDTH = 3, 3, 2, 3
RATE, MOMENTUM, EPOCHS, BATCH = 0.2, 0.6, 2, 4
BATCHES = {"epochs": EPOCHS, "batch_size": BATCH, "seed": SEED}
SIZES = (5, 7, 4, 0)  # with partial batches, and a client without examples
COHORTS = ((0, 1), (0, 2, 3), (1, 0))
XS, YS = drawn(SIZES, IN, CLASSES)
SHARES = [np.bincount(y, minlength=CLASSES) / max(len(y), 1) for y in YS]
HEAD = ("head/bias", "head/kernel")


def run(name, **options):
    """Returns a process and its clients, with the data above."""
    local = LocalTraining(
        tff.learning.optimizers.build_sgdm(RATE, MOMENTUM), epochs=EPOCHS, batch_size=BATCH
    )
    model = linear_network(IN, has_bias=True, width=WIDTH)
    process = traced(name, model, local, seed=SEED, **options)
    clients = clients_with(process, XS, YS)
    return process, clients


def routed(w, condition, x):
    """Returns the features that leave the valve."""
    rows = np.maximum(condition @ w["valve/kernel"] + w["valve/bias"], 0).reshape(2, WIDTH)
    rows = rows - np.mean(rows, axis=1, keepdims=True)
    rows = rows / np.sqrt(np.mean(rows**2, axis=1, keepdims=True) + 1e-5)
    gamma, beta = (rows.ravel() * w["valve/scale"] + w["valve/shift"]).reshape(2, WIDTH)
    return np.maximum((gamma + 1) * (x @ w["body/kernel"]) + beta, 0)


def logits_of(w, condition, x):
    return routed(w, condition, x) @ w["head/kernel"] + w["head/bias"]


def unit(rows):
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-6)


def client_round(i, shared, head, round_num, angle=1.0, lambda_=0.01, mu=0.1):
    """Returns all weights of a client after training."""
    weights, velocity = shared | head, dict.fromkeys(shared | head, 0.0)
    received = shared["embeddings/table"]
    for rows in batches_of(SIZES[i], i, round_num, **BATCHES):
        x, y = XS[i][rows], YS[i][rows]

        def loss(w, x=x, y=y):
            guided = routed(w, np.mean(received, axis=0), x)
            value = cross_entropy(logits_of(w, SHARES[i] @ received, x), y)[0]
            value += angle * cross_entropy(unit(guided) @ unit(w["embeddings/table"]).T, y)[0]
            value += lambda_ * np.mean(np.linalg.norm(guided - received[y], axis=1))
            decayed = [w[name] for name in w if name.startswith(("valve", "embeddings"))]
            return value + mu / 2 * sum(np.sum(leaf**2) for leaf in decayed)

        gradient = slopes(loss, weights)
        velocity = {name: MOMENTUM * velocity[name] + gradient[name] for name in weights}
        weights = {name: weights[name] - RATE * velocity[name] for name in weights}
    return weights


@pytest.mark.thorough_but_one
@pytest.mark.parametrize("options", [{}, {"angle": 0.5, "lambda_": 0.8, "mu": 0.02}])
def test_rounds_agree_with_numpy(options):
    process, clients = run("gpfl", **options)
    shared = by_name(process.initialize().algorithm.weights)
    heads = [by_name(client.state.head) for client in clients]
    for round_num, (cohort, state, now, _) in enumerate(each_round(process, clients, COHORTS)):
        new = {i: client_round(i, shared, heads[i], round_num, **options) for i in cohort}
        heads = [{name: new.get(i, head)[name] for name in HEAD} for i, head in enumerate(heads)]
        sizes = [SIZES[i] for i in cohort]
        shared = {
            name: np.average([new[i][name] for i in cohort], axis=0, weights=sizes)
            for name in shared
        }
        assert_close(by_name(state.algorithm.weights), shared)
        assert_close([by_name(client.state.head) for client in now], heads)
    for i, weights in enumerate(process.personalize(state, now)):
        found = process._algorithm.evaluated_model.apply(weights, np.float32(XS[0]))
        condition = SHARES[i] @ shared["embeddings/table"]
        assert_close(found, logits_of(shared | heads[i], condition, XS[0]))


@pytest.mark.thorough
def test_without_valve_and_guidance_it_is_fedper(monkeypatch):
    module = sys.modules["tff_pfl.algorithms.gpfl"]
    monkeypatch.setattr(module, "along", lambda path, features: features)
    process, clients = run("gpfl", angle=0.0, lambda_=0.0)
    found, clients = last(run_rounds(process, clients, COHORTS[:2]))
    process, others = run("fedper")
    expected, others = last(run_rounds(process, others, COHORTS[:2]))
    assert_close(found.algorithm.weights["body"], expected.algorithm.weights["body"], 1e-6)
    assert_close([client.state for client in clients], [client.state for client in others], 1e-6)


def test_distance_has_a_finite_gradient_that_leaves_embeddings_alone():
    embeddings = tf.constant([[1.0, 2.0], [3.0, 1.0]])
    same = {name: tf.zeros([4]) for name in ("bias", "scale", "shift")}  # changes no feature
    valve = collections.OrderedDict(kernel=tf.zeros([2, 4]), **same)
    weights = {"valve": valve, "embeddings": {"table": embeddings}}
    features, labels = tf.constant([[1.0, 2.0], [3.0, 5.0]]), tf.constant([0, 1])
    batch = Batch(x=features, y=labels, weight=tf.ones([2]), seed=tf.zeros([2], tf.int32))
    term = guidance(embeddings, angle=0.0, lambda_=1.0)
    with tf.GradientTape() as tape:
        tape.watch((features, embeddings))
        distances = term(Forward(None, features, weights), batch)
    assert_close(distances, np.array([0.0, 4.0]))
    moved, fixed = tape.gradient(distances, (features, embeddings))
    assert_close(moved, np.array([[0.0, 0.0], [0.0, 1.0]]))
    assert_close(fixed, np.zeros([2, 2]))
