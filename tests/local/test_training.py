"""Tests `tff_pfl.local.training` on quadratics with closed forms and on a small network."""

import types

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.local.test_training_state import START, A, C, W
from tests.marks import together
from tests.models.keras.test_adapter import layers, sequential
from tests.quadratics import descended, quadratic_examples, quadratic_model, vector_of, weights_of
from tff_pfl.local import AUGMENTATIONS, SCHEDULES, Examples, LocalTraining, trees
from tff_pfl.models import from_keras

ETA, K, MU = 0.3, 5, 0.4


def context(seed=(1, 2)):
    return types.SimpleNamespace(seed=tf.constant(seed), round_num=tf.constant(0))


def sgd(learning_rate=ETA, **kwargs):
    optimizer = tff.learning.optimizers.build_sgdm(learning_rate)
    return LocalTraining(**{"optimizer": optimizer, "epochs": K, "batch_size": 2, **kwargs})


SCHEDULED = tff.learning.optimizers.schedule_learning_rate(
    tff.learning.optimizers.build_sgdm(0.1), lambda step: 0.1
)


def train_quadratic(local, **kwargs):
    examples = quadratic_examples(A, C, 1.0)
    return local.train(quadratic_model(2, 1), START, examples, context(), **kwargs)


TWO_STEPS = {"epochs": None, "steps": 2}


@pytest.mark.parametrize(
    ("options", "given", "steps"),
    [({}, {}, K), ({}, {"epochs": 2}, 2), ({}, {"epochs": 0}, 0), (TWO_STEPS, {}, 2)],
)
def test_train_is_gradient_descent(options, given, steps):
    trained = train_quadratic(sgd(**options), **given)
    expected = descended(W, A, C, ETA, steps)
    np.testing.assert_allclose(vector_of(trained.weights), expected, rtol=1e-5)
    assert trained.totals["loss"].count == steps


def proximal(weights):
    return trees.scale(trees.subtract(weights, START), MU)


@pytest.mark.parametrize(
    ("options", "reg", "towards"),
    [({"weight_decay": MU}, None, np.zeros(3)), ({}, proximal, W)],
    ids=["weight decay", "a regularizer"],
)
def test_weights_are_pulled_towards_a_point(options, reg, towards):
    pulled = A + MU * np.eye(3)
    fixed = np.linalg.solve(pulled, A @ C + MU * towards)
    expected = descended(W, pulled, fixed, ETA, K)
    trained = train_quadratic(sgd(**options), reg=reg)
    np.testing.assert_allclose(vector_of(trained.weights), expected, rtol=1e-5)


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


SIZE, BATCH = 7, 3


def make_examples():
    rng = np.random.default_rng(0)
    x = rng.normal(size=[SIZE, 3]).astype(np.float32)
    return Examples(x, rng.integers(3, size=[SIZE]).astype(np.int32), np.int32(SIZE))


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


@pytest.mark.parametrize("drop_remainder", [False, True])
def test_partial_batches_are_exact(drop_remainder):
    """Trains logistic regression, whose gradient fits in two lines of NumPy."""
    local = sgd(0.5, epochs=2, batch_size=BATCH, drop_remainder=drop_remainder)
    linear = from_keras(sequential(shape=(3,)), input_shape=(3,))
    weights, (x, y, _) = linear.init(0), make_examples()

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
            error = (p - np.eye(3)[y[rows]]) / len(rows)
            kernel, bias = kernel - 0.5 * x[rows].T @ error, bias - 0.5 * error.sum(axis=0)

    in_stored_order = types.SimpleNamespace(seed=None, round_num=0)
    actual = local.train(linear, weights, make_examples(), in_stored_order)
    np.testing.assert_allclose(actual.weights["head"]["kernel"], kernel, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(actual.weights["head"]["bias"], bias, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(actual.totals["loss"].total, loss, rtol=1e-5)
    assert actual.totals["accuracy"].total == hits
    assert actual.totals["loss"].count == actual.totals["accuracy"].count == count


def test_all_randomness_comes_from_the_contexts_seed():
    hidden = lambda: layers.Dense(8, "relu"), lambda: layers.Dropout(0.5)
    dropout = from_keras(sequential(*hidden, shape=(3,)), input_shape=(3,))
    local, weights = sgd(0.1, batch_size=SIZE, epochs=1), dropout.init(0)
    first, again, other = (
        local.train(dropout, weights, make_examples(), context(seed=seed)).totals["loss"].total
        for seed in [(1, 2), (1, 2), (1, 3)]
    )
    assert first == again  # With one batch of all examples, only masks can differ.
    assert abs(first - other) > 1e-3
