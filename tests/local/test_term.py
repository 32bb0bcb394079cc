"""Tests terms of losses, against the gradient of the whole loss, and sums over examples."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.federation import assert_close, assert_equal, local_sgd
from tff_pfl.local import Batch, ClientContext, Examples, sum_over
from tff_pfl.models import TASKS, from_keras, layer_parts, linear

layers = tf.keras.layers
RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 5)).astype(np.float32)
Y = np.array([0, 2, 1, 1, 0, 2], np.int32)
WEIGHT = np.array([1, 1, 1, 1, 0, 0], np.float32)  # two rows of padding
SEED = tf.constant([3, 4])
BATCH = Batch(tf.constant(X), tf.constant(Y), tf.constant(WEIGHT), SEED)
CENTRES = tf.constant(RNG.normal(size=(3, 4)), tf.float32)


def model_of(*body, **options):
    """Makes a network with a linear head on four features."""

    def network():
        return tf.keras.Sequential(
            [
                layers.Dense(7, "tanh", input_shape=(5,), name="first", kernel_regularizer="l2"),
                *(layer() for layer in body),
                layers.Dense(4, "tanh", name="second"),
                layers.Dense(3, name="head"),
            ]
        )

    return from_keras(network, input_shape=(5,), **options)


def pull(forward, batch):
    """Pulls features to the centres of their classes."""
    return tf.reduce_sum(tf.square(forward.features - tf.gather(CENTRES, batch.labels)), axis=1)


def expected_gradient(model, weights, share):
    """Computes the gradient of the loss with `pull`, written out."""
    with tf.GradientTape() as tape:
        tape.watch(weights)
        features = model.features(weights, BATCH.x, training=True, seed=SEED)
        logits = linear(weights["head"], features)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(BATCH.y, logits)
        losses += tf.reduce_sum(tf.square(features - tf.gather(CENTRES, Y)), axis=1)
        loss = tf.reduce_sum(share * losses) + model.penalty(weights)
    return tape.gradient(loss, weights)


def dropout():
    return layers.Dropout(0.5)


@pytest.mark.parametrize("body", [(), (dropout,)])
@pytest.mark.parametrize("segments", [1, 2])
def test_gradient_has_the_term_the_loss_and_the_penalty(body, segments):
    model = model_of(*body, segments=segments)
    weights = model.init(0)
    found, totals, _ = model.training_gradient(weights, BATCH, term=pull)
    assert_close(found, expected_gradient(model, weights, WEIGHT / 4), 1e-6)
    assert_close(totals, model.training_gradient(weights, BATCH)[1], 1e-6)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_weights_of_examples_and_the_reduction_hold_for_the_term(reduction):
    task = dataclasses.replace(TASKS["classification"](), reduction=reduction)
    model = model_of(task=task)
    weights, of_examples = model.init(0), tf.constant([2.0, 1.0, 1.0, 0.5, 9.0, 9.0])
    batch = BATCH._replace(y={"label": BATCH.y, "sample_weight": of_examples})
    found, _, _ = model.training_gradient(weights, batch, term=pull)
    share = WEIGHT * of_examples / (4.5 if reduction == "mean" else 1.0)
    assert_close(found, expected_gradient(model, weights, share), 1e-6)


def test_statistics_and_features_come_from_one_pass():
    model = model_of(lambda: layers.BatchNormalization(name="norm"))
    weights = model.init(0)
    seen = []

    def term(forward, batch):
        seen.append(forward)
        return tf.zeros_like(batch.weight)

    found = model.training_gradient(weights, BATCH, term=term)
    assert_close(found, model.training_gradient(weights, BATCH), 1e-6)
    (forward,) = seen
    assert_close(linear(weights["head"], forward.features), forward.outputs, 1e-6)
    assert_equal(forward.weights, found[2])
    outputs, _ = model.training_pass(weights, X, weight=WEIGHT, seed=SEED)
    assert_close(forward.outputs, outputs, 1e-6)


def test_derived_models_have_terms():
    model = model_of(lambda: layers.BatchNormalization(name="norm"))
    parts, weights = layer_parts(model), model.init(0)
    body, head = parts.split(weights)
    found, _, assigned = parts.shared_model(model, head).training_gradient(body, BATCH, term=pull)
    whole, _, expected = model.training_gradient(weights, BATCH, term=pull)
    assert_close(found, parts.split(whole)[0], 1e-6)
    assert_close(assigned, parts.split(expected)[0], 1e-6)


def train(model, **options):
    """Trains a model for a pass over the examples of `BATCH`, at a rate of 0.5."""
    examples = Examples(tf.constant(X), tf.constant(Y), tf.constant(4))
    context = ClientContext(tf.constant(0), tf.constant(0), SEED)
    return local_sgd(batch_size=6).train(model, model.init(0), examples, context, **options)


def test_training_with_a_term_of_0_is_training_without():
    model = model_of(dropout)
    found = train(model, term=lambda forward, batch: tf.zeros_like(batch.weight))
    assert_close(found, train(model), 1e-6)


def test_step_descends_the_loss_with_the_term():
    model = model_of()
    weights = model.init(0)
    gradient = expected_gradient(model, weights, WEIGHT / 4)
    expected = tf.nest.map_structure(lambda w, g: w - 0.5 * g, weights, gradient)
    assert_close(train(model, term=pull).weights, expected, 1e-6)


def test_wrong_terms_are_refused():
    model = model_of()
    with pytest.raises(ValueError, match=r"'term' of shape \(\)"):
        train(model, term=lambda forward, batch: tf.reduce_sum(forward.features))
    with pytest.raises(ValueError, match="either term or gradient"):
        train(model, term=pull, gradient=lambda *_: None)


@pytest.mark.parametrize("size", [0, 1, 5, 6])
def test_sums_over_examples_count_each_example_once(size):
    model = model_of()
    of_examples = np.float32([2, 1, 1, 0.5, 9, 9])
    y = {"label": tf.constant(Y), "sample_weight": tf.constant(of_examples)}

    def sums(batch):
        weight = model.example_weight(batch)
        of_class = tf.one_hot(batch.labels, 3) * weight[:, tf.newaxis]
        return tf.matmul(of_class, batch.x, transpose_a=True), tf.reduce_sum(of_class, axis=0)

    found = sum_over(Examples(tf.constant(X), y, tf.constant(size)), sums, batch_size=4)
    of_class = np.eye(3)[Y[:size]] * of_examples[:size, np.newaxis]
    assert_close(found, (of_class.T @ X[:size], np.sum(of_class, axis=0)), 1e-6)


def test_weights_that_a_term_holds_are_constants_though_they_are_those_that_are_trained():
    model = model_of()
    weights = model.init(0)

    def product(held):
        def term(forward, batch):
            features = model.features(held, batch.x, training=False, seed=batch.seed)
            return tf.reduce_sum(forward.features * features, axis=1)

        return term

    copies = tf.nest.map_structure(lambda leaf: tf.constant(leaf.numpy()), weights)
    found, expected = (
        model.training_gradient(weights, BATCH, term=product(held))[0] for held in (weights, copies)
    )
    assert_equal(found, expected)
