"""Tests models of `tff.learning`, and what they need: regularizers and losses that are sums."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_pfl
from tests.federation import local_sgd
from tests.marks import together
from tff_pfl.arguments.kinds import KindError
from tff_pfl.local import Batch, Examples, exact_gradient
from tff_pfl.models import Task, from_keras, from_tff, tasks

RNG = np.random.default_rng(0)
X = RNG.normal(size=(5, 3)).astype(np.float32)
Y = RNG.normal(size=(5, 2)).astype(np.float32)
SPEC = (tf.TensorSpec([None, 3]), tf.TensorSpec([None, 2]))
BATCH = Batch(tf.constant(X), tf.constant(Y), tf.ones([5]), tf.zeros([2], tf.int32))
WEIGHT = np.array([1, 1, 0, 1, 0], np.float32)


def network():
    return tf.keras.Sequential(
        [
            tf.keras.layers.Dense(4, "tanh", kernel_regularizer="l2", input_shape=(3,), name="a"),
            tf.keras.layers.Dense(2, bias_regularizer=tf.keras.regularizers.L1(0.5), name="b"),
        ]
    )


def values(weights):
    return [weight for layer in weights.values() for weight in layer.values()]


def test_gradients_contain_the_penalties_of_weights():
    model = from_keras(network, input_shape=(3,), task=tasks.TASKS["regression"]())
    weights, keras_model = model.init(0), network()
    weights["b"]["bias"] = tf.constant([0.3, -0.2])
    keras_model.set_weights(values(weights))
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(keras_model(X) - Y)) + tf.add_n(keras_model.losses)
    expected = tape.gradient(loss, keras_model.trainable_weights)
    gradient, totals = model.gradient(weights, BATCH)
    exact = exact_gradient(model, weights, Examples(X, Y, np.int32(5)), batch_size=2)
    for found in (gradient, exact.gradient):
        for one, other in zip(values(found), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        totals["loss"].mean, np.mean(np.square(keras_model(X) - Y)), rtol=1e-5
    )


@pytest.mark.thorough
def test_sum_of_losses_moves_training_steps_alone():
    """Exact gradients stay those of the mean."""
    task = tasks.TASKS["regression"]()
    means = from_keras(network, input_shape=(3,), task=task)
    sums = from_keras(network, input_shape=(3,), task=Task("s", task.example_loss, reduction="sum"))
    weights, batch = means.init(0), BATCH._replace(weight=tf.constant(WEIGHT))
    with tf.GradientTape() as tape:
        tape.watch(weights)
        penalty = means.penalty(weights)
    of_penalty = values(tape.gradient(penalty, weights, unconnected_gradients="zero"))
    of_mean, of_sum = (values(m.gradient(weights, batch)[0]) for m in (means, sums))
    for mean, sum_, own in zip(of_mean, of_sum, of_penalty, strict=True):
        np.testing.assert_allclose(sum_ - own, 3 * (mean - own), rtol=1e-4, atol=1e-5)
    examples = Examples(X, Y, np.int32(4))
    exact = [values(exact_gradient(m, weights, examples).gradient) for m in (means, sums)]
    for one, other in zip(*exact, strict=True):
        np.testing.assert_array_equal(one, other)


def model_fn(loss=tf.keras.losses.MeanSquaredError):
    return tff.learning.models.from_keras_model(
        network(),
        loss=loss(),
        input_spec=SPEC,
        metrics=[tf.keras.metrics.MeanAbsoluteError(name="mae")],
    )


def assert_measures_outputs(model, weights, outputs):
    """Asserts that the loss and the metric of the rows that count are NumPy's."""
    batch = BATCH._replace(weight=tf.constant(WEIGHT))
    sums, errors = model.finalized(model.sums(weights, batch)), (outputs - Y)[WEIGHT > 0]
    np.testing.assert_allclose(sums["loss"].mean, np.square(errors).mean(), rtol=1e-5)
    np.testing.assert_allclose(sums["mae"].mean, np.abs(errors).mean(), rtol=1e-5)


@pytest.mark.thorough
def test_model_function_gives_layers_loss_and_metrics():
    model = from_tff(model_fn)
    assert model.layers == ("a", "b")
    weights = model.init(0)
    keras_model = network()
    keras_model.set_weights(values(weights))
    assert_measures_outputs(model, weights, keras_model(X).numpy())
    assert model.penalty is not None


def functional(loss_fn):
    start = (np.ones([3, 2], np.float32), np.zeros([2], np.float32))

    @tf.function
    def predict(weights, x, training):
        del training
        (kernel, bias), (scale,) = weights
        return scale * (x @ kernel + bias)

    return tff.learning.models.FunctionalModel(
        initial_weights=(start, (np.float32(2.0),)),
        predict_on_batch_fn=predict,
        loss_fn=loss_fn,
        metrics_fns=tff.learning.metrics.create_functional_metric_fns(
            lambda: collections.OrderedDict(mae=tf.keras.metrics.MeanAbsoluteError())
        ),
        input_spec=SPEC,
    )


@pytest.mark.thorough
def test_functional_model_gives_weights_loss_and_metrics():
    def loss(output, label, sample_weight=None):
        del sample_weight
        return tf.reduce_mean(tf.square(output - label))

    model = from_tff(functional(loss))
    assert model.layers == ("weight_0", "weight_1")
    assert model.task.quantities["mae"].better == -1
    assert_measures_outputs(model, model.init(0), 2 * X @ np.ones([3, 2], np.float32))
    examples_type = tff_pfl.FederatedDataset.from_client_arrays([(X, Y, X, Y)]).examples_type
    tff_pfl.compose(tff_pfl.make("fedavg", model, local_sgd()), examples_type)


@pytest.mark.thorough
@pytest.mark.parametrize("reduce", [tf.reduce_mean, tf.reduce_sum])
def test_gradients_of_functional_models_are_those_of_tff(reduce):
    learned = functional(lambda output, label, sample_weight=None: reduce(abs(output - label)))
    model = from_tff(learned)
    start = tf.nest.map_structure(tf.constant, learned.initial_weights)
    with tf.GradientTape() as tape:  # as build_weighted_fed_avg does
        tape.watch(start)
        loss = learned.loss(learned.predict_on_batch(start, X, True), Y)
    expected = tape.gradient(loss, start[0])
    for found, weight in zip(
        values(model.gradient(model.init(0), BATCH)[0]), expected, strict=True
    ):
        np.testing.assert_allclose(found, weight, rtol=1e-5)


@together("loss", [lambda y, z: tf.reduce_max(abs(y - z)), lambda y, z: 0 * tf.reduce_sum(y - z)])
def test_other_losses_of_functional_models_are_refused(loss):
    learned = functional(lambda output, label, sample_weight=None: loss(label, output))
    with pytest.raises(ValueError, match="neither the mean nor the sum over examples"):
        from_tff(learned)


@together("model", [network, network(), 3])
def test_from_tff_refuses_other_models(model):
    with pytest.raises(KindError, match="from_tff takes|from_keras_model, got"):
        from_tff(model)
