"""Features of models: what their last layer takes, where it is a linear head."""

import numpy as np
import pytest
import tensorflow as tf

from tests.models import test_keras, test_segments
from tests.models.test_keras import layers, pure, sequential
from tests.quadratics import quadratic_model
from tff_pfl.models import linear, linear_head_shape, multi_branch, partition, two_exits

X = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
SEED = tf.constant([1, 2])


def assert_head_makes_outputs_of_features(model, x):
    weights = model.init(0)
    for training in (False, True):
        features = model.features(weights, x, training=training, seed=SEED)
        outputs = model.apply(weights, x, training=training, seed=SEED)
        found = linear(weights[model.layers[-1]], features)
        np.testing.assert_allclose(found, outputs, rtol=1e-5, atol=1e-6)


def test_features_of_models_that_end_in_a_linear_head():
    deep = sequential(lambda: layers.Dense(5, "relu"), lambda: layers.Dropout(0.5))
    for keras_model_fn in (test_keras.branches, test_keras.nested, deep):
        assert_head_makes_outputs_of_features(pure(keras_model_fn), X)


def of(*makers):
    """A function that builds a model of a dense layer and those that `makers` make."""
    return lambda: tf.keras.Sequential(
        [tf.keras.Input((4,)), layers.Dense(5, name="body"), *(make() for make in makers)]
    )


class Cosine(layers.Dense):
    """No linear layer, although a kind of one."""

    def call(self, x):
        return tf.matmul(tf.nn.l2_normalize(x, -1), tf.nn.l2_normalize(self.kernel, 0))


def test_models_whose_outputs_are_not_known_to_be_those_of_a_linear_layer():
    for keras_model_fn in (
        of(lambda: Cosine(3)),
        test_segments.doubled,
        test_keras.Subclassed,
        test_keras.deferred,  # built when it is called
        of(lambda: layers.Dense(3, "tanh")),
        of(lambda: layers.Dense(3), layers.ReLU),
        of(lambda: layers.Reshape((5, 1)), lambda: layers.Dense(1), layers.Flatten),
    ):
        assert pure(keras_model_fn).features is None


def test_parts_of_models_have_the_features_of_the_whole():
    model = pure(test_keras.mlp)
    weights = model.init(0)
    expected = model.features(weights, X, training=False, seed=None)
    parts = partition(model)
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
    assert two_exits(model).gated_model().features is None


def test_a_head_without_bias():
    kernel = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
    np.testing.assert_allclose(linear({"kernel": kernel}, X), X @ kernel, rtol=1e-5)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: quadratic_model(2, 1), "needs the features of model 'quadratic'"),
        (
            lambda: pure(of(lambda: layers.Dense(1)), example_metrics={}),
            "one logit. Give its last layer a unit for each class",
        ),
    ],
)
def test_methods_that_need_a_linear_head_refuse_another(model, message):
    with pytest.raises(ValueError, match=f"FedPAC .*{message}"):
        linear_head_shape(model(), "FedPAC")
