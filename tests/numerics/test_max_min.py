"""Tests `tff_pfl.numerics.max_min` against SciPy."""

import functools

import numpy as np
import pytest
import scipy.optimize
import tensorflow as tf

from tff_pfl.numerics.max_min import max_min_coefficients

NUM_PROBLEMS = 3  # The number of problems of each kind.
SPECS = [tf.TensorSpec(shape, tf.float64) for shape in ([None, None], [None], [])]

# Functions from a generator and random columns to the columns of a problem.
KINDS = {
    "random": lambda rng, q: q,
    "alike": lambda rng, q: q + 2,
    "few dimensions": lambda rng, q: q[:2],
    "equal": lambda rng, q: np.repeat(q[:, :1], q.shape[1], axis=1),
    "of many lengths": lambda rng, q: q * 10.0 ** rng.uniform(-3, 3, q.shape[1]),
    "with zeros": lambda rng, q: q * (rng.random(q.shape[1]) < 0.7),
    "opposite": lambda rng, q: np.concatenate([q, -q[:, :1]], axis=1),
    "alone": lambda rng, q: q[:, :1],
}


@functools.cache
def solve():
    return tf.function(max_min_coefficients, SPECS, autograph=False)


def largest(columns, centre, radius):
    """Returns the largest least product, by SLSQP with that product as a further variable."""

    def in_ball(z):
        return 1 - np.sum(np.square((z[:-1] - centre) / radius))

    found = scipy.optimize.minimize(
        lambda z: -z[-1],
        np.append(centre, np.min(columns.T @ centre)),
        constraints=[
            {"type": "ineq", "fun": lambda z: columns.T @ z[:-1] - z[-1]},
            {"type": "ineq", "fun": in_ball},
        ],
        options={"maxiter": 1000, "ftol": 1e-13},
    )
    return -found.fun


@pytest.mark.parametrize("kind", KINDS)
def test_least_product_is_as_large_as_that_of_scipy(kind):
    for seed in range(NUM_PROBLEMS):
        rng = np.random.default_rng([seed, list(KINDS).index(kind)])
        columns = KINDS[kind](rng, rng.normal(size=rng.integers(2, 8, 2)))
        weights = rng.dirichlet(np.ones(columns.shape[1]))
        centre = columns @ weights
        for share in (0.1, 0.5, 1.5):
            radius = share * np.linalg.norm(centre)
            found = columns @ solve()(columns.T @ columns, weights, radius).numpy()
            scale = np.max(np.linalg.norm(columns, axis=0))
            assert np.linalg.norm(found - centre) <= radius + 1e-7 * scale
            best = largest(columns, centre, radius)
            assert np.min(columns.T @ found) >= best - 1e-6 * scale * max(radius, scale)


def test_columns_that_cancel_out():
    """On a line, the best product with columns of both directions is at 0, or nearest to it."""
    columns = np.array([[1.0, -1.0]])
    for centre, radius, expected in ((0.5, 0.1, 0.4), (0.05, 0.1, 0.0), (0.0, 0.1, 0.0)):
        weights = np.array([1 + centre, 1 - centre]) / 2
        found = columns @ solve()(columns.T @ columns, weights, radius).numpy()
        assert found == pytest.approx(expected, abs=1e-6)


def test_centre_is_found_without_radius_or_columns():
    weights = np.array([0.25, 0.75])
    for gram, radius in ((np.eye(2), 0.0), (np.zeros((2, 2)), 0.0), (np.zeros((2, 2)), 1.0)):
        np.testing.assert_array_equal(solve()(gram, weights, radius), weights)
