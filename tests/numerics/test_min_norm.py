"""Tests `tff_pfl.numerics.min_norm` against references that use the columns."""

import functools

import numpy as np
import pytest
import scipy.optimize
import tensorflow as tf

from tff_pfl.numerics.min_norm import min_norm_weights

NUM_PROBLEMS = 15  # The number of problems of each kind.
MATRIX = tf.TensorSpec([None, None], tf.float64)
MASK = tf.TensorSpec([None], tf.bool)

solve = tf.function(min_norm_weights, input_signature=[MATRIX])
solve_valid = tf.function(min_norm_weights, input_signature=[MATRIX, MASK])


def doubled(rng, k):
    """Returns indices of `k` columns, about half of them distinct."""
    return rng.integers(0, (k + 1) // 2, size=k)


def signs(rng, k):
    return rng.choice([-1.0, 1.0], size=k)


def apart(rng):
    """Returns the size of differences within a group of columns."""
    return 10.0 ** rng.uniform(-9.0, -3.0)


def unit(q):
    return q / np.linalg.norm(q, axis=0)


# Functions from a generator and `k` random columns to the columns of a problem.
KINDS = {
    "random": lambda rng, q, k: q,
    "zero": lambda rng, q, k: q * (rng.random(k) < 0.8),
    "all zero": lambda rng, q, k: 0.0 * q,
    "equal": lambda rng, q, k: q[:, doubled(rng, k)],
    "collinear": lambda rng, q, k: q[:, doubled(rng, k)] * rng.uniform(0.1, 3.0, size=k),
    "on a line": lambda rng, q, k: q[:, :1] * rng.uniform(-1.0, 3.0, size=k),
    "opposite": lambda rng, q, k: q[:, doubled(rng, k)] * signs(rng, k),
    "unit norm": lambda rng, q, k: unit(q),
    "to one side": lambda rng, q, k: q + 2.0,
    "nearly equal": lambda rng, q, k: q[:, :1] + 1e-7 * q,
    "groups apart": lambda rng, q, k: q[:, doubled(rng, k)] + apart(rng) * rng.normal(size=q.shape),
    "centred groups apart": lambda rng, q, k: (
        (q - q.mean(axis=1, keepdims=True))[:, doubled(rng, k)]
        + apart(rng) * rng.normal(size=q.shape)
    ),
    "nearly opposite": lambda rng, q, k: unit(
        q[:, doubled(rng, k)] * signs(rng, k) + apart(rng) * rng.normal(size=q.shape)
    ),
    "one column": lambda rng, q, k: q[:, :1],
    "few dimensions": lambda rng, q, k: q[: 1 + k // 3],
    "scaled": lambda rng, q, k: q * 10.0 ** rng.uniform(-3.0, 3.0, size=k),
    "scaled hugely": lambda rng, q, k: q * 10.0 ** rng.uniform(-6.0, 6.0, size=k),
}
TOLERANCES = dict.fromkeys(KINDS, 1e-10) | {"scaled hugely": 1e-8, "nearly opposite": 1e-8}


@functools.cache
def problems(kind):
    """Returns `(columns, weights)` of each problem, where the weights are the solution."""
    found = []
    for seed in range(NUM_PROBLEMS):
        rng = np.random.default_rng([seed, list(KINDS).index(kind)])
        n, k = rng.integers(2, 20), rng.integers(2, 12)
        q = KINDS[kind](rng, rng.normal(size=(n, k)), k)
        found.append((q, solve(q.T @ q).numpy()))
    return found


def squared_norm(x):
    return x @ x


def squared_norms(q):
    """Returns the least non-zero and the greatest squared norm of columns, or 1 for both."""
    norms = np.sum(q**2, axis=0)
    positive = norms[norms > 0.0]
    return (positive.min(), positive.max()) if positive.size else (1.0, 1.0)


def reference(q):
    """Solves the problem by non-negative least squares: `[Q / s; 1] u = [0; 1]`."""
    unit = np.sqrt(squared_norms(q)[0])
    system = np.concatenate([q / unit, np.ones((1, q.shape[1]))])
    u, _ = scipy.optimize.nnls(system, np.eye(len(system))[-1], maxiter=10_000)
    return u / np.sum(u)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_result_is_the_shortest_convex_combination(kind):
    """Checks the precision that `min_norm_weights` states."""
    for q, weights in problems(kind):
        assert np.all(weights >= 0.0)
        np.testing.assert_allclose(np.sum(weights), 1.0, rtol=1e-12)

        least, greatest = squared_norms(q)
        shortest = reference(q)
        excess = squared_norm(q @ weights) - squared_norm(q @ shortest)
        assert excess <= TOLERANCES[kind] * (greatest if kind == "scaled hugely" else least)

        longest = np.sqrt(squared_norms(q[:, weights > 0.0])[1])
        length = np.linalg.norm(q @ shortest)
        tolerance = 1e-8 if length > 1e-4 * longest else 1e-5
        assert np.linalg.norm(q @ weights) <= length + tolerance * longest

        # No column improves the point, and all columns with a weight are at equal height.
        x = q @ weights
        heights = (q.T @ x - x @ x) / greatest
        assert np.min(heights) >= -TOLERANCES[kind]
        assert np.max(heights[weights > 1e-6]) <= TOLERANCES[kind]


def test_one_or_two_columns_have_a_closed_form():
    for squared in (0.0, 1e-30, 2.5, 1e30):
        np.testing.assert_array_equal(solve(np.array([[squared]])), [1.0])
    for seed in range(20):
        rng = np.random.default_rng(seed)
        q = rng.normal(size=(4, 2)) + rng.choice([0.0, 2.0]) * rng.normal(size=(4, 1))
        first, second = q.T
        expected = np.clip((second - first) @ second / squared_norm(first - second), 0.0, 1.0)
        np.testing.assert_allclose(solve(q.T @ q), [expected, 1.0 - expected], atol=1e-12)


class TestValid:
    @pytest.mark.parametrize("garbage", [-7.0, 0.0, np.finfo(np.float64).max])
    def test_invalid_columns_are_ignored(self, garbage):
        rng = np.random.default_rng(0)
        q, valid = 1e-3 * rng.normal(size=(5, 9)), rng.permutation(9) < 4
        gram = np.where(np.outer(valid, valid), q.T @ q, garbage)
        weights = solve_valid(gram, valid).numpy()
        np.testing.assert_array_equal(weights[~valid], 0.0)
        np.testing.assert_allclose(
            weights[valid], solve(q[:, valid].T @ q[:, valid]), rtol=1e-9, atol=1e-12
        )

    def test_all_weights_are_zero_without_valid_columns(self):
        weights = solve_valid(np.ones((4, 4)), np.zeros(4, bool))
        np.testing.assert_array_equal(weights, np.zeros(4))


def gram_matrices(k):
    """Returns Gram matrices of problems that need different numbers of steps."""
    columns = [np.random.default_rng([n, k]).normal(size=(n, k)) for n in range(1, 5)]
    return np.stack([q.T @ q for q in columns])


@pytest.mark.slow  # Tracing takes long.
def test_min_norm_weights_can_be_vectorized():
    grams = gram_matrices(5)
    actual = tf.vectorized_map(min_norm_weights, tf.constant(grams), fallback_to_while_loop=False)
    np.testing.assert_allclose(actual, [solve(gram) for gram in grams], rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 6])
def test_min_norm_weights_can_be_compiled(k):
    spec = tf.TensorSpec([k, k], tf.float64)
    compiled = tf.function(min_norm_weights, input_signature=[spec], jit_compile=True)
    for gram in gram_matrices(k):
        np.testing.assert_allclose(compiled(gram), solve(gram), rtol=1e-9, atol=1e-12)


def test_inner_products_can_be_float32():
    gram = np.diag([1.0, 2.0]).astype(np.float32)
    weights = min_norm_weights(tf.constant(gram))
    assert weights.dtype == tf.float64
    np.testing.assert_allclose(weights, [2 / 3, 1 / 3], rtol=1e-12)


@pytest.mark.parametrize(
    ("fairness", "expected"),
    [
        ([], [0.417284, 0.384922, 0.197794]),
        ([[-1.325226, -0.218131, 0.400341]], [0.465130, 0.272590, 0.0, 0.262280]),
    ],
)
def test_gradients_and_fairness_have_golden_values(fairness, expected):
    """Uses three gradients, scaled to the mean of their norms."""
    g = np.array([[1.0, -0.3, 0.0], [-1.0, 1.0, -0.2], [-1.0, -1.0, 1.0]]).T
    norms = np.linalg.norm(g, axis=0)
    q = np.column_stack([np.mean(norms) * g / norms, *fairness])
    np.testing.assert_allclose(solve(q.T @ q), expected, atol=1e-6)
