"""Tests of `tff_pfl.local.trees`."""

import numpy as np
import pytest
import tensorflow as tf

from tff_pfl.local import trees

A = {"v": tf.constant([1.0, 2.0]), "n": (tf.constant(3), tf.constant(0.5, tf.float16))}
B = {"v": tf.constant([0.5, -1.0]), "n": (tf.constant(4), tf.constant(1.0, tf.float16))}


def assert_tree(actual, v, n):
    np.testing.assert_array_equal(actual["v"], np.array(v, np.float32))
    np.testing.assert_array_equal(actual["n"], n)
    assert [leaf.dtype for leaf in tf.nest.flatten(actual)] == [
        leaf.dtype for leaf in tf.nest.flatten(A)
    ]


def test_arithmetic_goes_leaf_by_leaf_and_keeps_data_types():
    assert_tree(trees.add(A, B), [1.5, 1.0], [7, 1.5])
    assert_tree(trees.subtract(A, B), [0.5, 3.0], [-1, -0.5])
    assert_tree(trees.scale(A, 2), [2.0, 4.0], [6, 1.0])
    assert_tree(trees.scale(A, tf.constant(2.0)), [2.0, 4.0], [6, 1.0])
    assert_tree(trees.zeros_like(A), [0.0, 0.0], [0, 0.0])


def test_structures_must_agree():
    with pytest.raises((TypeError, ValueError)):
        trees.add(A, {"v": A["v"]})


@pytest.mark.parametrize("condition", [True, False])
def test_select_takes_one_side_only_and_so_does_its_gradient(condition):
    a, b = tf.constant([2.0, 3.0]), tf.constant([[5.0]])
    nan = tf.constant(np.nan)
    with tf.GradientTape() as tape:
        tape.watch((a, b))
        good, bad = (a * a, b), (tf.fill([2], nan), nan * tf.ones([1, 1]))
        sides = (good, bad) if condition else (bad, good)
        x, y = trees.select(tf.constant(condition), *sides)
    np.testing.assert_array_equal(x, [4.0, 9.0])
    np.testing.assert_array_equal(y, [[5.0]])
    da, db = tape.gradient((x, y), (a, b))
    np.testing.assert_array_equal(da, [4.0, 6.0])
    np.testing.assert_array_equal(db, [[1.0]])


def test_select_can_be_vectorised():
    conditions = tf.constant([True, False, True])
    x = tf.reshape(tf.range(6.0), [3, 2])
    actual = tf.vectorized_map(
        lambda args: trees.select(args[0], args[1], -args[1]), (conditions, x)
    )
    np.testing.assert_array_equal(actual, [[0, 1], [-2, -3], [4, 5]])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_all_finite_looks_at_every_floating_leaf(bad):
    assert trees.all_finite(A, B)
    assert trees.all_finite()
    assert trees.all_finite((), {"n": tf.constant(3)})
    assert not trees.all_finite(A, {"v": tf.constant([0.0, bad])})
    assert not trees.all_finite(A, tf.constant(bad, tf.bfloat16))
