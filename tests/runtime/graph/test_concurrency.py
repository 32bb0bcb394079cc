"""Tests client work that TensorFlow's kernels can run for one client at a time only."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests.marks import together
from tests.runtime.conformance.cases import mapped, tensor
from tff_pfl import runtime
from tff_pfl.runtime.graph.clients import loops

ROWS = (None, 3)


def normalize(x):
    """Normalizes as Keras' `LayerNormalization` does: each row is a channel."""
    rows, columns = tf.unstack(tf.shape(x))
    normalized, _, _ = tf.compat.v1.nn.fused_batch_norm(
        tf.reshape(x, [1, rows, columns, 1]),
        scale=tf.ones([rows]),
        offset=tf.zeros([rows]),
        data_format="NCHW",
    )
    return tf.reshape(normalized, [rows, columns])


def normalize_channels(x):
    """Normalizes as Keras' `BatchNormalization` does, with the same channels for all clients."""
    images = x[:, tf.newaxis, tf.newaxis]
    normalized, _, _ = tf.compat.v1.nn.fused_batch_norm(images, tf.ones([3]), tf.zeros([3]))
    return normalized[:, 0, 0]


def in_a_function(x):
    return tf.function(normalize, autograph=False)(x)


def in_a_branch(x):
    return tf.cond(tf.shape(x)[0] > 2, lambda: in_a_function(x), lambda: x)


def in_a_loop(x):
    return tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, in_a_branch(y)), (0, x))[1]


def gradient_alone(x):
    normalized = tf.raw_ops.FusedBatchNormGradV3(
        y_backprop=x[:, tf.newaxis, tf.newaxis],
        x=x[:, tf.newaxis, tf.newaxis],
        **{name: x[0] for name in ("scale", "reserve_space_1", "reserve_space_2")},
        reserve_space_3=x[0],
    )
    return normalized.x_backprop[:, 0, 0]


@together(
    ("function", "shape", "expected"),
    [
        (normalize_channels, ROWS, 4),
        (gradient_alone, ROWS, 4),
        (gradient_alone, (2, None), 1),
        (normalize, (2, 3), 4),
        (normalize, ROWS, 1),
        (in_a_loop, ROWS, 1),
    ],
)
def test_loops_with_unknown_channels_are_sequential(function, shape, expected):
    @tf.function(autograph=False, input_signature=[tf.TensorSpec(shape)])
    def run(x):
        def body(index, total):
            return index + 1, total + tf.reduce_sum(function(x))

        index, _ = tf.while_loop(
            lambda index, _: index < 5, body, (tf.constant(0), 0.0), parallel_iterations=4
        )
        loops.forbid_unsafe_concurrency(index.op)
        found.append(index.op.get_attr("parallel_iterations"))
        return index

    found = []
    run.get_concrete_function()
    assert found == [expected]


def test_rows_of_clients_of_different_sizes_are_normalized():
    rng = np.random.default_rng(0)
    clients = [rng.normal(size=(size, 3)).astype(np.float32) for size in [1, 40, 7, 23] * 10]
    run = mapped(normalize, tensor(np.float32, *ROWS))
    context = runtime.create_graph_context()
    with tff.framework.get_context_stack().install(context):
        for _ in range(10):
            for x, normalized in zip(clients, run(clients), strict=True):
                centered = x - x.mean(axis=1, keepdims=True)
                expected = centered / np.sqrt(x.var(axis=1, keepdims=True) + 1e-3)
                np.testing.assert_allclose(normalized, expected, rtol=1e-3, atol=1e-4)
