"""Tests `tff_pfl.local.sharpness`: SAM and LWSAM."""

import collections

import numpy as np
import tensorflow as tf

from tests.marks import together
from tests.quadratics import quadratic_examples, quadratic_model, spd, vector_of, weights_of
from tff_pfl.local import Batch, trees
from tff_pfl.local.sharpness import (
    highest_layers,
    layer_scores,
    perturbation,
    scale_layers,
    select_layers,
    sharpness_aware_gradient,
)

RHO = 0.05
GOLDEN = weights_of([3.0, 0.0, 0.0, 4.0], 2, 2)
ORDERS = (1.5, 2.0, 3.0, np.inf)


def layers(**weights):
    """Returns layers with given weights."""
    return collections.OrderedDict(
        (name, collections.OrderedDict((k, tf.constant(v, tf.float32)) for k, v in layer.items()))
        for name, layer in weights.items()
    )


def random_layers(seed, scale=1.0):
    """Returns three layers whose names are not in alphabetical order."""
    rng = np.random.default_rng(seed)
    return layers(
        stem={"kernel": scale * rng.normal(size=[2, 3]), "bias": scale * rng.normal(size=3)},
        body={"kernel": scale * rng.normal(size=[3, 2])},
        head={"kernel": scale * rng.normal(size=[2, 1]), "bias": scale * rng.normal(size=1)},
    )


def vector(weights) -> np.ndarray:
    return trees.to_vector(weights).numpy().astype(np.float64)


def norm(x, p):
    return np.linalg.norm(x, ord=p)


class TestPerturbation:
    def test_perturbation_has_golden_values(self):
        actual = perturbation(GOLDEN, RHO, tf.constant([0.25, 0.75]))
        np.testing.assert_allclose(vector_of(actual), [0.0075, 0, 0, 0.03], rtol=1e-6)
        actual = vector_of(perturbation(GOLDEN, RHO, p=4.0))
        np.testing.assert_allclose(actual, [0.039894, 0, 0, 0.043909], atol=1e-6)
        scored = perturbation(GOLDEN, RHO, tf.constant([0.5, 2.0]), p=4.0)
        np.testing.assert_allclose(vector_of(scored), [0.5, 0.5, 2, 2] * actual, rtol=1e-6)

    def test_order_2_with_equal_scores_is_sam(self):
        g = random_layers(0)
        actual = perturbation(g, RHO)
        np.testing.assert_allclose(vector(actual), RHO * vector(g) / norm(vector(g), 2), rtol=1e-5)
        tf.nest.assert_same_structure(actual, g)
        np.testing.assert_array_equal(vector(perturbation(g, RHO, tf.ones([3]))), vector(actual))

    def test_order_infinity_is_the_sign(self):
        actual = perturbation(weights_of([-3.0, 0.0, 1e-6, 4.0], 2, 2), RHO, p=np.inf)
        np.testing.assert_allclose(vector_of(actual), [-RHO, 0, RHO, RHO], rtol=1e-6)

    @together("p", ORDERS)
    def test_perturbation_has_norm_rho_and_the_largest_product(self, p):
        q = {1.5: 3.0, 2.0: 2.0, 3.0: 1.5, np.inf: 1.0}[p]
        g = random_layers(1)
        eps = vector(perturbation(g, RHO, p=p))
        np.testing.assert_allclose(norm(eps, p), RHO, rtol=1e-5)
        largest = RHO * norm(vector(g), q)
        np.testing.assert_allclose(eps @ vector(g), largest, rtol=1e-5)
        others = np.random.default_rng(2).normal(size=[1000, eps.size])
        others = np.concatenate([others, eps / RHO + 0.01 * others])  # Some are near.
        others *= RHO / np.linalg.norm(others, ord=p, axis=1, keepdims=True)
        assert np.max(others @ vector(g)) < largest * (1 + 1e-6)

    def test_scale_of_the_gradient_has_no_effect(self):
        """Includes orders 1.2 and 1.05, with `q` 6 and 21, whose powers overflow float32."""
        scores = tf.constant([0.2, 0.5, 0.3])
        for p, factor in [*((p, 1e-3) for p in ORDERS), *((p, 1e3) for p in ORDERS)]:
            actual = perturbation(random_layers(3, scale=factor), RHO, scores, p=p)
            expected = perturbation(random_layers(3), RHO, scores, p=p)
            np.testing.assert_allclose(vector(actual), vector(expected), rtol=1e-4)
        for p, factor in ((1.2, 1e-3), (1.05, 100.0)):
            eps = vector(perturbation(random_layers(3, factor), RHO, p=p))
            np.testing.assert_allclose(norm(eps, p), RHO, rtol=1e-3)

    def test_zero_gradient_gives_zero_perturbation(self):
        for p in ORDERS:
            actual = perturbation(trees.zeros_like(GOLDEN), RHO, p=p)
            np.testing.assert_array_equal(vector_of(actual), np.zeros(4))

    def test_norm_beyond_float32_gives_nan(self):
        """Prevents a perturbation of 0, with which SAM would be SGD."""
        gradient = {"a": tf.constant([3e19, -4e19])}
        assert np.isnan(perturbation(gradient, 0.05)["a"]).all()
        np.testing.assert_allclose(perturbation(gradient, 0.05, p=np.inf)["a"], [0.05, -0.05])


class TestLayerScores:
    def test_scores_are_distances_per_weight(self):
        moved = layers(  # The distances are sqrt(1 + 4 + 4 + 16) / 6 and 0.5 / 1.
            stem={"kernel": [[1.0, 2.0], [-2.0, 0.0]], "bias": [0.0, 4.0]}, body={"bias": [-0.5]}
        )
        np.testing.assert_allclose(layer_scores(moved), [5 / 8, 3 / 8], rtol=1e-6)

    def test_group_counts_as_one_layer(self):
        moved = layers(conv={"w": [3.0, 0.0]}, norm={"w": [0.0, 4.0]}, head={"w": [2.0]})
        scores = layer_scores(moved, (0, 0, 1))
        np.testing.assert_allclose(scores, np.array([5 / 4, 5 / 4, 2]) / (5 / 4 + 2), rtol=1e-6)
        for number, expected in enumerate(([0, 0, 0], [0, 0, 1], [1, 1, 1])):
            np.testing.assert_array_equal(highest_layers(scores, number, (0, 0, 1)), expected)

    def test_scores_are_equal_without_movement(self):
        actual = layer_scores(trees.zeros_like(random_layers(0)))
        np.testing.assert_allclose(actual, [1 / 3] * 3, rtol=1e-7)

    def test_scale_of_the_difference_has_no_effect(self):
        for scale in (1e-6, 1e6):
            actual = layer_scores(random_layers(5, scale))
            np.testing.assert_allclose(actual, layer_scores(random_layers(5)), rtol=1e-5)


@together(
    ("scores", "in_order"),
    [
        ([0.1, 0.4, 0.2, 0.3], [1, 3, 2, 0]),
        ([0.25, 0.25, 0.25, 0.25], [3, 2, 1, 0]),
        ([0.4, 0.1, 0.4, 0.1], [2, 0, 3, 1]),
        ([1.0], [0]),
    ],
)
def test_highest_layers_break_ties_towards_the_output(scores, in_order):
    for number in range(len(scores) + 1):
        chosen = highest_layers(tf.constant(scores), number)
        assert chosen.dtype == tf.bool and chosen.shape == [len(scores)]
        np.testing.assert_array_equal(np.flatnonzero(chosen), sorted(in_order[:number]))


def test_scale_layers_uses_a_factor_per_layer():
    weights, factors = random_layers(8), [2.0, 0.0, -0.5]
    scaled = scale_layers(weights, tf.constant(factors))
    assert list(scaled) == ["stem", "body", "head"]
    for layer, before, factor in zip(scaled.values(), weights.values(), factors, strict=True):
        for name, leaf in before.items():
            np.testing.assert_array_equal(layer[name], factor * leaf)


def test_select_layers_copies_bit_for_bit():
    odd = [-0.0, np.nan, np.inf, np.float32(1e-45), 1.0]
    a = layers(stem={"w": odd}, body={"w": odd[::-1]}, head={"b": odd[:2], "a": odd[2:]})
    b = tf.nest.map_structure(lambda leaf: -leaf, a)
    selected = select_layers(tf.constant([True, False, True]), a, b)
    assert list(selected) == ["stem", "body", "head"]
    for name, from_a in zip(a, [True, False, True], strict=True):
        for key, expected in (a if from_a else b)[name].items():
            assert selected[name][key].numpy().tobytes() == expected.numpy().tobytes()


def test_sharpness_aware_gradient_of_a_quadratic_matches_numpy():
    a, c, w = spd(3, seed=1), np.array([1.0, -2.0, 0.5]), np.array([0.3, 0.2, -0.1])
    model, examples = quadratic_model(2, 1), quadratic_examples(a, c, 0.25)
    batch = Batch(examples.x, examples.y, tf.ones([1]), tf.zeros([2], tf.int32))
    gradient = sharpness_aware_gradient(model, rho=0.7)
    direction, totals, carry = gradient(weights_of(w, 2, 1), batch, tf.constant(7))
    ascent = a @ (w - c)
    expected = a @ (w + 0.7 * ascent / norm(ascent, 2) - c)
    np.testing.assert_allclose(vector_of(direction), expected, rtol=1e-5)
    np.testing.assert_allclose(totals["loss"].total, 0.5 * (w - c) @ ascent + 0.25, rtol=1e-6)
    assert totals["loss"].count == 1.0 and carry == 7
