"""Tests numbers at the ends of float32 in `attention`; `test_round` tests its formulas."""

import numpy as np
import pytest
import tensorflow as tf

from tests.marks import together
from tff_pfl.algorithms.fedamp import attention
from tff_pfl.local import trees

K = 5
SHAPES = ((2,), (3, 1), ())
IS_SELF = np.eye(K, dtype=bool)


def random_models(number=K, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    return [tf.constant(scale * rng.normal(size=(number, *shape)), tf.float32) for shape in SHAPES]


def flat(models):
    """Flattens models to float64 `[k, 6]`."""
    return np.concatenate([np.reshape(leaf, (len(leaf), -1)) for leaf in models], 1).astype(float)


def distances_by_hand(first, second):
    return np.sum((flat(first)[:, np.newaxis] - flat(second)) ** 2, axis=-1)


@together(("scale", "alpha", "sigma"), [(0.0, 1e4, 0.1), (1.0, 0.001, 25.0), (1e3, 1.0, 0.1)])
def test_rows_of_distance_attention_are_convex(scale, alpha, sigma):
    models = random_models(scale=scale)
    distances = attention.squared_distances(models, models)
    xi = attention.distance_attention(distances, tf.constant(IS_SELF), alpha, sigma).numpy()
    assert np.all(xi >= 0.0)
    np.testing.assert_allclose(xi.sum(axis=1), 1.0, rtol=1e-6)


class TestSquaredDistances:
    def test_distances_of_similar_models_are_precise(self):
        """Tests numbers near 1,000 that differ by about 1/1024; inner products are less precise."""
        steps = np.random.default_rng(0).integers(-3, 4, [K, 40])
        models = [tf.constant(1000 + steps / 1024, tf.float32)]
        expected = np.sum((steps[:, np.newaxis] - steps) ** 2, axis=-1) / 1024**2
        np.testing.assert_allclose(
            attention.squared_distances(models, models), expected, rtol=1e-6, atol=0
        )

    def test_number_of_models_may_be_unknown(self):
        specs = [tf.TensorSpec([None, *shape]) for shape in SHAPES]

        @tf.function(input_signature=[specs, specs])
        def both(first, second):
            return attention.squared_distances(first, second), attention.cosines(first, second)

        first, second = random_models(2), random_models(3, seed=1)
        distances, cosines = both(first, second)
        np.testing.assert_allclose(distances, distances_by_hand(first, second), rtol=1e-5)
        np.testing.assert_allclose(cosines, attention.cosines(first, second), rtol=1e-5)


class TestCosines:
    @pytest.mark.parametrize("scale", [1e20, 1e37])
    def test_cosines_of_huge_models_do_not_overflow(self, scale):
        models = random_models()
        expected = attention.cosines(models, models)
        factors = np.array([1.0, scale, -scale, 1e-3, 1.0], np.float32)
        long = [leaf * np.reshape(factors, [K] + [1] * (leaf.shape.rank - 1)) for leaf in models]
        signs = np.sign(factors)
        expected *= np.outer(signs, signs)
        np.testing.assert_allclose(attention.cosines(long, long), expected, atol=1e-6)

    def test_cosines_are_0_if_a_model_is_zero(self):
        zero = trees.zeros_like(random_models(2))
        np.testing.assert_array_equal(attention.cosines(zero, random_models()), np.zeros([2, K]))
        np.testing.assert_array_equal(attention.cosines(zero, zero), np.zeros([2, 2]))


class TestMedianOfOthers:
    # Distances to the client itself are not 0 here, to show that they are left out.
    def median(self, values, is_self):
        return float(attention.median_of_others(tf.constant(values), tf.constant(is_self)))

    def test_median_of_an_odd_number_is_the_middle(self):
        """Tests an odd number of distances to others, with one and two clients."""
        values = np.array([[-1.0, 5.0], [7.0, 1.0]], np.float32)
        assert self.median(values, np.array([[True, False], [False, False]])) == 5.0
        values = np.array([[4.0, 8.0, -1.0, 1.0]], np.float32)
        assert self.median(values, np.array([[False, False, True, False]])) == 4.0
        assert self.median(values[:, 1:3], np.array([[False, True]])) == 8.0

    def test_equal_models_do_not_count(self):
        """Clients that never took part have equal models: in a large federation most, at first."""
        values = np.array([[-1.0, 0.0, 0.0, 0.0, 8.0, 2.0]], np.float32)
        assert self.median(values, np.eye(1, 6, dtype=bool)) == 5.0
        assert self.median(0.0 * values, np.eye(1, 6, dtype=bool)) == 0.0

    def test_infinite_distances_do_not_count_and_stay_infinite(self):
        distances = tf.constant([[0.0, 2.0, np.inf], [2.0, 0.0, np.inf], [np.inf, np.inf, 0.0]])
        is_self = tf.eye(3, dtype=tf.bool)
        assert self.median(distances, is_self) == 2.0
        found = attention.in_unit(distances, attention.median_of_others(distances, is_self))
        np.testing.assert_array_equal(found, distances / 2.0)
        np.testing.assert_array_equal(attention.in_unit(distances[0], 0.0), [0.0, 0.0, np.inf])
        largest = np.finfo(np.float32).max
        assert self.median(np.float32([[0.0, largest, largest]]), is_self[:1]) == largest

    def test_median_of_no_distances_is_0(self):
        assert self.median(np.zeros([1, 1], np.float32), np.array([[True]])) == 0.0
        assert self.median(np.zeros([0, 3], np.float32), np.zeros([0, 3], bool)) == 0.0
