"""Tests the state that local training keeps between calls, and custom steps."""

import dataclasses
import types

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.quadratics import quadratic_examples, quadratic_model, spd, vector_of, weights_of
from tff_pfl.local import Examples, LocalTraining

A, C = spd(3, seed=1), np.array([1.0, -2.0, 0.5])
W = np.array([0.3, 0.2, -0.1])
ETA, K = 0.1, 3
MODEL, START = quadratic_model(2, 1), weights_of(W, 2, 1)
PERSISTING = LocalTraining(
    tff.learning.optimizers.build_sgdm(ETA, 0.9),
    epochs=K,
    batch_size=2,
    persist_optimizer_state=True,
)
FRESH = dataclasses.replace(PERSISTING, persist_optimizer_state=False)


def train(local, weights=START, round_num=0, size=1, capacity=1, **options):
    """Trains on copies of one example, so that all batches have the same gradient."""
    one = quadratic_examples(A, C)
    x = np.full([capacity, one.x.shape[1]], np.nan, np.float32)
    x[:size] = one.x
    context = types.SimpleNamespace(seed=tf.constant([1, 2]), round_num=tf.constant(round_num))
    examples = Examples(x, np.zeros([capacity], np.int32), np.int32(size))
    return local.train(MODEL, weights, examples, context, **options)


def assert_equal(a, b):
    tf.nest.assert_same_structure(a, b)
    tf.nest.map_structure(np.testing.assert_array_equal, a, b)


def heavy_ball(rates, w=W):
    """Computes the weights before each step and after the last one."""
    u, visited = np.zeros(3), [w]
    for rate in rates:
        u = 0.9 * u + A @ (visited[-1] - C)
        visited.append(visited[-1] - rate * u)
    return visited


class TestGradient:
    def record(self, weights, batch, carry):
        """Computes the loss's gradient and records the weights."""
        count, rows = carry
        row = tf.concat([layer["w"] for layer in weights.values()], axis=0)
        carry = count + 1, tf.tensor_scatter_nd_update(rows, [[count]], [row])
        return *MODEL.gradient(weights, batch), carry

    @pytest.mark.parametrize(
        ("drop_remainder", "steps", "capacity"), [(False, 4 * K, 20), (True, 3 * K, 7)]
    )
    def test_gradient_gets_the_weights_before_each_step(self, drop_remainder, steps, capacity):
        local = dataclasses.replace(FRESH, drop_remainder=drop_remainder)
        start = (tf.constant(0), tf.zeros([50, 3]))
        result = train(local, size=7, capacity=capacity, gradient=self.record, carry=start)
        count, rows = result.carry
        *before, last = heavy_ball([ETA] * steps)
        assert count == steps
        np.testing.assert_allclose(rows[:steps], before, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(rows[steps:], np.zeros([50 - steps, 3]))
        np.testing.assert_allclose(vector_of(result.weights), last, rtol=1e-5, atol=1e-6)

    def test_two_models_can_be_trained_side_by_side(self):
        def both(pair, batch, carry):
            (first, totals), (second, _) = (MODEL.gradient(w, batch) for w in pair)
            return (first, second), totals, carry

        other = weights_of(-W, 2, 1)
        result = train(FRESH, weights=(START, other), gradient=both)
        assert_equal(result.weights, (train(FRESH).weights, train(FRESH, weights=other).weights))
        assert_equal(result.totals, train(FRESH).totals)


class TestSteps:
    def test_steps_equal_the_first_steps_of_epochs(self):
        by_epochs = train(FRESH, size=5, capacity=5, epochs=2)
        assert_equal(train(FRESH, size=5, capacity=5, steps=6), by_epochs)
        assert_equal(
            train(dataclasses.replace(FRESH, steps=1), size=5, capacity=5, epochs=2), by_epochs
        )


@pytest.mark.parametrize(("clipped", "factor"), [(0.5, 0.5), (1.5, 1.0), (np.inf, 1.0)])
def test_gradient_is_clipped_before_weight_decay(clipped, factor):
    gradient = A @ (W - C)
    sgd = tff.learning.optimizers.build_sgdm(ETA)
    local = LocalTraining(sgd, weight_decay=0.2, clip_norm=clipped * np.linalg.norm(gradient))
    expected = W - ETA * (factor * gradient + 0.2 * W)
    np.testing.assert_allclose(vector_of(train(local).weights), expected, rtol=1e-5)


class TestPersistence:
    @pytest.mark.parametrize("build", ["sgdm", "adam"])
    def test_two_calls_equal_one_with_twice_the_epochs(self, build):
        optimizer = getattr(tff.learning.optimizers, f"build_{build}")(ETA)
        local = dataclasses.replace(PERSISTING, optimizer=optimizer)
        first = train(local, optimizer_state=local.optimizer_state(START))
        second = train(local, first.weights, optimizer_state=first.optimizer_state)
        both = train(local, optimizer_state=local.optimizer_state(START), epochs=2 * K)
        assert_equal(second.weights, both.weights)
        assert_equal(second.optimizer_state, both.optimizer_state)

    def test_optimizer_state_is_not_kept_by_default(self):
        assert FRESH.optimizer_state(START) == ()
        first = train(FRESH)
        second = train(FRESH, first.weights, optimizer_state=first.optimizer_state)
        both = train(FRESH, epochs=2 * K)
        assert first.optimizer_state == ()
        assert not np.allclose(vector_of(second.weights), vector_of(both.weights), atol=1e-3)

    def test_empty_state_starts_anew(self):
        expected = train(PERSISTING, optimizer_state=PERSISTING.optimizer_state(START))
        assert_equal(train(PERSISTING, optimizer_state=()), expected)
        assert_equal(train(FRESH).weights, expected.weights)

    def test_client_without_steps_keeps_its_state(self):
        state = train(PERSISTING, optimizer_state=()).optimizer_state
        assert_equal(train(PERSISTING, size=0, optimizer_state=state).optimizer_state, state)


def test_round_sets_the_rate_of_a_persisted_state():
    local = dataclasses.replace(PERSISTING, learning_rate_decay=0.5)
    weights, state = START, ()
    for round_num in (0, 1, 3):
        result = train(local, weights, round_num, optimizer_state=state)
        weights, state = result.weights, result.optimizer_state
    rates = np.repeat([ETA, ETA / 2, ETA / 8], K)
    np.testing.assert_allclose(vector_of(weights), heavy_ball(rates)[-1], rtol=1e-5, atol=1e-6)


class TestLearningRate:
    def test_learning_rate_overrides_the_optimizers_and_decays(self):
        local = dataclasses.replace(FRESH, learning_rate_decay=0.9)
        for round_num in (0, 2):
            found = train(local, round_num=round_num, learning_rate=0.3)
            expected = heavy_ball([0.3 * 0.9**round_num] * K)[-1]
            np.testing.assert_allclose(vector_of(found.weights), expected, rtol=1e-5, atol=1e-6)

    def test_default_is_the_optimizers_rate(self):
        assert_equal(train(FRESH, learning_rate=ETA), train(FRESH))
        assert_equal(train(FRESH, learning_rate=0.0).weights, START)

    def test_learning_rate_is_for_one_call(self):
        """Continues a persisted state with the optimizer's own rate."""
        first = train(PERSISTING, optimizer_state=(), learning_rate=0.3)
        second = train(PERSISTING, first.weights, optimizer_state=first.optimizer_state)
        expected = heavy_ball([0.3] * K + [ETA] * K)[-1]
        np.testing.assert_allclose(vector_of(second.weights), expected, rtol=1e-5, atol=1e-6)


class TestProjection:
    def project(self, weights):
        """Projects onto a ball, which every step of the test leaves."""
        norm = tf.linalg.global_norm(tf.nest.flatten(weights))
        return tf.nest.map_structure(lambda w: w * tf.minimum(1.0, 0.3 / norm), weights)

    def test_projection_follows_each_step(self):
        w, u = W, np.zeros(3)
        for _ in range(K):
            u = 0.9 * u + A @ (w - C)
            w = w - ETA * u
            assert np.linalg.norm(w) > 0.31
            w = 0.3 * w / np.linalg.norm(w)
        end = heavy_ball([ETA] * K)[-1]
        assert np.linalg.norm(0.3 * end / np.linalg.norm(end) - w) > 0.01
        found = train(FRESH, project=self.project)
        np.testing.assert_allclose(vector_of(found.weights), w, rtol=1e-5)

    @pytest.mark.parametrize(("size", "steps"), [(5, 3 * K), (0, 0)])
    def test_projection_is_called_once_per_step(self, size, steps):
        """Trains in batches of 2, with padding."""

        def add_one(weights):
            return tf.nest.map_structure(lambda w: w + 1.0, weights)

        found = train(FRESH, size=size, capacity=12, learning_rate=0.0, project=add_one)
        np.testing.assert_allclose(vector_of(found.weights), W + steps, rtol=1e-6)


class Counting(tff.learning.optimizers.Optimizer):
    """An optimizer whose state is one tensor: the learning rate and the number of steps."""

    def initialize(self, specs):
        return tf.constant([ETA, 0.0])

    def next(self, state, weights, gradients):
        return state + [0.0, 1.0], weights

    def get_hparams(self, state):
        return {"learning_rate": state[0]}

    def set_hparams(self, state, hparams):
        return tf.stack([hparams["learning_rate"], state[1]])


def test_optimizer_state_can_be_a_tensor():
    local = dataclasses.replace(PERSISTING, optimizer=Counting())
    state = local.optimizer_state(START)
    for count in (K, 2 * K):
        state = train(local, optimizer_state=state).optimizer_state
        np.testing.assert_allclose(state, [ETA, count])
