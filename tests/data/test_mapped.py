"""Tests data sets of which the inputs are the results of a function."""

import numpy as np
import pytest
import tensorflow as tf

from tests.marks import together
from tff_pfl.arguments.ranges import RangeError
from tff_pfl.data import ExamplesError, FederatedDataset

X = np.random.default_rng(0).integers(0, 256, (11, 2, 2)).astype(np.uint8)


def dataset():
    clients = [(X[:4], [0, 1, 2, 0], X[4:6], [1, 1]), (X[6:9], [2, 0, 1], X[9:], [0, 2])]
    return FederatedDataset.from_client_arrays(clients, num_classes=3, name="toy")


def halved(x):
    return x.reshape(len(x), 4) / np.float32(2)


@together("batch_size", [1, 4, 11, 100])
@together("function", [halved, lambda x: tf.reshape(tf.cast(x, tf.float32), [-1, 4]) / 2])
def test_every_input_is_mapped_once(function, batch_size):
    before = dataset()
    after = before.map(function, batch_size=batch_size)
    np.testing.assert_array_equal(after.x, halved(before.x))
    assert after.x.dtype == np.float32 and after.image_shape == (4,)
    np.testing.assert_array_equal(after.y, before.y)
    assert after.partition is before.partition
    assert (after.name, after.num_classes) == ("toy", 3)
    np.testing.assert_array_equal(after.examples(1, "test").x, halved(X[9:]))


def test_keras_models_are_called_in_inference():
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            layers.Rescaling(1 / 255),
            layers.Flatten(),
            layers.BatchNormalization(epsilon=0.0, moving_variance_initializer="ones"),
            layers.Dropout(0.9),
        ]
    )
    np.testing.assert_allclose(dataset().map(model).x, X.reshape(11, 4) / 255, rtol=1e-6)


def test_other_functions_change_the_fingerprint_of_inputs():
    one, again, other = (
        dataset().map(function) for function in (halved, halved, lambda x: halved(x) + 1)
    )
    assert one.fingerprint == again.fingerprint == other.fingerprint != dataset().fingerprint
    assert one.inputs_fingerprint == again.inputs_fingerprint != other.inputs_fingerprint


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x.mean(), r"one result for each row, got shape \(\) for 4 rows"),
        (lambda x: x - x.mean(axis=0), "depend on the other rows of a batch"),
        (lambda x: x / np.float32(0), "is not finite"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
def test_results_that_no_model_can_be_trained_on_are_refused(function, message):
    with pytest.raises(ExamplesError, match=message):
        dataset().map(function, batch_size=4)


def test_batch_size_must_be_positive():
    with pytest.raises(RangeError, match="batch_size"):
        dataset().map(halved, batch_size=0)
