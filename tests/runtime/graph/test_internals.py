"""Tests the private parts of TensorFlow that the graph executor uses."""

import numpy as np
import pytest
import tensorflow as tf

from tests.runtime.conformance.cases import mapped, tensor
from tests.runtime.graph.clients.vectorizing import run
from tff_pfl.runtime.graph import internals


def test_graphs_are_optimized_once_with_the_options_of_the_program():
    config = tf.compat.v1.ConfigProto()
    options = config.graph_options.rewrite_options
    options.loop_optimization = options.OFF
    found = internals.with_safe_optimization(config.SerializeToString())
    found = tf.compat.v1.ConfigProto.FromString(found).graph_options.rewrite_options
    assert found.meta_optimizer_iterations == found.ONE
    assert found.remapping == found.loop_optimization == found.OFF


def normalized(x):
    one = tf.ones([1])
    x, _, _ = tf.compat.v1.nn.fused_batch_norm(
        x[:, tf.newaxis, tf.newaxis], one, one, mean=one, variance=one, is_training=False
    )
    return tf.nn.bias_add(tf.reshape(x, [-1, 1]) @ tf.ones([1, 3]), tf.ones([3]))


def transposed(x):
    return tf.tanh(tf.nn.bias_add(tf.transpose(x) @ tf.ones([4, 3]), tf.ones([3])))


@pytest.mark.thorough
@pytest.mark.parametrize("vectorize", ["auto", "never"])
@pytest.mark.parametrize("function", [normalized, transposed])
def test_rewrites_that_break_graphs_are_off(function, vectorize):
    """Tries functions of which TensorFlow's remapper makes graphs that cannot run."""

    def work(x):
        start = 0, tf.zeros_like(function(x))
        return tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, y + function(x)), start)[1]

    clients = [np.arange(4, dtype=np.float32)[:, np.newaxis] + i for i in range(2)]
    results = run(mapped(work, tensor(np.float32, 4, 1)), clients, vectorize=vectorize)
    for x, result in zip(clients, results, strict=True):
        if function is normalized:
            expected = np.repeat(2 + (x - 1) / np.sqrt(1.001), 3, axis=1)
        else:
            expected = np.full([1, 3], np.tanh(x.sum() + 1))
        np.testing.assert_allclose(result, 2 * expected, rtol=1e-5)
