"""Tests the sparse matrix over pairs of clients against a NumPy matrix."""

import numpy as np
import pytest
import tensorflow as tf

from tests.federation import assert_equal
from tests.marks import slow
from tff_pfl.algorithms.pgfed.sparse_matrix import constant, dense, get_entries, put_entries
from tff_pfl.runtime.graph.clients import vectorization


def cohorts(num_clients, rounds):
    """Yields cohorts of distinct ids in any order; some are empty."""
    rng = np.random.default_rng(0)
    for _ in range(rounds):
        size = rng.integers(0, min(num_clients, 5) + 1)
        yield rng.choice(num_clients, size, replace=False).astype(np.int32)


@pytest.mark.thorough_but_one
@pytest.mark.parametrize("num_clients", [1, slow(2), 7, slow(40)])
def test_entries_agree_with_numpy(num_clients):
    rng = np.random.default_rng(1)
    matrix = np.full([num_clients] * 2, 0.25, np.float32)
    met = np.zeros([num_clients] * 2, bool)
    pairs, last = constant(0.25), np.array([], np.int32)
    for cohort in cohorts(num_clients, 20):
        assert_equal(get_entries(pairs, num_clients, cohort, last), matrix[np.ix_(cohort, last)])
        values = rng.normal(size=[len(cohort), len(last)]).astype(np.float32)
        pairs = put_entries(pairs, num_clients, cohort, last, values)
        matrix[np.ix_(cohort, last)], met[np.ix_(cohort, last)] = values, True
        assert_equal(dense(pairs, num_clients), matrix)
        assert_equal(pairs.keys[:-1], np.flatnonzero(met))  # ascending, only set entries
        last = cohort
    assert met.any()


def test_more_clients_than_a_dense_matrix_could_hold():
    num_clients = 2**31 - 1
    first, second = np.int32([num_clients - 1, 0]), np.int32([5, num_clients - 1])
    values = np.float32([[1, 2], [3, 4]])
    pairs = put_entries(constant(0.5), num_clients, first, second, values)
    assert_equal(get_entries(pairs, num_clients, first, second), values)
    assert_equal(get_entries(pairs, num_clients, second, first), np.float32([[0.5, 0.5], [2, 0.5]]))
    assert len(pairs.keys) == 5 and np.all(np.diff(pairs.keys) > 0)


def test_vectorized_clients_do_not_copy_the_matrix():
    num_clients = 256
    everyone = tf.range(num_clients)
    values = tf.reshape(tf.range(2.0**16), [num_clients, num_clients])
    pairs = put_entries(constant(0.0), num_clients, everyone, everyone, values)

    @tf.function
    def of_cohort(cohort):
        return tf.vectorized_map(
            lambda i: get_entries(pairs, num_clients, [i], everyone[:8]), cohort
        )

    cohort = everyone[100:200]
    with vectorization.installed():
        operations = of_cohort.get_concrete_function(cohort).graph.get_operations()
    assert_equal(of_cohort(cohort)[:, 0], values[100:200, :8])
    tensors = [tensor for operation in operations for tensor in operation.outputs]
    assert max(tensor.shape.num_elements() or 0 for tensor in tensors) == 2**16 + 1
