"""Tests products with kernels of low rank."""

import collections
import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.federation import tiny_model
from tests.marks import together
from tff_pfl import models
from tff_pfl.models.low_rank import LowRank, einsum


def drawn(*shape):
    return tf.constant(np.random.default_rng(len(shape)).normal(size=shape), tf.float32)


def low_rank(rows, columns, rank=2):
    return LowRank(drawn(*rows, *columns), drawn(*rows, rank), drawn(rank, *columns))


ROWS = drawn(3, 4)
TOKENS = drawn(2, 3, 4)
IMAGES = drawn(2, 8, 8, 4)


@together(
    ("rows", "columns", "product"),
    [
        ([4], [5], lambda kernel: tf.matmul(ROWS, kernel)),
        ([4], [5], lambda kernel: ROWS @ kernel),
        ([4], [5], lambda kernel: tf.tensordot(TOKENS, kernel, [[2], [0]])),
        ([4], [5], lambda kernel: tf.tensordot(TOKENS, kernel, 1)),
        ([4], [5], lambda kernel: tf.nn.embedding_lookup(kernel, [[0, 3], [1, 1]])),
        ([3, 3, 4], [5], lambda kernel: tf.nn.convolution(IMAGES, kernel, [2, 2], "SAME")),
        # The functions below take the sum.
        ([4], [5], lambda kernel: tf.matmul(drawn(3, 5), kernel, transpose_b=True)),
        ([4], [5], lambda kernel: tf.tensordot(drawn(3, 5), kernel, [[1], [1]])),
        ([4], [5], lambda kernel: tf.nn.embedding_lookup(kernel, [0], max_norm=0.1)),
        ([3, 3, 2], [4], lambda kernel: tf.nn.convolution(IMAGES, kernel)),  # in two groups
        ([4], [5], lambda kernel: 2 * kernel[1:] - kernel[:3] / 3),
        ([4], [5], lambda kernel: tf.reduce_sum(kernel**2) + tf.reduce_max(-kernel)),
        ([4], [5], lambda kernel: np.ones([3, 4], np.float32) @ kernel),
        ([4], [5], lambda kernel: tf.tensordot([[1.0, 2.0, 3.0, 4.0]], kernel, 1)),
        ([6], [1, 8], lambda kernel: tf.nn.convolution(drawn(2, 9, 1), kernel)),
    ],
)
def test_products_are_those_with_the_sum(rows, columns, product):
    kernel = low_rank(rows, columns)
    total = kernel.kernel + tf.tensordot(kernel.down, kernel.up, 1)
    assert kernel.shape == total.shape and kernel.dtype == total.dtype
    np.testing.assert_allclose(product(kernel), product(total), rtol=1e-5, atol=1e-5)


@together(
    ("equation", "rows", "columns", "x"),
    [
        ("abc,cde->abde", [4], [2, 3], TOKENS),  # queries
        ("abcd,cde->abe", [2, 3], [4], drawn(2, 3, 2, 3)),  # outputs of attention
        ("abcd,cde->abe", [2], [3, 4], drawn(2, 3, 2, 3)),  # rows that are half of the contraction
        ("abc,cde->abde", [4, 2], [3], TOKENS),  # rows that are columns
        ("abc,dc->abd", [5], [4], TOKENS),
        ("...x, xy -> ...y", [4], [5], TOKENS),
        ("ab...,bc->ac...", [3], [5], TOKENS),
    ],
)
def test_einsum_is_that_with_the_sum(equation, rows, columns, x):
    kernel = low_rank(rows, columns)
    expected = tf.einsum(equation, x, tf.convert_to_tensor(kernel))
    np.testing.assert_allclose(einsum(equation, x, kernel), expected, rtol=1e-5, atol=1e-5)


TRANSFORMER = {"vocabulary": 50, "width": 8, "depth": 1, "heads": 2, "mean": None}


@pytest.mark.parametrize("options", [{}, {"segments": 2, "compute_type": "bfloat16"}])
@pytest.mark.parametrize(
    ("network", "shape", "options_of_network"),
    [("cnn", (8, 8, 1), {}), ("transformer", (6,), TRANSFORMER)],
)
def test_networks_never_take_the_sums(network, shape, options_of_network, options, monkeypatch):
    base = models.build(network, shape, 3, **options_of_network, **options)
    model = models.lora(base, rank=2)
    parts = tf.nest.map_structure(lambda part: part + 0.1, model.init(0))
    x = np.ones((4, *shape), np.int32 if network == "transformer" else np.float32)

    def gradient(model, weights):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            outputs = model.apply(weights, x, training=True, seed=tf.zeros([2], tf.int32))
        return outputs, tape.gradient(outputs, weights)

    def in_graph(model, weights):
        return tf.function(functools.partial(gradient, model), autograph=False)(weights)

    expected, of_kernels = in_graph(base, model.base_weights(parts))
    monkeypatch.setattr(LowRank, "__tf_tensor__", None)
    found, of_parts = in_graph(model, parts)
    is_exact = not options
    np.testing.assert_allclose(found, expected, rtol=1e-4 if is_exact else 0.05, atol=1e-5)
    if is_exact:  # the derivative for `up` is down^T times that of the kernel
        down = parts["head_down"]["kernel"]
        expected = tf.matmul(down, of_kernels["head"]["kernel"], transpose_a=True)
        np.testing.assert_allclose(of_parts["head_up"]["kernel"], expected, rtol=1e-3, atol=1e-5)


def layers_of_all_kinds():
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Reshape((16, 1), input_shape=(16,)),
            layers.Conv1D(4, 3, name="conv1", kernel_regularizer="l2"),
            layers.Conv1D(3, 3, strides=2, name="conv2"),
            layers.GRU(5, name="gru", recurrent_regularizer="l1_l2"),
            layers.Dense(3, name="head"),
        ]
    )


def pure_function():
    """A model of pure functions, which may treat a kernel in any way."""

    def init(seed):
        kernel = tf.random.stateless_normal([2, 16, 3], [seed, 0])
        return collections.OrderedDict(experts=collections.OrderedDict(kernel=kernel))

    def apply(weights, x, **_):
        experts = weights["experts"]["kernel"]
        return tf.reduce_sum(
            tf.vectorized_map(lambda expert: tf.cast(x, tf.float32) @ expert, experts), 0
        )

    return dataclasses.replace(tiny_model(), init=init, apply=apply, features=None, forward=None)


@pytest.mark.parametrize(
    "base", [lambda: models.from_keras(layers_of_all_kinds, input_shape=(16,)), pure_function]
)
def test_adapted_models_are_those_of_merged_weights(base):
    base = base()
    model = models.lora(base, rank=2)
    parts = tf.nest.map_structure(lambda part: part + 0.1, model.init(0))
    x = np.random.default_rng(0).normal(size=(4, 16)).astype(np.float32)
    merged = model.base_weights(parts)
    np.testing.assert_allclose(
        model.apply(parts, x, training=False), base.apply(merged, x, training=False), rtol=1e-4
    )
    if base.penalty is not None:
        np.testing.assert_allclose(model.penalty(parts), base.penalty(merged), rtol=1e-5)
