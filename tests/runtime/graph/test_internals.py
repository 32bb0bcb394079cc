"""Tests the private parts of TensorFlow that the graph executor uses."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.runtime import create_graph_context
from tff_pfl.runtime.graph import internals


@tff.tensorflow.computation(np.float32)
def double(x):
    return 2 * x


@pytest.fixture
def options_of_calls(monkeypatch):
    """A list of Grappler's options in each call of a graph."""
    options = []
    execute = internals._execute.execute_with_cancellation

    def watched(name, *, attrs, **call):
        config = dict(zip(attrs[::2], attrs[1::2], strict=True))["config_proto"]
        options.append(tf.compat.v1.ConfigProto.FromString(config).graph_options.rewrite_options)
        return execute(name, attrs=attrs, **call)

    monkeypatch.setattr(internals._execute, "execute_with_cancellation", watched)
    return options


def test_graphs_are_optimized_once_with_the_options_of_the_program(options_of_calls):
    def run():
        with tff.framework.get_context_stack().install(create_graph_context()):
            assert double(2.0) == 4
        return options_of_calls[-1]

    default = run()
    tf.config.optimizer.set_experimental_options({"loop_optimization": False})
    try:
        changed = run()
    finally:
        tf.config.optimizer.set_experimental_options({"loop_optimization": True})
    assert default.meta_optimizer_iterations == changed.meta_optimizer_iterations == default.ONE
    assert default.remapping == changed.remapping == default.OFF
    assert (default.loop_optimization, changed.loop_optimization) == (default.DEFAULT, default.OFF)


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

    @tff.tensorflow.computation(tff.types.TensorType(np.float32, [4, 1]))
    def work(x):
        start = 0, tf.zeros_like(function(x))
        return tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, y + function(x)), start)[1]

    @tff.federated_computation(tff.types.FederatedType((np.float32, [4, 1]), tff.CLIENTS))
    def of_clients(x):
        return tff.federated_map(work, x)

    clients = [np.arange(4, dtype=np.float32)[:, np.newaxis] + i for i in range(2)]
    with tff.framework.get_context_stack().install(create_graph_context(vectorize=vectorize)):
        results = of_clients(clients)
    for x, result in zip(clients, results, strict=True):
        if function is normalized:
            expected = np.repeat(2 + (x - 1) / np.sqrt(1.001), 3, axis=1)
        else:
            expected = np.full([1, 3], np.tanh(x.sum() + 1))
        np.testing.assert_allclose(result, 2 * expected, rtol=1e-5)
