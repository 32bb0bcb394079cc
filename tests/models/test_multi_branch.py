"""Tests `tff_pfl.models.multi_branch`."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.federation import assert_close, assert_equal, leaves
from tests.marks import together
from tests.models.keras.test_adapter import layers, sequential
from tests.quadratics import quadratic_model
from tff_pfl.local import Batch, trees
from tff_pfl.models import distinct_seeds, from_keras, multi_branch

SHAPE, GROUPS, EPSILON, CLASSES, BRANCHES = (6, 6, 2), 2, 1e-3, 3, 3
LINEAR = ("conv", "dense")


def network():
    """Builds a convolution, group normalisation, and a dense layer."""
    return tf.keras.Sequential(
        [
            layers.InputLayer(input_shape=SHAPE),
            layers.Conv2D(4, 3, name="conv"),
            layers.GroupNormalization(GROUPS, epsilon=EPSILON, name="norm"),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dense(CLASSES, name="dense"),
        ]
    )


MODEL = from_keras(network, input_shape=SHAPE)
ALPHA = np.float32([[0.2, 0.5, 0.3], [0.7, 0.0, 0.3]])
ROW = np.float32([[0.6, 0.1, 0.3]])


def batch():
    """Returns 5 rows, the last of them padding."""
    rng = np.random.default_rng(0)
    return Batch(
        x=tf.constant(rng.normal(size=(5, *SHAPE)), tf.float32),
        y=tf.constant(rng.integers(0, CLASSES, 5), tf.int32),
        weight=tf.constant([1.0, 1, 1, 1, 0]),
        seed=tf.constant([3, 4]),
    )


class TestBranchedLayers:
    @pytest.mark.thorough
    @together(
        ("kind", "args", "shape", "linear"),
        [
            (layers.Dense, [3, None, False], (4,), True),
            (layers.DepthwiseConv2D, [2], (4, 4, 2), True),
            (layers.Embedding, [5, 3], (4,), True),
            # A product of two kernels.
            (layers.SeparableConv2D, [3, 2], (4, 4, 2), False),
            (layers.GroupNormalization, [1], (4, 4, 2), False),
            (layers.SimpleRNN, [3], (4, 2), False),
        ],
    )
    def test_default_is_all_linear_layers(self, kind, args, shape, linear):
        middle = functools.partial(kind, *args, name="middle")
        model = from_keras(sequential(middle, layers.Flatten, shape=shape), input_shape=shape)
        assert multi_branch(model, 2).layers == (("middle", "head") if linear else ("head",))

    def test_layers_can_be_named(self):
        assert multi_branch(MODEL, BRANCHES).layers == LINEAR
        assert multi_branch(MODEL, 2, layers=iter(["dense", "conv"])).layers == LINEAR
        assert multi_branch(MODEL, 2, layers="conv").layers == ("conv",)

    def test_named_layers_can_be_of_any_kind(self):
        branched = multi_branch(MODEL, 2, layers=("norm",))
        assert branched.layers == ("norm",)
        shapes = {name: tuple(w.shape) for name, w in branched.init(0)["norm"].items()}
        assert shapes == {"gamma": (2, 4), "beta": (2, 4)}
        assert branched.init(0)["dense"]["bias"].shape == (CLASSES,)

    def test_at_least_one_layer_is_required(self):
        for model, chosen in ((quadratic_model(2, 1), None), (MODEL, ())):
            with pytest.raises(ValueError, match="has no layer of a kernel and a bias. Name the"):
                multi_branch(model, 2, layers=chosen)


class TestInit:
    @pytest.mark.parametrize("number", [1, BRANCHES])
    def test_branches_are_models_of_distinct_seeds(self, number, seed=7):
        weights, seeds = multi_branch(MODEL, number).init(seed), distinct_seeds(seed, number)
        assert list(weights) == list(MODEL.layers) and seeds[0] == seed
        assert_equal(weights["norm"], MODEL.init(seed)["norm"])
        drawn = [MODEL.init(one) for one in seeds]
        for name in LINEAR:
            assert_equal(weights[name], trees.stack([one[name] for one in drawn]))
            kernels = weights[name]["kernel"].numpy()
            for b, kernel in enumerate(kernels):
                assert all(np.max(np.abs(kernel - other)) > 0.1 for other in kernels[:b])
        assert_equal(multi_branch(MODEL, number).init(seed), weights)

    def test_init_scale_scales_branched_layers(self):
        plain = multi_branch(MODEL, BRANCHES).init(1)
        scaled = multi_branch(MODEL, BRANCHES, init_scale=1.75).init(1)
        assert_equal(scaled["norm"], plain["norm"])
        for name in LINEAR:
            assert_close(scaled[name], tf.nest.map_structure(lambda w: 1.75 * w, plain[name]))


NETWORK = multi_branch(MODEL, BRANCHES)
RNG = np.random.default_rng(5)
# All weights are random, including biases and norms.
WEIGHTS = tf.nest.map_structure(
    lambda w: tf.constant(RNG.normal(size=w.shape), tf.float32), NETWORK.init(0)
)


def mixture_of_outputs(weights, alpha, x):
    """Computes the network's forward pass by mixing the outputs of branches."""
    conv, norm, dense = weights["conv"], weights["norm"], weights["dense"]
    h = sum(
        a * (tf.nn.conv2d(x, conv["kernel"][b], 1, "VALID") + conv["bias"][b])
        for b, a in enumerate(alpha[0])
    )
    groups = tf.reshape(h, [*h.shape[:3], GROUPS, -1])
    mean, variance = tf.nn.moments(groups, [1, 2, 4], keepdims=True)
    h = tf.reshape((groups - mean) / tf.sqrt(variance + EPSILON), h.shape)
    h = tf.nn.relu(h * norm["gamma"] + norm["beta"])
    h = tf.reshape(h, [h.shape[0], -1])
    return sum(a * (h @ dense["kernel"][b] + dense["bias"][b]) for b, a in enumerate(alpha[-1]))


@pytest.mark.parametrize("alpha", [ALPHA, ROW])
def test_mixing_weights_equals_mixing_outputs(alpha):
    x = batch().x
    expected = mixture_of_outputs(WEIGHTS, alpha, x)
    assert np.std(expected) > 0.1
    for outputs in (
        MODEL.apply(NETWORK.mix(WEIGHTS, alpha), x),
        NETWORK.weights_model(alpha).apply(WEIGHTS, x),
        NETWORK.alpha_model(WEIGHTS).apply(tf.constant(alpha), x),
    ):
        np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-4)


def test_one_row_of_alpha_applies_to_all_layers():
    assert_equal(NETWORK.mix(WEIGHTS, ROW), NETWORK.mix(WEIGHTS, np.repeat(ROW, 2, axis=0)))
    assert_equal(list(NETWORK.rows(ROW).values()), [ROW[0]] * 2)
    assert list(NETWORK.rows(ALPHA)) == list(LINEAR)
    assert_equal(list(NETWORK.rows(ALPHA).values()), list(ALPHA))


def test_uniform_alpha_gives_the_mean():
    mixed = NETWORK.mix(WEIGHTS, NETWORK.uniform())
    assert list(mixed) == list(MODEL.layers)
    assert_equal(mixed["norm"], WEIGHTS["norm"])
    for name in LINEAR:
        for kind, branches in WEIGHTS[name].items():
            np.testing.assert_allclose(mixed[name][kind], np.mean(branches, axis=0), atol=1e-6)
    assert_equal(NETWORK.alpha_model(WEIGHTS).init(0), NETWORK.uniform())


class TestGradients:
    """Compares gradients with the gradient of the merged model."""

    def merged(self, alpha):
        gradient, totals = MODEL.gradient(NETWORK.mix(WEIGHTS, alpha), batch())
        assert min(np.max(np.abs(g)) for g in leaves(gradient)) > 1e-3
        return gradient, totals

    @pytest.mark.parametrize("alpha", [ALPHA, ROW])
    def test_gradient_of_a_branch_is_scaled_by_its_coefficient(self, alpha):
        expected, expected_totals = self.merged(alpha)
        model = NETWORK.weights_model(alpha)
        gradient, totals = model.gradient(WEIGHTS, batch())
        assert_close(totals, expected_totals)
        assert_close(gradient["norm"], expected["norm"])
        for name, row in zip(LINEAR, (alpha[0], alpha[-1]), strict=True):
            for found, whole in zip(leaves(gradient[name]), leaves(expected[name]), strict=True):
                np.testing.assert_allclose(found, np.multiply.outer(row, whole), atol=1e-5)

    def products(self, alpha):
        """Computes `<W_lb, dL/dW_l>`, biases included, as `[L, B]`."""
        gradient, _ = self.merged(alpha)
        pairs = [(leaves(WEIGHTS[name]), leaves(gradient[name])) for name in LINEAR]
        return np.array(
            [
                [sum(np.sum(w[b] * g) for w, g in zip(*pair, strict=True)) for b in range(BRANCHES)]
                for pair in pairs
            ]
        )

    @pytest.mark.parametrize("alpha", [ALPHA, ROW])
    def test_gradient_of_alpha_is_a_product_with_the_branch(self, alpha):
        """Adds the products of layers that have the same alpha."""
        gradient, totals = NETWORK.alpha_model(WEIGHTS).gradient(tf.constant(alpha), batch())
        expected = self.products(alpha)
        if len(alpha) == 1:
            expected = np.sum(expected, axis=0, keepdims=True)
        np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-4)
        assert_close(totals, self.merged(alpha)[1])
