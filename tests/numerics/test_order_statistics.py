import numpy as np
import pytest
import tensorflow as tf

from tff_pfl.numerics.order_statistics import kth_largest


@pytest.mark.thorough_but_one
@pytest.mark.parametrize("jit_compile", [True, False])
@pytest.mark.parametrize("k", [5, 1, 2, 8, 12])
def test_kth_largest_is_that_of_a_sort(k, jit_compile):
    """There are ties, zeros, infinity, and numbers below the least normal one."""
    values = np.array([3, 0, 1e-42, 5e-42, 7, 3, 3, 0, np.inf, 1e38, 2e-38, 7.5], np.float32)
    found = tf.function(kth_largest, jit_compile=jit_compile)(values.reshape(3, 4), k)
    assert found == np.sort(values)[-k]


def test_kth_largest_of_each_client():
    values = np.abs(np.random.default_rng(0).normal(size=(4, 9))).astype(np.float32)
    found = tf.vectorized_map(lambda own: kth_largest(own, 3), values)
    np.testing.assert_array_equal(found, np.sort(values)[:, -3])
