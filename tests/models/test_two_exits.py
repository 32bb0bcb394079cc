"""Tests models with two exits: weights, outputs, the joint loss and the gate."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.federation import IMAGE_SHAPE, assert_close, assert_equal, tiny_model
from tests.models.keras.test_adapter import layers, sequential
from tff_pfl.local import Batch, trees
from tff_pfl.models import TASKS, from_keras, two_exits

MODEL = tiny_model()
BOTH = two_exits(MODEL)
WEIGHTS = BOTH.init(3)
X = np.random.default_rng(0).integers(0, 256, (6, *IMAGE_SHAPE)).astype(np.uint8)
Y = np.array([0, 1, 2, 0, 1, 2], np.int32)
BATCH = Batch(X, Y, np.ones(6, np.float32), np.zeros(2, np.int32))


def exits():
    """Returns the model's weights with the client exit, and with the server exit."""
    server = {name: WEIGHTS[name] for name in MODEL.layers}
    return {**server, "head": WEIGHTS["client_head"]}, server


def test_exits_start_differently():
    assert list(WEIGHTS) == ["dense1", "head", "client_head"]
    assert_equal(exits()[1], MODEL.init(3))
    assert WEIGHTS["client_head"]["kernel"].shape == WEIGHTS["head"]["kernel"].shape
    assert np.max(np.abs(WEIGHTS["client_head"]["kernel"] - WEIGHTS["head"]["kernel"])) > 0.1


def test_sides_split_weights_between_client_and_server():
    server, client = BOTH.sides.split(WEIGHTS)
    assert (list(server), list(client)) == (["head"], ["dense1", "client_head"])
    assert_equal(BOTH.sides.merge(server, client), WEIGHTS)


def test_outputs_equal_the_models_of_each_exit():
    for found, weights in zip(BOTH.outputs(WEIGHTS, X), exits(), strict=True):
        assert_close(found, MODEL.apply(weights, X))


PENALIZED = dataclasses.replace(MODEL, penalty=lambda weights: trees.dot(weights, weights))


@pytest.mark.parametrize("model", [MODEL, PENALIZED], ids=["plain", "penalized"])
def test_joint_loss_and_gradient_are_weighted_means(model, gamma=0.3):
    gradient, totals = two_exits(model).joint_model(gamma).gradient(WEIGHTS, BATCH)
    client, server = (model.gradient(weights, BATCH) for weights in exits())
    mixed = gamma * client[1]["loss"].total + (1 - gamma) * server[1]["loss"].total
    np.testing.assert_allclose(totals["loss"].total, mixed, rtol=1e-6)
    assert_close(gradient["client_head"], trees.scale(client[0]["head"], gamma))
    assert_close(gradient["head"], trees.scale(server[0]["head"], 1 - gamma))
    body = trees.add(
        trees.scale(client[0]["dense1"], gamma), trees.scale(server[0]["dense1"], 1 - gamma)
    )
    assert_close(gradient["dense1"], body)


def test_joint_model_has_metrics_of_both_exits():
    totals = BOTH.joint_model(0.5).totals(WEIGHTS, BATCH)
    client, server = (MODEL.totals(weights, BATCH) for weights in exits())
    assert totals["accuracy"].total == server["accuracy"].total
    assert totals["client_exit_accuracy"].total == client["accuracy"].total


def test_gate_uses_sure_answers_of_the_client_exit():
    client, server = map(np.asarray, BOTH.outputs(WEIGHTS, X))
    probabilities = np.exp(client) / np.sum(np.exp(client), axis=1, keepdims=True)
    entropies = -np.sum(probabilities * np.log(probabilities), axis=1)
    threshold = np.sort(entropies)[2] + 1e-4  # Three of six answers are sure.
    found = BOTH.gated_model(threshold).apply(BOTH.gated(WEIGHTS, is_open=True), X)
    expected = np.where(entropies[:, np.newaxis] <= threshold, client, server)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert np.sum(np.all(np.isclose(found, client), axis=1)) == 3


def test_extreme_thresholds_choose_one_exit():
    for threshold, exit_ in ((-1.0, 1), (np.log(3) + 1e-6, 0), (np.inf, 0)):
        found = BOTH.gated_model(threshold).apply(BOTH.gated(WEIGHTS, is_open=True), X)
        np.testing.assert_array_equal(found, BOTH.outputs(WEIGHTS, X)[exit_])


def test_very_sure_exits_keep_numbers_finite():
    weights = BOTH.gated(trees.scale(WEIGHTS, 1e6), is_open=True)
    gradient, totals = BOTH.gated_model(0.1).gradient(weights, BATCH)
    assert bool(trees.all_finite(gradient, totals))
    assert float(gradient["gate"]["open"]) == 0.0


@pytest.mark.parametrize("weight_decay", [0.0, 0.5])
def test_weight_decay_neither_opens_nor_closes_the_gate(weight_decay):
    for is_open, exit_ in ((False, 1), (True, 0)):
        weights = BOTH.gated(WEIGHTS, is_open=is_open)
        gate = trees.scale(weights["gate"], (1.0 - weight_decay) ** 10)
        found = BOTH.gated_model(np.inf).apply({**weights, "gate": gate}, X)
        np.testing.assert_array_equal(found, BOTH.outputs(WEIGHTS, X)[exit_])


def test_gated_model_refuses_one_logit():
    def network():
        return tf.keras.Sequential([layers.Flatten(input_shape=IMAGE_SHAPE), layers.Dense(1)])

    both = two_exits(from_keras(network, input_shape=IMAGE_SHAPE, task=TASKS["binary"]()))
    weights = both.init(0)
    both.outputs(weights, X)
    with pytest.raises(ValueError, match="have one logit, so the entropy of the softmax is always"):
        both.gated_model(0.1).apply(both.gated(weights, is_open=True), X)


def test_gated_model_starts_as_the_server_exit():
    model = BOTH.gated_model(np.inf)
    assert model.layers == ("dense1", "head", "client_head", "gate")
    assert_close(model.apply(model.init(3), X), MODEL.apply(MODEL.init(3), X))
    assert tf.nest.map_structure(np.shape, model.init(0))["gate"] == {"open": ()}


@pytest.mark.parametrize("taken", ["client_head", "gate"])
def test_two_exits_refuses_names_that_it_needs(taken):
    network = sequential(lambda: layers.Dense(3, name=taken))
    with pytest.raises(ValueError, match=f"Layer '{taken}' has a name that the second exit needs"):
        two_exits(from_keras(network, input_shape=(4,)))
