"""Tests `tff_pfl.local.exact`."""

import numpy as np
import pytest
import tensorflow as tf

from tests.federation import assert_close
from tests.models.keras.test_adapter import layers, sequential
from tests.quadratics import quadratic_examples, quadratic_model, spd, vector_of, weights_of
from tff_pfl.local import Examples, evaluate, exact_gradient
from tff_pfl.models import from_keras

SIZE = 7


@pytest.fixture(scope="module")
def model():
    hidden = lambda: layers.Dense(5, "tanh"), lambda: layers.Dropout(0.5)
    return from_keras(sequential(*hidden, shape=(3,)), input_shape=(3,))


def make_examples(size=SIZE, capacity=SIZE):
    """Returns examples of a client, whose padding is not valid."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=[capacity, 3]).astype(np.float32)
    y = rng.integers(3, size=[capacity]).astype(np.int32)
    x[size:], y[size:] = np.nan, -1
    return Examples(x, y, np.int32(size))


@pytest.mark.thorough
@pytest.mark.parametrize(("batch_size", "capacity"), [(1, SIZE), (3, 12), (50, SIZE)])
def test_exact_gradient_is_of_the_mean_over_all_examples(model, batch_size, capacity):
    weights = model.init(1)
    examples = make_examples(capacity=capacity)
    x, y = examples.x[:SIZE], examples.y[:SIZE]
    with tf.GradientTape() as tape:
        tape.watch(weights)
        logits = model.apply(weights, x, training=False, seed=None)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
        loss = tf.reduce_mean(losses)
    expected = tape.gradient(loss, weights)

    actual = exact_gradient(model, weights, examples, batch_size=batch_size)
    np.testing.assert_allclose(actual.loss, loss, rtol=1e-5)
    np.testing.assert_allclose(actual.totals["loss"].total, tf.reduce_sum(losses), rtol=1e-5)
    assert_close(actual.gradient, expected)

    totals = evaluate(model, weights, examples, batch_size=batch_size)
    assert list(totals) == ["loss", "accuracy"]
    np.testing.assert_allclose(totals["loss"].total, tf.reduce_sum(losses), rtol=1e-5)
    assert totals["accuracy"].total == np.sum(np.argmax(logits, axis=-1) == y)
    assert totals["loss"].count == totals["accuracy"].count == SIZE


def test_gradient_and_totals_are_zero_without_examples(model):
    for capacity in (0, 5):
        result = exact_gradient(model, model.init(1), make_examples(0, capacity))
        assert result.loss == 0.0
        assert not any(np.any(leaf) for leaf in tf.nest.flatten(result))


def test_exact_gradient_of_a_quadratic_matches_numpy():
    a, c, w = spd(3, seed=0), np.array([1.0, -2.0, 0.5]), np.array([0.3, 0.2, -0.1])
    result = exact_gradient(
        quadratic_model(2, 1), weights_of(w, 2, 1), quadratic_examples(a, c, 0.7)
    )
    np.testing.assert_allclose(vector_of(result.gradient), a @ (w - c), rtol=1e-5)
    np.testing.assert_allclose(result.loss, (w - c) @ a @ (w - c) / 2 + 0.7, rtol=1e-5)
