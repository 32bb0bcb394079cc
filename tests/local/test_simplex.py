"""Tests `tff_pfl.local.simplex` against a search for the threshold."""

import numpy as np
import scipy.optimize
import tensorflow as tf

from tests.marks import together
from tff_pfl.local import project_to_simplex


def nearest(row):
    """Computes `max(row - t, 0)` with the sum 1, by a search for `t`."""
    row = np.asarray(row, np.float64)

    def excess(t):
        return np.sum(np.maximum(row - t, 0)) - 1

    return np.maximum(row - scipy.optimize.brentq(excess, row.min() - 2, row.max()), 0)


def project(rows):
    return project_to_simplex(tf.constant(rows, tf.float32)).numpy()


def test_projection_of_random_rows_matches_the_search():
    for branches in (1, 2, 3, 10):
        for scale in (0.01, 1.0, 10.0):
            rows = scale * np.random.default_rng(branches).normal(size=(20, branches))
            projected = project(rows)
            np.testing.assert_allclose(projected, [nearest(row) for row in rows], atol=1e-5)
            assert np.all(projected >= 0)
            np.testing.assert_allclose(np.sum(projected, axis=1), 1, atol=1e-5)


def test_projection_keeps_points_of_the_simplex():
    rng = np.random.default_rng(0)
    inside, corners = rng.dirichlet(np.ones(4), size=20), np.eye(4)
    edge = [[0.0, 0.25, 0.75, 0.0]]
    rows = np.concatenate([inside, corners, edge])
    np.testing.assert_allclose(project(rows), rows, atol=1e-6)
    np.testing.assert_array_equal(project(corners), corners)


@together(
    ("row", "expected"),
    [
        ([3.0, 3.0, 3.0], [1 / 3, 1 / 3, 1 / 3]),
        ([2.0, 2.0, 0.0], [0.5, 0.5, 0.0]),
        ([0.6, 0.6, -0.2, -0.2], [0.5, 0.5, 0.0, 0.0]),
        ([1e8, 0.0, 0.0], [1.0, 0.0, 0.0]),
        ([2.0**22 + 0.5, 2.0**22, 0.0], [0.75, 0.25, 0.0]),
    ],
)
def test_projection_handles_ties_and_large_entries(row, expected):
    np.testing.assert_allclose(project([row]), [expected], atol=1e-6)
