"""Tests of `tff_pfl.local.simplex`, against a search for the threshold."""

import numpy as np
import pytest
import scipy.optimize
import tensorflow as tf

from tff_pfl.local import project_to_simplex


def nearest(row):
    """`max(row - t, 0)` with the `t` that makes it add up to 1, found by bisection."""
    row = np.asarray(row, np.float64)

    def excess(t):
        return np.sum(np.maximum(row - t, 0)) - 1

    return np.maximum(row - scipy.optimize.brentq(excess, row.min() - 2, row.max()), 0)


def project(rows):
    return project_to_simplex(tf.constant(rows, tf.float32)).numpy()


@pytest.mark.parametrize("scale", [0.01, 0.5, 1.0, 10.0])
@pytest.mark.parametrize("branches", [1, 2, 3, 10])
def test_random_rows(branches, scale):
    rows = scale * np.random.default_rng(branches).normal(size=(50, branches))
    projected = project(rows)
    np.testing.assert_allclose(projected, [nearest(row) for row in rows], atol=1e-5)
    assert np.all(projected >= 0)
    np.testing.assert_allclose(np.sum(projected, axis=1), 1, atol=1e-5)


def test_no_point_is_nearer():
    """By a solver that knows nothing of thresholds."""
    for row in np.random.default_rng(0).normal(size=(5, 4)):
        solved = scipy.optimize.minimize(
            lambda p, row=row: np.sum((p - row) ** 2),
            np.full(4, 0.25),
            bounds=[(0, None)] * 4,
            constraints={"type": "eq", "fun": lambda p: np.sum(p) - 1},
            tol=1e-12,
        )
        assert solved.success
        np.testing.assert_allclose(project([row])[0], solved.x, atol=1e-4)


def test_points_of_the_simplex_stay():
    rng = np.random.default_rng(0)
    inside, corners = rng.dirichlet(np.ones(4), size=20), np.eye(4)
    edge = [[0.0, 0.25, 0.75, 0.0]]
    rows = np.concatenate([inside, corners, edge])
    np.testing.assert_allclose(project(rows), rows, atol=1e-6)
    np.testing.assert_array_equal(project(corners), corners)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ([3.0, 3.0, 3.0], [1 / 3, 1 / 3, 1 / 3]),
        ([-5.0, -5.0], [0.5, 0.5]),
        ([2.0, 2.0, 0.0], [0.5, 0.5, 0.0]),
        ([1.0, 0.0, 0.0], [1.0, 0.0, 0.0]),
        ([0.6, 0.6, -0.2, -0.2], [0.5, 0.5, 0.0, 0.0]),
        ([0.0, 9.0, 0.0], [0.0, 1.0, 0.0]),
    ],
    ids=str,
)
def test_ties(row, expected):
    np.testing.assert_allclose(project([row]), [expected], atol=1e-6)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ([1e8, 0.0, 0.0], [1.0, 0.0, 0.0]),
        ([2.0**22 + 0.5, 2.0**22, 0.0], [0.75, 0.25, 0.0]),
    ],
    ids=str,
)
def test_large_entries(row, expected):
    np.testing.assert_allclose(project([row]), [expected], atol=1e-6)


def test_of_one_branch_the_simplex_is_a_point():
    np.testing.assert_array_equal(project([[0.3], [1.0], [-7.0]]), np.ones((3, 1)))


def test_each_row_is_projected_by_itself():
    rows = np.random.default_rng(2).normal(size=(6, 3))
    np.testing.assert_array_equal(project(rows), [project([row])[0] for row in rows])


def test_in_a_graph_and_over_a_cohort():
    rows = tf.random.stateless_normal([4, 5, 3], [1, 2])
    vectorized = tf.function(lambda: tf.vectorized_map(project_to_simplex, rows))()
    np.testing.assert_allclose(vectorized, [project(r) for r in rows], atol=1e-6)
