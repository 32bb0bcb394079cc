"""Tests the `features` of models: the inputs of a linear head."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.models.keras import test_adapter, test_segments
from tests.models.keras.test_adapter import layers, pure, sequential
from tests.quadratics import quadratic_model
from tff_pfl.models import TASKS, layer_parts, linear, linear_head_shape, multi_branch, two_exits

X = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
SEED = tf.constant([1, 2])


def assert_head_maps_features_to_outputs(model, x):
    weights = model.init(0)
    for training in (False, True):
        features = model.features(weights, x, training=training, seed=SEED)
        outputs = model.apply(weights, x, training=training, seed=SEED)
        found = linear(weights[model.layers[-1]], features)
        np.testing.assert_allclose(found, outputs, rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
def test_linear_head_maps_features_to_outputs():
    deep = sequential(lambda: layers.Dense(5, "relu"), lambda: layers.Dropout(0.5))
    for keras_model_fn in (
        test_adapter.branches,
        test_adapter.nested,
        test_adapter.deferred,
        test_adapter.parts_made_in_reverse,
        test_adapter.predictor_made_before_its_encoder,
        deep,
    ):
        assert_head_maps_features_to_outputs(pure(keras_model_fn), X)


def model_ending_in(*makers):
    """Returns a function that builds a model of a dense layer and the layers of `makers`."""
    return lambda: tf.keras.Sequential(
        [tf.keras.Input((4,)), layers.Dense(5, name="body"), *(make() for make in makers)]
    )


class Cosine(layers.Dense):
    """A subclass of a linear layer that is not linear."""

    def call(self, x):
        return tf.matmul(tf.nn.l2_normalize(x, -1), tf.nn.l2_normalize(self.kernel, 0))


def test_models_without_a_linear_head_have_no_features():
    for keras_model_fn in (
        model_ending_in(lambda: Cosine(3)),
        test_segments.doubled,
        test_adapter.Subclassed,
        model_ending_in(lambda: layers.Dense(3, "tanh")),
        model_ending_in(lambda: layers.Dense(3), layers.ReLU),
        model_ending_in(lambda: layers.Reshape((5, 1)), lambda: layers.Dense(1), layers.Flatten),
    ):
        assert pure(keras_model_fn).features is None


def test_parts_of_a_model_have_its_features():
    model = pure(test_adapter.mlp)
    weights = model.init(0)
    expected = model.features(weights, X, training=False, seed=None)
    parts = layer_parts(model)
    body, head = parts.split(weights)
    for part, own in (
        (parts.shared_model(model, head), body),
        (parts.personal_model(model, body), head),
    ):
        found = part.features(own, X, training=False, seed=None)
        np.testing.assert_array_equal(found, expected)
    branched = multi_branch(model, 1)
    stacked = tf.nest.map_structure(lambda leaf: leaf[tf.newaxis], weights)
    found = branched.weights_model(tf.ones([1, 1])).features(stacked, X)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert two_exits(model).gated_model(0.5).features is None


def test_linear_head_needs_no_bias():
    kernel = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
    np.testing.assert_allclose(linear({"kernel": kernel}, X), X @ kernel, rtol=1e-5)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            lambda: dataclasses.replace(quadratic_model(2, 1), task=TASKS["classification"]()),
            "model 'quadratic' has no `features`",
        ),
        (lambda: quadratic_model(2, 1), "needs a class label and class logits .* is 'outputs'"),
    ],
)
def test_linear_head_shape_refuses_other_models(model, message):
    with pytest.raises(ValueError, match=f"FedPAC .*{message}"):
        linear_head_shape(model(), "FedPAC")
