"""Tests products with kernels of low rank."""

import functools

import numpy as np
import pytest
import tensorflow as tf

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
        ("abc,cde->abde", [4, 2], [3], TOKENS),
        ("...x, xy -> ...y", [4], [5], TOKENS),
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
