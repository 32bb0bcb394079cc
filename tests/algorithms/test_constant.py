"""Tests constant predictions against scikit-learn's dummies and closed forms."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from sklearn.dummy import DummyClassifier, DummyRegressor

import tff_pfl
from tests.federation import local_sgd
from tff_pfl.local import Examples, metric_sums
from tff_pfl.models.example_weights import with_weights
from tff_pfl.testing import EagerProcess

RNG = np.random.default_rng(0)
SIZE, CLASSES, TIME = 9, 3, 4
X = RNG.normal(size=(SIZE + 2, TIME)).astype(np.float32)
X[SIZE:] = np.nan  # padding


def model_of(task, *shape):
    def network():
        number = int(np.prod(shape))
        return tf.keras.Sequential(
            [
                tf.keras.Input((TIME,)),
                tf.keras.layers.Dense(number, name="head"),
                tf.keras.layers.Reshape(shape),
            ]
        )

    return tff_pfl.from_keras(network, input_shape=(TIME,), task=task)


def predicted(model, y, size=SIZE):
    """Returns the outputs and the metrics of a client's constant model on its examples."""
    algorithm = tff_pfl.make("constant", model, local_sgd())
    process, evaluated = EagerProcess(algorithm), algorithm.evaluated_model
    examples = Examples(X[: len(tf.nest.flatten(y)[0])], y, np.int32(size))
    client = tff_pfl.Client(np.int32(0), process.initialize_client(0), examples)
    (weights,) = process.personalize(process.initialize(), [client])
    outputs = evaluated.apply(weights, X, training=False, seed=None).numpy()
    assert (outputs == outputs[0]).all() and len(outputs) == len(X)
    sums = metric_sums(evaluated, weights, examples)
    means = {name: float(mean.mean) for name, mean in evaluated.finalized(sums).items()}
    metrics = process.next(process.initialize(), [client]).metrics["train"]
    assert size == 0 or metrics["loss"] == pytest.approx(means["loss"])
    return outputs[0], means


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("task", "shape", "high"),
    [
        ("classification", (CLASSES,), CLASSES),
        ("binary", (1,), 2),
        ("regression", (1,), 9),
        ("sequence", (TIME, CLASSES), CLASSES),
    ],
)
def test_whole_weights_are_repeated_rows(task, shape, high):
    y = RNG.integers(0, high, (SIZE + 2, TIME) if task == "sequence" else SIZE + 2)
    y = y.astype(np.float32 if task == "regression" else np.int32)
    times = np.array([2, 0, 1, 3, 1, 1, 0, 0, 1, 7, 7])  # the last two are padding
    model = model_of(task, *shape)
    weighted, means = predicted(model, with_weights(y, times.astype(np.float32)))
    repeated, others = predicted(model, np.repeat(y[:SIZE], times[:SIZE], axis=0))
    np.testing.assert_allclose(weighted, repeated, rtol=1e-6)
    assert means == pytest.approx(others, rel=1e-5, nan_ok=True)


def test_classes_have_their_smoothed_shares():
    y = np.array([2, 2, 1, 2, 1, 2, 2, 1, 1, 0, 0], np.int32)
    outputs, means = predicted(model_of("classification", CLASSES), y)
    np.testing.assert_allclose(np.exp(outputs), np.array([0 + 1, 4 + 1, 5 + 1]) / (SIZE + 3))
    dummy = DummyClassifier().fit(X[:SIZE], y[:SIZE])
    assert means["accuracy"] == pytest.approx(dummy.score(X[:SIZE], y[:SIZE]))
    empty, _ = predicted(model_of("classification", CLASSES), y, size=0)
    np.testing.assert_allclose(np.exp(empty), np.full(3, 1 / 3), rtol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("shape", [(), (1,)])
def test_binary_labels_have_their_log_odds(shape):
    y = np.array([1, 1, 0, 1, 1, 1, 0, 0, 1, 0, 0], np.int32).reshape(-1, *shape)
    outputs, means = predicted(model_of("binary", 1), y)
    assert outputs == pytest.approx(np.log((6 + 1) / (3 + 1)))
    assert means["accuracy"] == pytest.approx(6 / 9)


def test_each_of_several_labels_has_its_log_odds():
    y = RNG.integers(0, 2, (SIZE + 2, 3)).astype(np.int32)
    ones = y[:SIZE].sum(0)
    outputs, _ = predicted(model_of("multi_label", 3), y)
    np.testing.assert_allclose(outputs, np.log((ones + 1) / (SIZE - ones + 1)), rtol=1e-5)


def test_regression_has_the_mean():
    y = RNG.normal(100, 1, (SIZE + 2, 2)).astype(np.float32)
    y[SIZE:] = np.nan
    outputs, means = predicted(model_of("regression", 2), y)
    dummy = DummyRegressor().fit(X[:SIZE], y[:SIZE])
    np.testing.assert_allclose(outputs, dummy.predict(X[:1])[0], rtol=1e-6)
    assert means["r2"] == pytest.approx(0, abs=1e-4)
    assert predicted(model_of("regression", 2), y, size=0)[0].tolist() == [0, 0]


def test_tokens_have_their_smoothed_shares():
    ids = RNG.integers(0, 5, (SIZE + 2, TIME)).astype(np.int32)
    counts = np.bincount(ids[:SIZE].ravel(), minlength=5)
    counts[0] = 0  # padding
    outputs, means = predicted(model_of("sequence", TIME, 5), ids)
    expected = np.broadcast_to((counts + 1) / (counts.sum() + 5), (TIME, 5))
    np.testing.assert_allclose(np.exp(outputs), expected, rtol=1e-6)
    assert means["accuracy"] == pytest.approx(counts.max() / counts.sum())


def test_other_tasks_are_refused_by_name():
    own = tff_pfl.Task("survival", lambda y, z: tf.square(y - z[:, 0]))
    model = model_of(own, 1)
    with pytest.raises(ValueError, match="no best constant output for the task 'survival'"):
        tff_pfl.make("constant", model, local_sgd())
    unknown = dataclasses.replace(model_of("regression", 1), inputs=None)
    with pytest.raises(ValueError, match="needs the shape of inputs"):
        tff_pfl.make("constant", unknown, local_sgd())
