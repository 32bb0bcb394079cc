"""Tests `tff_pfl.local.trees`."""

import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.local import trees

A = {"v": tf.constant([1.0, 2.0]), "n": (tf.constant(3), tf.constant(0.5, tf.float16))}
B = {"v": tf.constant([0.5, -1.0]), "n": (tf.constant(4), tf.constant(1.0, tf.float16))}


def assert_tree(actual, v, n):
    np.testing.assert_array_equal(actual["v"], np.array(v, np.float32))
    np.testing.assert_array_equal(actual["n"], n)
    assert [leaf.dtype for leaf in tf.nest.flatten(actual)] == [
        leaf.dtype for leaf in tf.nest.flatten(A)
    ]


def test_arithmetic_is_leaf_by_leaf_and_keeps_data_types():
    assert_tree(trees.add(A, B), [1.5, 1.0], [7, 1.5])
    assert_tree(trees.subtract(A, B), [0.5, 3.0], [-1, -0.5])
    assert_tree(trees.scale(A, 2), [2.0, 4.0], [6, 1.0])
    assert_tree(trees.scale(A, tf.constant(2.0)), [2.0, 4.0], [6, 1.0])
    assert_tree(trees.zeros_like(A), [0.0, 0.0], [0, 0.0])


@pytest.mark.parametrize("condition", [True, False])
def test_select_and_its_gradient_use_only_one_side(condition):
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


def test_select_accepts_values_that_become_tensors():
    x, y = trees.select(tf.constant(False), (1.0, np.zeros(2)), (2.0, np.ones(2)))
    np.testing.assert_array_equal(x, 2.0)
    np.testing.assert_array_equal(y, [1.0, 1.0])
    either = tf.function(lambda rows: trees.select(True, rows, -rows), [tf.TensorSpec([None])])
    np.testing.assert_array_equal(either([1.0]), [1.0])


def test_clip_limits_the_norm_or_returns_nan():
    for entries, expected in (
        ([0.3, -0.4], [0.3, -0.4]),
        ([3.0, -4.0], [0.6, -0.8]),
        ([3e18, -4e18], [0.6, -0.8]),
        ([3e19, -4e19], [np.nan, np.nan]),  # The norm overflows float32.
        ([np.nan, 1.0], [np.nan, np.nan]),
        ([0.0, 0.0], [0.0, 0.0]),
    ):
        found = trees.clip({"a": tf.constant(entries)}, 1.0)["a"]
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_all_finite_checks_every_floating_leaf():
    for finite in ((A, B), (), ((), {"n": tf.constant(3)})):
        assert trees.all_finite(*finite)
    for bad in (np.nan, np.inf, -np.inf):
        assert not trees.all_finite(A, {"v": tf.constant([0.0, bad])})
        assert not trees.all_finite(A, tf.constant(bad, tf.bfloat16))


def test_all_finite_checks_both_parts_of_complex_numbers():
    largest = tf.float32.max  # The absolute value overflows.
    assert trees.all_finite(tf.constant([complex(largest, largest)], tf.complex64))
    for bad in (np.nan, 1j * np.nan, complex(0.0, -np.inf)):
        assert not trees.all_finite(A, tf.constant(np.array([1.0, bad]), tf.complex64))


NESTED = {
    "matrix": tf.reshape(tf.range(6.0), [2, 3]),
    "and": [(tf.constant(7.0),), {"z": tf.zeros([0, 4]), "a": tf.constant([[8.0]])}],
}


def test_to_vector_concatenates_leaves():
    """Uses the order of `tf.nest`, which sorts names."""
    np.testing.assert_array_equal(trees.to_vector(NESTED), [7, 8, 0, 1, 2, 3, 4, 5])


def test_from_vector_inverts_to_vector():
    for tree in (NESTED, tf.constant(3.0), [tf.ones([2, 1, 2])]):
        back = trees.from_vector(trees.to_vector(tree), like=trees.zeros_like(tree))
        tf.nest.assert_same_structure(back, tree)
        for actual, expected in zip(tf.nest.flatten(back), tf.nest.flatten(tree), strict=True):
            assert actual.shape == expected.shape
            np.testing.assert_array_equal(actual, expected)


def test_from_vector_returns_the_data_types_of_like():
    assert_tree(trees.from_vector(tf.constant([3.0, 2.5, 1.5, 0.5]), like=A), [1.5, 0.5], [3, 2.5])


def test_no_rows_has_an_unknown_number_of_rows():
    for shape, dtype in (([], np.str_), ([3], np.float32), ([3, 2], np.bool_)):
        computation = tff.tensorflow.computation(functools.partial(trees.no_rows, shape, dtype))
        expected = tff.types.TensorType(dtype, [None, *shape])
        tff.test.assert_types_identical(computation.type_signature.result, expected)
        assert np.shape(computation()) == (0, *shape)


STACKED = {
    "matrix": tf.reshape(tf.range(12.0), [3, 2, 2]),
    "and": (tf.constant([7, 8, 9]), {"a": tf.constant([[0.5], [1.5], [2.5]], tf.float16)}),
}


def assert_rows(actual, rows):
    """Asserts that stacked structures are the rows `rows` of `STACKED`."""
    tf.nest.assert_same_structure(actual, STACKED)
    for leaf, all_rows in zip(tf.nest.flatten(actual), tf.nest.flatten(STACKED), strict=True):
        assert leaf.dtype == all_rows.dtype
        np.testing.assert_array_equal(leaf, all_rows.numpy()[rows])


def test_row_accepts_one_index_or_several():
    for one in (0, tf.constant(2)):
        assert_rows(trees.row(STACKED, one), int(one))
    for some in ([1, 1, 2, 0], [1]):
        assert_rows(trees.row(STACKED, tf.constant(some)), some)
    assert_rows(trees.row(STACKED, tf.zeros([0], tf.int32)), slice(0))


def test_copies_returns_equal_rows():
    for number in (0, 1, 4):
        assert_rows(trees.copies(trees.row(STACKED, 1), number), [1] * number)
    np.testing.assert_array_equal(trees.copies(tf.constant(2.5), 3), [2.5, 2.5, 2.5])


def test_stack_is_the_inverse_of_row():
    assert_rows(trees.stack([trees.row(STACKED, index) for index in (2, 0)]), [2, 0])


def test_put_rows_replaces_only_given_rows():
    new = trees.row(STACKED, tf.constant([0, 1]))
    assert_rows(trees.put_rows(STACKED, tf.constant([2, 0]), new), [1, 1, 0])
    none = tf.zeros([0], tf.int32)
    assert_rows(trees.put_rows(STACKED, none, trees.row(new, none)), [0, 1, 2])


def test_scale_rows_uses_a_factor_per_row():
    rng = np.random.default_rng(0)
    shapes = ((3,), (3, 4), (3, 2, 1, 5))
    rows = [tf.constant(rng.normal(size=shape), tf.float32) for shape in shapes]
    factors = np.array([2.0, 0.0, -0.5], np.float32)
    for scaled, row in zip(trees.scale_rows(rows, tf.constant(factors)), rows, strict=True):
        np.testing.assert_array_equal(scaled, np.einsum("k,k...->k...", factors, row))


def test_combine_is_a_linear_combination():
    rows = {"matrix": STACKED["matrix"], "half": STACKED["and"][1]["a"]}
    combined = trees.combine(tf.constant([2.0, 0.0, -1.0]), rows)
    np.testing.assert_array_equal(combined["matrix"], [[-8.0, -7.0], [-6.0, -5.0]])
    assert combined["half"].dtype == tf.float16
    np.testing.assert_array_equal(combined["half"], [-1.5])


def test_combine_stacks_several_combinations():
    rows = {"matrix": tf.reshape(tf.range(12.0), [3, 2, 2]), "vector": tf.range(3.0)}
    combined = trees.combine(tf.constant([[2.0, 0.0, -1.0], [0.0, 1.0, 0.0]]), rows)
    first = trees.combine(tf.constant([2.0, 0.0, -1.0]), rows)
    np.testing.assert_array_equal(combined["matrix"], [first["matrix"], rows["matrix"][1]])
    np.testing.assert_array_equal(combined["vector"], [-2.0, 1.0])


def test_gram_uses_all_tensors_and_double_precision():
    rows = {"matrix": tf.constant([[[1e5, 1e-4]], [[1e5, 0.0]]]), "scalar": tf.constant([3.0, 1.0])}
    vectors = np.array([[1e5, np.float32(1e-4), 3.0], [1e5, 0.0, 1.0]])
    np.testing.assert_array_equal(trees.gram(rows), vectors @ vectors.T)
    assert trees.gram(trees.row(rows, tf.zeros([0], tf.int32))).shape == (0, 0)
