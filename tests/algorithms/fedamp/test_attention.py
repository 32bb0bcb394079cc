"""Tests of `tff_pfl.algorithms.fedamp.attention`."""

import numpy as np
import pytest
import tensorflow as tf

from tests.marks import together
from tff_pfl.algorithms.fedamp import attention
from tff_pfl.local import trees

K = 5
ALPHA, SIGMA = 0.4, 6.0  # `(K - 1) ALPHA / SIGMA < 1`, so that nothing is clamped
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


def attend(models, alpha=ALPHA, sigma=SIGMA):
    """Computes `xi` between all clients."""
    distances = attention.squared_distances(models, models)
    return attention.distance_attention(distances, tf.constant(IS_SELF), alpha, sigma).numpy()


class TestDistanceAttention:
    def test_attention_agrees_with_the_formula(self):
        d = distances_by_hand(random_models(), random_models())
        others = np.where(IS_SELF, 0.0, ALPHA * np.exp(-d / SIGMA) / SIGMA)
        expected = others + np.diag(1 - others.sum(axis=1))
        np.testing.assert_allclose(attend(random_models()), expected, rtol=1e-5)

    @together(("scale", "alpha", "sigma"), [(0.0, 1e4, 0.1), (1.0, 0.001, 25.0), (1e3, 1.0, 0.1)])
    def test_rows_are_convex(self, scale, alpha, sigma):
        xi = attend(random_models(scale=scale), alpha, sigma)
        assert np.all(xi >= 0.0)
        np.testing.assert_allclose(xi.sum(axis=1), 1.0, rtol=1e-6)


class TestSquaredDistances:
    def test_distances_cover_all_tensors(self):
        first, second = random_models(4, seed=1), random_models(K, seed=2)
        found = attention.squared_distances(first, second)
        assert found.shape == (4, K)
        np.testing.assert_allclose(found, distances_by_hand(first, second), rtol=1e-5)

    def test_distances_of_similar_models_are_precise(self):
        """Tests numbers near 1,000 that differ by about 1/1024; inner products are less precise."""
        steps = np.random.default_rng(0).integers(-3, 4, [K, 40])
        models = [tf.constant(1000 + steps / 1024, tf.float32)]
        expected = np.sum((steps[:, np.newaxis] - steps) ** 2, axis=-1) / 1024**2
        np.testing.assert_allclose(
            attention.squared_distances(models, models), expected, rtol=1e-6, atol=0
        )

    @pytest.mark.thorough
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
    def test_cosines_treat_all_tensors_as_one_vector(self):
        first, second = random_models(4, seed=1), random_models(K, seed=2)
        a, b = flat(first), flat(second)
        norms = np.linalg.norm(a, axis=1)[:, np.newaxis] * np.linalg.norm(b, axis=1)
        expected = a @ b.T / norms
        np.testing.assert_allclose(attention.cosines(first, second), expected, atol=1e-6)
        longer = trees.scale(first, 1e4)
        np.testing.assert_allclose(attention.cosines(longer, second), expected, atol=1e-6)

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


def cosine_attend(cosines, is_self=IS_SELF, sigma=2.0, self_weight=None):
    cosines = tf.constant(cosines, tf.float32)
    return attention.cosine_attention(cosines, tf.constant(is_self), sigma, self_weight).numpy()


class TestCosineAttention:
    COSINES = np.random.default_rng(3).uniform(-1, 1, [K, K])

    @pytest.mark.parametrize(("sigma", "self_weight"), [(0.5, None), (25.0, 0.4)])
    def test_attention_agrees_with_the_formula(self, sigma, self_weight):
        xi = cosine_attend(self.COSINES, sigma=sigma, self_weight=self_weight)
        own = 1 / K if self_weight is None else self_weight
        for i in range(K):
            terms = [np.exp(sigma * self.COSINES[i, j]) for j in range(K) if j != i]
            expected = np.insert((1 - own) * np.array(terms) / sum(terms), i, own)
            np.testing.assert_allclose(xi[i], expected, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(xi.sum(axis=1), 1.0, rtol=1e-6)

    def test_default_self_weight_is_the_mean_weight(self):
        """Tests the mean over all neighbours, even if there are fewer rows than neighbours."""
        xi = cosine_attend(self.COSINES[:2], IS_SELF[:2])
        np.testing.assert_allclose(xi[[0, 1], [0, 1]], 1 / K, rtol=1e-6)
        np.testing.assert_allclose(xi, cosine_attend(self.COSINES)[:2], rtol=1e-6)

    @pytest.mark.parametrize("self_weight", [None, 0.4])
    def test_client_without_other_neighbours_keeps_its_model(self, self_weight):
        xi = cosine_attend([[1.0]], [[True]], self_weight=self_weight)
        np.testing.assert_array_equal(xi, [[1.0]])


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

    def test_median_agrees_with_numpy(self):
        for k in (2, 3, 4, 5):
            models = random_models(k, seed=k)
            d = attention.squared_distances(models, models).numpy()
            is_self = np.eye(k, dtype=bool)
            np.testing.assert_allclose(self.median(d, is_self), np.median(d[~is_self]), rtol=1e-6)

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
