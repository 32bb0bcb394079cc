"""Tests `tff_pfl.numerics.box_min_norm` against SciPy."""

import functools

import numpy as np
import pytest
import scipy.optimize
import tensorflow as tf

from tff_pfl.numerics.box_min_norm import bounded_min_norm_weights
from tff_pfl.numerics.min_norm import min_norm_weights

NUM_PROBLEMS = 12  # The number of problems of each kind.
BOUNDS = tf.TensorSpec([None], tf.float64)

solve = tf.function(
    bounded_min_norm_weights,
    input_signature=[tf.TensorSpec([None, None], tf.float64), BOUNDS, BOUNDS],
)

# Functions from a generator and random columns to the columns of a problem.
KINDS = {
    "random": lambda rng, q: q,
    "unit": lambda rng, q: q / np.linalg.norm(q, axis=0),
    "few dimensions": lambda rng, q: q[:2],
    "equal": lambda rng, q: np.repeat(q[:, :1], q.shape[1], axis=1),
    "parallel": lambda rng, q: q[:, rng.integers(0, 2, q.shape[1])] * rng.uniform(1, 3, q.shape[1]),
    "opposite": lambda rng, q: q[:, :1] * rng.choice([-1.0, 1.0], q.shape[1]),
    "zero": lambda rng, q: q * (rng.random(q.shape[1]) < 0.7),
    "all zero": lambda rng, q: 0.0 * q,
    "nearly equal": lambda rng, q: q[:, :1] + 1e-6 * q,
}


class Problem:
    """A problem with its solution: columns, bounds around allowed weights, and weights."""

    def __init__(self, kind, seed):
        rng = np.random.default_rng([seed, list(KINDS).index(kind)])
        n, k = rng.integers(2, 15), rng.integers(2, 10)
        self.q = KINDS[kind](rng, rng.normal(size=(n, k)))
        center = rng.dirichlet(np.ones(k))
        eps = rng.choice([0.0, 0.02, 0.1, 0.3, 1.0])
        self.lower, self.upper = np.maximum(center - eps, 0.0), np.minimum(center + eps, 1.0)
        self.gram = self.q.T @ self.q
        self.weights = solve(self.gram, self.lower, self.upper).numpy()
        self.unit = max(np.max(np.diag(self.gram)), 1e-300)


@functools.cache
def problems(kind):
    return [Problem(kind, seed) for seed in range(NUM_PROBLEMS)]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_optimal_up_to_rounding(kind):
    """Checks f(v) >= f(x) + grad f(x) . (v - x), which a linear program minimises."""
    for problem in problems(kind):
        np.testing.assert_allclose(np.sum(problem.weights), 1.0, rtol=1e-12)
        assert np.all(problem.weights >= problem.lower - 1e-12)
        assert np.all(problem.weights <= problem.upper + 1e-12)
        gradient = problem.gram @ problem.weights / problem.unit
        least = scipy.optimize.linprog(
            gradient,
            A_eq=np.ones((1, len(gradient))),
            b_eq=[1.0],
            bounds=list(zip(problem.lower, problem.upper, strict=True)),
        )
        assert gradient @ problem.weights - least.fun <= 1e-9


@pytest.mark.thorough
def test_bounds_0_and_1_give_the_min_norm_point():
    q = np.random.default_rng(0).normal(size=(20, 12))
    found = solve(q.T @ q, np.zeros(12), np.ones(12)).numpy()
    np.testing.assert_allclose(found, min_norm_weights(q.T @ q).numpy(), atol=1e-10)


def test_equal_bounds_determine_the_weights():
    weights = np.array([0.2, 0.5, 0.3])
    q = np.random.default_rng(0).normal(size=(4, 3))
    np.testing.assert_allclose(solve(q.T @ q, weights, weights), weights, atol=1e-15)


def test_two_columns_have_a_closed_form():
    """Uses two unit vectors, whose weights are equal unless a bound prevents it."""
    gram = np.array([[1.0, -0.5], [-0.5, 1.0]])
    np.testing.assert_allclose(solve(gram, [0.0, 0.0], [1.0, 1.0]), [0.5, 0.5], atol=1e-12)
    np.testing.assert_allclose(solve(gram, [0.0, 0.6], [1.0, 1.0]), [0.4, 0.6], atol=1e-12)
    np.testing.assert_allclose(solve(gram, [0.0, 0.0], [0.3, 1.0]), [0.3, 0.7], atol=1e-12)


def test_zero_columns_have_no_weights():
    assert solve(np.zeros([0, 0]), np.zeros(0), np.zeros(0)).shape == [0]
    specs = [tf.TensorSpec(shape, tf.float64) for shape in ([0, 0], [0], [0])]
    solve_none = tf.function(bounded_min_norm_weights, input_signature=specs)
    assert solve_none(np.zeros([0, 0]), np.zeros(0), np.zeros(0)).shape == [0]
