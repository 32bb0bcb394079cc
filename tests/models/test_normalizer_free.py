"""Tests `tff_pfl.models.normalizer_free` against the paper's count and plain TensorFlow."""

import functools
import math

import numpy as np
import pytest
import tensorflow as tf

from tests.federation import assert_close, leaves
from tff_pfl import models
from tff_pfl.local import Batch

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(256, size=(3, 8, 8, 3)).astype(np.uint8)
RELU = 1.71396


@functools.cache
def small(**options):
    sizes = {"stem_width": 6, "width": 4, "blocks": (2, 2)}
    return models.build("nf_resnet18", (8, 8, 3), 3, **sizes, **options)


@functools.cache
def perturbed():
    """Returns weights that all differ from their initial values, including gains."""
    return tf.nest.map_structure(
        lambda w: w + RNG.normal(scale=0.3, size=w.shape).astype(np.float32), small().init(0)
    )


def test_number_of_weights_equals_the_paper():
    with tf.Graph().as_default():
        model = models.MODELS["nf_resnet18"]((32, 32, 3), 100)
        assert model.count_params() == 189_844
        (pooled,) = (x for x in model.layers if isinstance(x, tf.keras.layers.MaxPool2D))
        assert pooled.output_shape == (None, 16, 16, 64)
        assert model.layers[-2].input_shape == (None, 4, 4, 64)


def conv(x, w, stride=1):
    """Computes the paper's convolution, one channel at a time."""
    kernel = np.stack(
        [
            gain * (k - k.mean()) / math.sqrt(k.var() * k.size)
            for k, gain in zip(np.moveaxis(w["kernel"].numpy(), -1, 0), w["gain"], strict=True)
        ],
        axis=-1,
    )
    return tf.nn.conv2d(x, kernel, stride, "SAME")


def relu(x):
    return RELU * tf.nn.relu(x)


def test_network_matches_plain_tensorflow():
    w = perturbed()
    x = relu(conv(tf.constant(IMAGES / 255.0, tf.float32), w["stem"]))
    x = tf.nn.max_pool2d(x, 3, 2, "SAME")
    for number, stride in enumerate((1, 1, 2, 1), start=1):
        block, activated = f"block{number}", relu(x)
        y = conv(activated, w[f"{block}_conv1"], stride)
        y = conv(relu(y), w[f"{block}_conv2"])
        if number in (1, 3):
            x = conv(activated, w[f"{block}_shortcut"], stride)
        x = x + 0.2 * y
    expected = np.mean(x, axis=(1, 2)) @ w["head"]["kernel"] + w["head"]["bias"]
    assert_close(small().apply(w, IMAGES), expected, 1e-4)


def test_activation_and_convolution_keep_the_variance():
    wide = models.build("nf_resnet18", (16, 16, 3), 3, stem_width=128, width=128, blocks=(1,))
    weights = wide.init(0)
    rng = np.random.default_rng(1)
    x = tf.constant(rng.normal(size=(8, 16, 16, 128)), tf.float32)
    assert np.var(conv(relu(x), weights["block1_conv1"])[:, 2:-2, 2:-2]) == pytest.approx(
        1, abs=0.1
    )


@pytest.mark.thorough
def test_constant_kernel_has_a_finite_gradient():
    weights = {layer: dict(w) for layer, w in perturbed().items()}
    weights["stem"]["kernel"] = tf.ones_like(weights["stem"]["kernel"])
    batch = Batch(IMAGES, np.int32([0, 1, 2]), np.ones(3, np.float32), np.zeros(2, np.int32))
    gradient, _ = small().gradient(weights, batch)
    assert all(np.all(np.isfinite(leaf)) for leaf in leaves(gradient))


@pytest.mark.thorough
def test_residual_scale_of_zero_leaves_only_shortcuts():
    outputs = []
    for factor in (1.0, -2.0):
        weights = {layer: dict(w) for layer, w in perturbed().items()}
        weights["block2_conv2"]["gain"] = factor * weights["block2_conv2"]["gain"]
        outputs.append(small(residual_scale=0.0).apply(weights, IMAGES))
    np.testing.assert_array_equal(*outputs)
