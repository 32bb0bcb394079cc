"""Tests of `tff_pfl.local.sharpness`: SAM and LWSAM, as they are and inside a graph."""

import collections
import types

import numpy as np
import pytest
import tensorflow as tf

from tests.federation import local_sgd
from tests.marks import slow
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
ONES = tf.ones([3])


@pytest.fixture(params=["eager", slow("graph")])
def traced(request):
    """Wraps what is tested: as it is, and in a `tf.function`."""
    return tf.function if request.param == "graph" else lambda fn: fn


def layers(**weights):
    """Layers by name, each of some weights."""
    return collections.OrderedDict(
        (name, collections.OrderedDict((k, tf.constant(v, tf.float32)) for k, v in layer.items()))
        for name, layer in weights.items()
    )


def random_layers(seed, scale=1.0):
    """Three layers whose names are not in the order of the alphabet."""
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
    def test_golden_values_of_order_2(self, traced):
        actual = traced(perturbation)(GOLDEN, RHO, tf.constant([0.25, 0.75]))
        np.testing.assert_allclose(vector_of(actual), [0.0075, 0, 0, 0.03], rtol=1e-6)

    def test_golden_values_of_order_4(self, traced):
        actual = vector_of(traced(lambda g: perturbation(g, RHO, p=4.0))(GOLDEN))
        np.testing.assert_allclose(actual, [0.039894, 0, 0, 0.043909], atol=1e-6)
        np.testing.assert_allclose(norm(actual, 4), RHO, rtol=1e-6)
        scored = traced(lambda g, xi: perturbation(g, RHO, xi, p=4.0))(GOLDEN, [0.5, 2.0])
        np.testing.assert_allclose(vector_of(scored), [0.5, 0.5, 2, 2] * actual, rtol=1e-6)

    def test_order_2_with_equal_scores_is_sam(self, traced):
        g = random_layers(0)
        expected = RHO * vector(g) / norm(vector(g), 2)
        actual = traced(lambda g: perturbation(g, RHO))(g)
        np.testing.assert_allclose(vector(actual), expected, rtol=1e-5)
        tf.nest.assert_same_structure(actual, g)
        with_scores = traced(lambda g: perturbation(g, RHO, ONES, p=2.0))(g)
        np.testing.assert_array_equal(vector(with_scores), vector(actual))

    def test_order_infinity_is_the_sign(self, traced):
        g = weights_of([-3.0, 0.0, 1e-6, 4.0], 2, 2)
        actual = traced(lambda g: perturbation(g, RHO, p=np.inf))(g)
        np.testing.assert_allclose(vector_of(actual), [-RHO, 0, RHO, RHO], rtol=1e-6)

    @pytest.mark.parametrize("p", ORDERS)
    def test_it_is_the_vector_of_norm_rho_with_the_largest_product(self, traced, p):
        q = {1.5: 3.0, 2.0: 2.0, 3.0: 1.5, np.inf: 1.0}[p]
        g = random_layers(1)
        eps = vector(traced(lambda g: perturbation(g, RHO, p=p))(g))
        np.testing.assert_allclose(norm(eps, p), RHO, rtol=1e-5)
        largest = RHO * norm(vector(g), q)
        np.testing.assert_allclose(eps @ vector(g), largest, rtol=1e-5)
        others = np.random.default_rng(2).normal(size=[1000, eps.size])
        others = np.concatenate([others, eps / RHO + 0.01 * others])  # some are near
        others *= RHO / np.linalg.norm(others, ord=p, axis=1, keepdims=True)
        assert np.max(others @ vector(g)) < largest * (1 + 1e-6)

    @pytest.mark.parametrize("p", [*ORDERS, 4.0])
    @pytest.mark.parametrize("factor", [1e-3, 1e3])
    def test_the_length_of_the_gradient_does_not_matter(self, traced, p, factor):
        perturb = traced(lambda g: perturbation(g, RHO, tf.constant([0.2, 0.5, 0.3]), p=p))
        actual = perturb(random_layers(3, scale=factor))
        np.testing.assert_allclose(vector(actual), vector(perturb(random_layers(3))), rtol=1e-4)

    @pytest.mark.parametrize(("p", "scale"), [(1.2, 1e-3), (1.05, 100.0)])
    def test_nor_does_it_for_orders_near_1(self, traced, p, scale):
        """With `q` of 6 and 21, powers of common gradients are tiny, or beyond float32."""
        eps = vector(traced(lambda g: perturbation(g, RHO, p=p))(random_layers(3, scale)))
        np.testing.assert_allclose(norm(eps, p), RHO, rtol=1e-3)

    @pytest.mark.parametrize("p", [1.5, 2.0, 4.0, np.inf])
    def test_no_gradient_no_perturbation(self, traced, p):
        actual = traced(lambda g: perturbation(g, RHO, p=p))(trees.zeros_like(GOLDEN))
        np.testing.assert_array_equal(vector_of(actual), np.zeros(4))

    @pytest.mark.parametrize("p", ORDERS)
    def test_it_never_descends_and_layers_of_score_0_stay(self, traced, p):
        perturb = traced(lambda g, xi: perturbation(g, RHO, xi, p=p))
        for seed in range(5):
            g, xi = random_layers(seed), np.random.default_rng(seed).uniform(size=3)
            xi[seed % 3] = 0.0
            eps = perturb(g, tf.constant(xi, tf.float32))
            assert trees.dot(eps, g) > 0.0
            for score, layer in zip(xi, eps.values(), strict=True):
                assert (trees.norm(layer) == 0.0) == (score == 0.0)

    @pytest.mark.parametrize("p", [1.0, 0.5, 0.0, -2.0, np.nan])
    def test_the_order_is_over_1(self, traced, p):
        with pytest.raises(ValueError, match=f"order p of the norm must be over 1, got {p}"):
            traced(lambda g: perturbation(g, RHO, p=p))(GOLDEN)


class TestLayerScores:
    def test_distances_per_weight(self, traced):
        moved = layers(  # sqrt(1 + 4 + 4 + 16) / 6 and 0.5 / 1
            stem={"kernel": [[1.0, 2.0], [-2.0, 0.0]], "bias": [0.0, 4.0]}, body={"bias": [-0.5]}
        )
        np.testing.assert_allclose(traced(layer_scores)(moved), [5 / 8, 3 / 8], rtol=1e-6)

    def test_more_weights_that_moved_as_far_count_less(self, traced):
        """Of 4 times as many weights, the norm is twice as long."""
        moved = layers(few={"w": [0.3] * 2}, many={"w": [0.3] * 8})
        np.testing.assert_allclose(traced(layer_scores)(moved), [2 / 3, 1 / 3], rtol=1e-6)

    def test_a_group_is_one_layer(self, traced):
        moved = layers(conv={"w": [3.0, 0.0]}, norm={"w": [0.0, 4.0]}, head={"w": [2.0]})
        scores = traced(lambda d: layer_scores(d, (0, 0, 1)))(moved)
        np.testing.assert_allclose(scores, np.array([5 / 4, 5 / 4, 2]) / (5 / 4 + 2), rtol=1e-6)
        for number, expected in enumerate(([0, 0, 0], [0, 0, 1], [1, 1, 1])):
            chosen = traced(lambda xi, n=number: highest_layers(xi, n, (0, 0, 1)))(scores)
            np.testing.assert_array_equal(chosen, expected)

    def test_they_add_up(self, traced):
        actual = traced(layer_scores)(random_layers(4))
        assert actual.shape == [3] and actual.dtype == tf.float32
        np.testing.assert_allclose(tf.reduce_sum(actual), 1.0, rtol=1e-6)

    def test_where_nothing_moved_they_are_equal(self, traced):
        zero = trees.zeros_like(random_layers(0))
        actual = traced(layer_scores)(zero)
        np.testing.assert_allclose(actual, [1 / 3] * 3, rtol=1e-7)

    @pytest.mark.parametrize("scale", [1e-6, 1e6])
    def test_how_far_all_moved_does_not_matter(self, traced, scale):
        actual = traced(layer_scores)(random_layers(5, scale))
        np.testing.assert_allclose(actual, layer_scores(random_layers(5)), rtol=1e-5)

    def test_of_many_clients_at_once(self, traced):
        clients = [random_layers(6), trees.zeros_like(random_layers(6)), random_layers(7)]
        stacked = tf.nest.map_structure(lambda *leaves: tf.stack(leaves), *clients)
        actual = traced(lambda d: tf.vectorized_map(layer_scores, d))(stacked)
        expected = [layer_scores(client) for client in clients]
        np.testing.assert_allclose(actual, expected, rtol=1e-6)
        assert np.ptp(expected[0]) > 0.01


class TestHighestLayers:
    @pytest.mark.parametrize(
        ("scores", "in_order"),
        [
            ([0.1, 0.4, 0.2, 0.3], [1, 3, 2, 0]),
            ([0.25, 0.25, 0.25, 0.25], [3, 2, 1, 0]),
            ([0.4, 0.1, 0.4, 0.1], [2, 0, 3, 1]),
            ([0.0, 0.0, 1.0, 0.0], [2, 3, 1, 0]),
        ],
    )
    def test_of_equal_scores_those_nearer_the_output(self, traced, scores, in_order):
        for number in range(5):
            chosen = traced(lambda xi, n=number: highest_layers(xi, n))(tf.constant(scores))
            assert chosen.dtype == tf.bool and chosen.shape == [4]
            np.testing.assert_array_equal(np.flatnonzero(chosen), sorted(in_order[:number]))

    def test_of_one_layer(self, traced):
        for number in (0, 1):
            chosen = traced(lambda xi, n=number: highest_layers(xi, n))(tf.constant([1.0]))
            np.testing.assert_array_equal(chosen, [bool(number)])

    @pytest.mark.parametrize("number", range(4))
    def test_of_many_clients_at_once(self, traced, number):
        scores = tf.constant([[0.5, 0.2, 0.3], [0.0, 0.0, 0.0], [0.2, 0.6, 0.2], [0.1, 0.2, 0.7]])
        order = np.array([[0, 2, 1], [2, 1, 0], [1, 2, 0], [2, 1, 0]])
        choose = traced(lambda s: tf.vectorized_map(lambda xi: highest_layers(xi, number), s))
        expected = np.zeros([4, 3], bool)
        np.put_along_axis(expected, order[:, :number], True, axis=1)
        np.testing.assert_array_equal(choose(scores), expected)


def test_each_layer_has_its_own_factor(traced):
    weights, factors = random_layers(8), [2.0, 0.0, -0.5]
    scaled = traced(scale_layers)(weights, tf.constant(factors))
    assert list(scaled) == ["stem", "body", "head"]
    for layer, before, factor in zip(scaled.values(), weights.values(), factors, strict=True):
        for name, leaf in before.items():
            np.testing.assert_array_equal(layer[name], factor * leaf)


@pytest.mark.parametrize("mask", [[True, False, True], [False, True, False], [True] * 3])
def test_layers_are_selected_bit_for_bit(traced, mask):
    odd = [-0.0, np.nan, np.inf, np.float32(1e-45), 1.0]
    a = layers(stem={"w": odd}, body={"w": odd[::-1]}, head={"b": odd[:2], "a": odd[2:]})
    b = tf.nest.map_structure(lambda leaf: -leaf, a)
    selected = traced(select_layers)(tf.constant(mask), a, b)
    assert list(selected) == ["stem", "body", "head"]
    for name, from_a in zip(a, mask, strict=True):
        for key, expected in (a if from_a else b)[name].items():
            assert selected[name][key].numpy().tobytes() == expected.numpy().tobytes()


class TestSharpnessAwareGradient:
    A, C, W = spd(3, seed=1), np.array([1.0, -2.0, 0.5]), np.array([0.3, 0.2, -0.1])
    ETA, LENGTH = 0.3, 0.7

    def step(self, w):
        ascent = self.A @ (w - self.C)
        return w - self.ETA * self.A @ (w + self.LENGTH * ascent / norm(ascent, 2) - self.C)

    def test_a_step_on_a_quadratic(self, traced):
        model = quadratic_model(2, 1)
        examples = quadratic_examples(self.A, self.C, 0.25)
        batch = Batch(examples.x, examples.y, tf.ones([1]), tf.zeros([2], tf.int32))
        gradient = traced(sharpness_aware_gradient(model, self.LENGTH))
        direction, totals, carry = gradient(weights_of(self.W, 2, 1), batch, tf.constant(7))
        expected = (self.W - self.step(self.W)) / self.ETA
        np.testing.assert_allclose(vector_of(direction), expected, rtol=1e-5)
        offset = self.W - self.C
        loss_at_w = 0.5 * offset @ self.A @ offset + 0.25
        np.testing.assert_allclose(totals["loss"].total, loss_at_w, rtol=1e-6)
        assert totals["loss"].count == 1.0 and carry == 7

    def test_in_local_training(self, steps=3):
        model, local = quadratic_model(2, 1), local_sgd(self.ETA, steps)
        context = types.SimpleNamespace(seed=tf.constant([1, 2]), round_num=tf.constant(0))
        train = tf.function(
            lambda w, examples: (
                local.train(
                    model,
                    w,
                    examples,
                    context,
                    gradient=sharpness_aware_gradient(model, self.LENGTH),
                ).weights
            ),
            autograph=False,
        )
        actual = train(weights_of(self.W, 2, 1), quadratic_examples(self.A, self.C))
        expected = self.W
        for _ in range(steps):
            expected = self.step(expected)
        np.testing.assert_allclose(vector_of(actual), expected, rtol=1e-5)


def test_of_a_gradient_whose_norm_leaves_float32_it_is_no_number():
    """It was 0, so that a step of SAM was one of SGD."""
    gradient = {"a": tf.constant([3e19, -4e19])}
    assert np.isnan(perturbation(gradient, 0.05)["a"]).all()
    np.testing.assert_allclose(perturbation(gradient, 0.05, p=np.inf)["a"], [0.05, -0.05])
