"""Tests `tff_pfl.local.training` on quadratics with closed forms and on a small network."""

import types

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.marks import together
from tests.quadratics import quadratic_examples, quadratic_model, spd, vector_of, weights_of
from tff_pfl.local import AUGMENTATIONS, SCHEDULES, Examples, LocalTraining, trees
from tff_pfl.models import from_keras

A, C = spd(3, seed=1), np.array([1.0, -2.0, 0.5])
W = np.array([0.3, 0.2, -0.1])
ETA, K = 0.3, 5
EYE = np.eye(3)


def context(round_num=0, seed=(1, 2)):
    return types.SimpleNamespace(seed=tf.constant(seed), round_num=tf.constant(round_num))


def sgd(learning_rate=ETA, momentum=None, **kwargs):
    optimizer = tff.learning.optimizers.build_sgdm(learning_rate, momentum)
    return LocalTraining(**{"optimizer": optimizer, "epochs": K, "batch_size": 2, **kwargs})


SCHEDULED = tff.learning.optimizers.schedule_learning_rate(
    tff.learning.optimizers.build_sgdm(0.1), lambda step: 0.1
)


def train_quadratic(local, round_num=0, **kwargs):
    model, start = quadratic_model(2, 1), weights_of(W, 2, 1)
    return local.train(model, start, quadratic_examples(A, C, 1.0), context(round_num), **kwargs)


def contraction(matrix, power=K, eta=ETA):
    return np.linalg.matrix_power(EYE - eta * matrix, power)


def test_train_is_gradient_descent():
    expected = C + contraction(A) @ (W - C)
    np.testing.assert_allclose(vector_of(train_quadratic(sgd()).weights), expected, rtol=1e-5)


def test_epochs_can_be_overridden():
    expected = C + contraction(A, 2) @ (W - C)
    actual = train_quadratic(sgd(), epochs=2)
    np.testing.assert_allclose(vector_of(actual.weights), expected, rtol=1e-5)
    nothing = train_quadratic(sgd(), epochs=0)
    np.testing.assert_array_equal(vector_of(nothing.weights), W.astype(np.float32))
    assert nothing.totals["loss"].count == 0.0


def test_steps_can_replace_epochs():
    expected = C + contraction(A, 2) @ (W - C)
    actual = train_quadratic(sgd(epochs=None, steps=2))
    np.testing.assert_allclose(vector_of(actual.weights), expected, rtol=1e-5)


def test_reg_adds_a_proximal_term():
    mu, start = 0.7, weights_of(W, 2, 1)
    actual = train_quadratic(
        sgd(), reg=lambda weights: trees.scale(trees.subtract(weights, start), mu)
    )
    fixed = np.linalg.solve(A + mu * EYE, A @ C + mu * W)
    expected = fixed + contraction(A + mu * EYE) @ (W - fixed)
    np.testing.assert_allclose(vector_of(actual.weights), expected, rtol=1e-5)


def test_weight_decay_shrinks_weights():
    decay = 0.4
    fixed = np.linalg.solve(A + decay * EYE, A @ C)
    expected = fixed + contraction(A + decay * EYE) @ (W - fixed)
    actual = train_quadratic(sgd(weight_decay=decay))
    np.testing.assert_allclose(vector_of(actual.weights), expected, rtol=1e-5)


def test_momentum_is_the_heavy_ball_and_starts_anew_in_each_call():
    w, u = W, np.zeros(3)
    for _ in range(K):
        u = 0.9 * u + A @ (w - C)
        w = w - 0.1 * u
    local = sgd(0.1, 0.9)
    for _ in range(2):
        np.testing.assert_allclose(vector_of(train_quadratic(local).weights), w, rtol=1e-5)


def test_rate_decays_with_the_round():
    local = sgd(learning_rate_decay=0.9)
    for round_num in [0, 3]:
        expected = C + contraction(A, eta=ETA * 0.9**round_num) @ (W - C)
        actual = train_quadratic(local, round_num)
        np.testing.assert_allclose(vector_of(actual.weights), expected, rtol=1e-5)


@together(
    ("options", "error", "message"),
    [
        ({"schedule": SCHEDULES["cosine"]}, TypeError, r"such as SCHEDULES\['cosine'\]\(...\)"),
        ({"schedule": "step"}, TypeError, r"such as SCHEDULES\['step'\]"),
        ({"augment": AUGMENTATIONS["crop_and_flip"]}, TypeError, "one of tff_pfl.AUGMENTATIONS"),
        ({"epochs": None}, ValueError, "epochs and steps are both None"),
        ({"optimizer": SCHEDULED}, ValueError, "has no learning rate that a round could set"),
        ({"persist_optimizer_state": True}, ValueError, "keeps no optimizer's state"),
    ],
)
def test_invalid_options_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        train_quadratic(sgd(**options))


def test_totals_are_measured_before_each_step():
    w, losses = W, []
    for _ in range(K):
        losses.append((w - C) @ A @ (w - C) / 2 + 1.0)
        w = w - ETA * A @ (w - C)
    totals = train_quadratic(sgd()).totals
    np.testing.assert_allclose(totals["loss"].total, sum(losses), rtol=1e-5)
    assert totals["loss"].count == K


def test_stateful_optimizer_descends():
    adam = tff.learning.optimizers.build_adam(learning_rate=0.05)
    result = train_quadratic(LocalTraining(adam, epochs=30, batch_size=1))
    before, after = W - C, vector_of(result.weights) - C
    assert after @ A @ after < before @ A @ before


SIZE, BATCH = 7, 3


def make_examples(capacity=SIZE):
    rng = np.random.default_rng(0)
    x = np.full([capacity, 3], np.nan, np.float32)
    y = np.full([capacity], -1, np.int32)
    x[:SIZE] = rng.normal(size=[SIZE, 3])
    y[:SIZE] = rng.integers(4, size=[SIZE])
    return Examples(x, y, np.int32(SIZE))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (0, 2, 2, 4, 6)),
        ({"drop_remainder": True}, (0, 2, 2, 2, 4)),
        ({"steps": 5}, (0, 5, 5, 5, 5)),
    ],
)
def test_num_steps_counts_the_steps(options, expected):
    """Uses clients without examples, with less than a batch, and with several batches."""
    local = sgd(epochs=2, batch_size=BATCH, **options)
    for size, steps in zip((0, 2, BATCH, 5, SIZE), expected, strict=True):
        examples = make_examples()._replace(size=np.int32(size))
        assert local.num_steps(examples) == steps
        counted = local.train(
            quadratic_model(1),
            weights_of([0.0], 1),
            examples,
            context(),
            gradient=lambda weights, batch, count: (weights, NO_TOTALS, count + 1),
            carry=tf.constant(0),
        )
        assert counted.carry == steps


@together(
    ("totals", "found"),
    [
        (lambda: NO_TOTALS | {"extra": NO_TOTALS["loss"]}, "loss, extra"),
        (dict, ""),
        (lambda: 1.5, "1.5"),
    ],
)
def test_other_totals_of_a_gradient_are_refused(totals, found):
    message = rf"gradient must return the totals of the model, .* of loss, got {found}\. Return"
    with pytest.raises(ValueError, match=message):
        train_quadratic(sgd(), gradient=lambda weights, batch, carry: (weights, totals(), carry))


NO_TOTALS = quadratic_model(1).zero_totals()


@pytest.fixture(scope="module")
def linear():
    """Builds logistic regression, whose gradient fits in two lines of NumPy."""
    keras_model_fn = lambda: tf.keras.Sequential(  # noqa: E731
        [tf.keras.layers.Dense(4, input_shape=(3,), name="head")]
    )
    return from_keras(keras_model_fn, input_shape=(3,))


@pytest.fixture(scope="module")
def dropout():
    keras_model_fn = lambda: tf.keras.Sequential(  # noqa: E731
        [
            tf.keras.layers.Dense(8, "relu", input_shape=(3,)),
            tf.keras.layers.Dropout(0.5),
            tf.keras.layers.Dense(4),
        ]
    )
    return from_keras(keras_model_fn, input_shape=(3,))


@pytest.mark.parametrize("drop_remainder", [False, True])
def test_partial_batches_are_exact(linear, drop_remainder):
    local = sgd(0.5, epochs=2, batch_size=BATCH, drop_remainder=drop_remainder)
    weights = linear.init(0)
    x, y, _ = make_examples()

    kernel, bias = (np.asarray(weights["head"][name], float) for name in ["kernel", "bias"])
    loss, hits, count = 0.0, 0, 0
    for _ in range(2):
        for rows in np.split(np.arange(SIZE), range(BATCH, SIZE, BATCH)):
            if drop_remainder and len(rows) < BATCH:
                continue
            logits = x[rows] @ kernel + bias
            p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
            loss -= np.log(p[np.arange(len(rows)), y[rows]]).sum()
            hits += (logits.argmax(axis=1) == y[rows]).sum()
            count += len(rows)
            error = (p - np.eye(4)[y[rows]]) / len(rows)
            kernel, bias = kernel - 0.5 * x[rows].T @ error, bias - 0.5 * error.sum(axis=0)

    in_stored_order = types.SimpleNamespace(seed=None, round_num=0)
    actual = local.train(linear, weights, make_examples(), in_stored_order)
    np.testing.assert_allclose(actual.weights["head"]["kernel"], kernel, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(actual.weights["head"]["bias"], bias, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(actual.totals["loss"].total, loss, rtol=1e-5)
    assert actual.totals["accuracy"].total == hits
    assert actual.totals["loss"].count == actual.totals["accuracy"].count == count


def assert_equal(a, b):
    tf.nest.map_structure(np.testing.assert_array_equal, a, b)


@pytest.mark.thorough
def test_result_does_not_depend_on_padding_even_with_dropout(dropout):
    local, weights = sgd(0.1, 0.9, epochs=3, batch_size=BATCH), dropout.init(0)
    expected = local.train(dropout, weights, make_examples(), context())
    assert all(np.all(np.isfinite(leaf)) for leaf in tf.nest.flatten(expected))
    for capacity in [8, 20]:
        assert_equal(local.train(dropout, weights, make_examples(capacity), context()), expected)


def test_all_randomness_comes_from_the_contexts_seed(dropout):
    local, weights = sgd(0.1, batch_size=SIZE, epochs=1), dropout.init(0)
    first, again, other = (
        local.train(dropout, weights, make_examples(), context(seed=seed)).totals["loss"].total
        for seed in [(1, 2), (1, 2), (1, 3)]
    )
    assert first == again  # With one batch of all examples, only masks can differ.
    assert abs(first - other) > 1e-3
