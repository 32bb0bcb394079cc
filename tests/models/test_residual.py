"""Tests `tff_pfl.models.residual` against the published counts and plain TensorFlow."""

import functools
import math

import numpy as np
import pytest
import tensorflow as tf

from tests.federation import assert_close, assert_equal
from tests.marks import slow
from tff_pfl import models

RNG = np.random.default_rng(0)
SMALL = {
    "resnet18": {"width": 8, "blocks": (2, 1), "groups": 4},
    "resnet50": {"width": 4, "blocks": (1, 1), "groups": 6},
    "wide_resnet": {"depth": 10, "widen": 1},
}
IMAGES = RNG.integers(256, size=(6, 16, 16, 3)).astype(np.uint8)


@functools.cache
def small(name, **options):
    return models.build(name, (16, 16, 3), 3, **SMALL[name], **options)


@functools.cache
def keras_model(name, shape, num_classes=10, **options):
    """Builds the Keras model in a graph, where its weights take no memory."""
    with tf.Graph().as_default():
        return models.MODELS[name](shape, num_classes, **options)


def perturbed(weights):
    """Returns weights that all differ from their initial values, including norms."""
    return tf.nest.map_structure(
        lambda w: w + RNG.normal(scale=0.3, size=w.shape).astype(np.float32), weights
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "options", "num_weights"),
    [
        ("resnet18", {}, 11_173_962),
        slow("resnet50", {}, 23_520_842),
        slow("wide_resnet", {}, 36_479_194),
        slow("resnet50", {"num_classes": 1000, "stem": "imagenet"}, 25_557_032),
    ],
)
def test_numbers_of_weights_equal_the_papers(name, options, num_weights):
    model = keras_model(name, (32, 32, 3), **options)
    assert model.count_params() == num_weights


@pytest.mark.thorough
def test_layers_are_named_from_input_to_head():
    assert small("resnet18").layers == (
        *("stem", "stem_norm"),
        *("block1_conv1", "block1_norm1", "block1_conv2", "block1_norm2"),
        *("block2_conv1", "block2_norm1", "block2_conv2", "block2_norm2"),
        *("block3_conv1", "block3_norm1", "block3_conv2", "block3_norm2"),
        *("block3_shortcut", "block3_shortcut_norm", "head"),
    )
    assert small("wide_resnet").layers == (
        "stem",
        *("block1_norm1", "block1_conv1", "block1_norm2", "block1_conv2"),
        *("block2_norm1", "block2_conv1", "block2_norm2", "block2_conv2", "block2_shortcut"),
        *("block3_norm1", "block3_conv1", "block3_norm2", "block3_conv2", "block3_shortcut"),
        *("final_norm", "head"),
    )


def conv(x, weights, stride=1):
    return tf.nn.conv2d(x, weights["kernel"], stride, "SAME")


def norm(x, weights, groups):
    """Computes `gamma (x - mean) / sqrt(variance + 1e-5) + beta` per image and group."""
    n, height, width, channels = x.shape
    groups = math.gcd(groups, channels)
    x = np.reshape(x, [n, height, width, groups, channels // groups])
    mean, variance = (f(x, axis=(1, 2, 4), keepdims=True) for f in (np.mean, np.var))
    x = np.reshape((x - mean) / np.sqrt(variance + 1e-5), [n, height, width, channels])
    return x * weights["gamma"] + weights["beta"]


def post_activation(w, x, strides, groups):
    """Computes the stem and the blocks; `strides` has the strides of each block's convolutions."""
    is_imagenet = len(w["stem"]["kernel"]) == 7
    x = conv(x, w["stem"], 2 if is_imagenet else 1)
    x = tf.nn.relu(norm(x, w["stem_norm"], groups))
    if is_imagenet:
        x = tf.nn.max_pool2d(x, 3, 2, "SAME")
    for block, block_strides in strides.items():
        y = x
        for i, stride in enumerate(block_strides, start=1):
            y = norm(conv(y, w[f"{block}_conv{i}"], stride), w[f"{block}_norm{i}"], groups)
            y = tf.nn.relu(y) if i < len(block_strides) else y
        if f"{block}_shortcut" in w:
            x = conv(x, w[f"{block}_shortcut"], max(block_strides))
            x = norm(x, w[f"{block}_shortcut_norm"], groups)
        x = tf.nn.relu(x + y)
    return x


def pre_activation(w, x, strides, groups):
    x = conv(x, w["stem"])
    for block, (stride, _) in strides.items():
        activated = tf.nn.relu(norm(x, w[f"{block}_norm1"], groups))
        y = conv(activated, w[f"{block}_conv1"], stride)
        y = conv(tf.nn.relu(norm(y, w[f"{block}_norm2"], groups)), w[f"{block}_conv2"])
        if f"{block}_shortcut" in w:
            x = conv(activated, w[f"{block}_shortcut"], stride)
        x = x + y
    return tf.nn.relu(norm(x, w["final_norm"], groups))


STRIDES_OF_RESNET18 = {"block1": [1, 1], "block2": [1, 1], "block3": [2, 1]}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "options", "features", "strides", "groups"),
    [
        ("resnet18", {}, post_activation, STRIDES_OF_RESNET18, 4),
        ("resnet18", {"stem": "imagenet"}, post_activation, STRIDES_OF_RESNET18, 4),
        ("resnet50", {}, post_activation, {"block1": [1, 1, 1], "block2": [1, 2, 1]}, 6),
        ("wide_resnet", {}, pre_activation, dict(block1=[1, 1], block2=[2, 1], block3=[2, 1]), 32),
    ],
)
def test_networks_match_plain_tensorflow(name, options, features, strides, groups):
    model = small(name, **options)
    weights = perturbed(model.init(0))
    x = features(weights, tf.constant(IMAGES / 255.0, tf.float32), strides, groups)
    head = weights["head"]
    expected = np.mean(x, axis=(1, 2)) @ head["kernel"] + head["bias"]
    assert_close(model.apply(weights, IMAGES), expected, 1e-4)


@pytest.mark.thorough
def test_kernels_start_from_hes_distribution_by_fan_out():
    weights = small("wide_resnet").init(0)
    for layer, fan_out in [("block2_conv1", 9 * 32), ("block3_conv1", 9 * 64)]:
        kernel = np.ravel(weights[layer]["kernel"])
        np.testing.assert_allclose(np.std(kernel), math.sqrt(2.0 / fan_out), rtol=0.02)
        # A truncated distribution would end before.
        assert np.max(np.abs(kernel)) > 3 * np.std(kernel)


@pytest.mark.thorough
def test_dropout_is_between_the_convolutions_of_a_block():
    model = small("wide_resnet", dropout_rate=0.5)
    weights = model.init(0)
    evaluated = model.apply(weights, IMAGES)
    assert_equal(evaluated, small("wide_resnet").apply(weights, IMAGES))
    first, again, other = (
        model.apply(weights, IMAGES, training=True, seed=tf.constant([1, seed]))
        for seed in (1, 1, 2)
    )
    assert_equal(first, again)
    assert np.any(first != other) and np.any(first != evaluated)
    for block in (1, 2, 3):
        weights[f"block{block}_conv2"] = {"kernel": 0.0 * weights[f"block{block}_conv2"]["kernel"]}
    assert_equal(
        model.apply(weights, IMAGES, training=True, seed=tf.constant([1, 1])),
        model.apply(weights, IMAGES),
    )


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet18", {"stem": "imagnet"}, "'imagnet'"),
        ("resnet18", {"blocks": ()}, r"blocks must be 1 or more numbers, .* got \(\)"),
        (
            "resnet18",
            {"width": 4, "blocks": (1, 1, 1, 1)},
            "'block4_norm1' .* 1x1, with 32 channels in 32 groups",
        ),
        ("wide_resnet", {"depth": 26}, r"6n \+ 4 with n >= 1, such as 10, 16 or 28, got 26"),
    ],
)
def test_build_refuses_invalid_options(name, options, message):
    with pytest.raises(ValueError, match=message):
        models.build(name, (8, 8, 3), 3, **options)
