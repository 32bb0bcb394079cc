"""Tests that operations which fail for a client also fail for clients that are computed together.

CPUs raise the errors that are expected here for a client alone. XLA would return numbers.
"""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.marks import together
from tests.runtime.conformance.cases import mapped
from tests.runtime.graph.clients.vectorizing import alone, run, vectorize

ROWS = np.float32([[0, 1], [2, 3], [4, 5]])
INTEGERS = np.int32([7, 8])


def in_loop(x, y):
    step = lambda i, total: (i + 1, total + tf.gather(x, y))  # noqa: E731
    return tf.while_loop(lambda i, _: i < 2, step, (0, tf.zeros([2, 2])))[1]


def shared(x, y):
    return tf.gather(tf.constant(ROWS), y) + x[:2]


def update(x, y):
    return tf.tensor_scatter_nd_update(x, y, x[:1])


def sparse_segments(x, y):
    return tf.sparse.segment_sum(x, y, [0, 1])


def cross_entropy(x, y):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(y, x[:2])


FAILURES = {
    "gather": (tf.gather, ROWS, [0, 2], [0, 3]),
    "gather columns": (lambda x, y: tf.gather(x, y, axis=-1), ROWS, [0, 1], [0, 2]),
    "gather in a loop": (in_loop, ROWS, [0, 2], [0, 3]),
    "gather rows of all": (shared, ROWS, [0, 2], [0, 3]),
    "embedding": (tf.nn.embedding_lookup, ROWS, [0, 2], [-1, 2]),
    "gather_nd": (tf.gather_nd, ROWS, [[0, 1], [2, 1]], [[0, 1], [2, 2]]),
    "scatter": (update, ROWS, [[2]], [[3]]),
    "slice": (lambda x, y: tf.slice(x, y, [2, 1]), ROWS, [1, 0], [2, 0]),
    "segments": (lambda x, y: tf.math.unsorted_segment_sum(x, y, 3), ROWS, [0, 1, 2], [0, 3, 1]),
    "sparse segments": (sparse_segments, ROWS, [0, 2], [0, 3]),
    "cross-entropy": (cross_entropy, ROWS, [0, 1], [0, 2]),
    "quotient": (tf.math.floordiv, INTEGERS, [2, 3], [0, 3]),
    "power": (tf.pow, INTEGERS, [2, 3], [-1, 3]),
}


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("name", FAILURES)
def test_operation_that_fails_for_a_client_fails_for_all(name, jit_compile):
    function, x, *operands = FAILURES[name]
    if name == "sparse segments" and jit_compile:
        pytest.skip("XLA has no sparse segments.")
    good, bad = map(np.int32, operands)
    valid = [np.stack([x, x + 1]), np.stack([good, good])]
    expected = alone(function, *valid)
    np.testing.assert_allclose(vectorize(function, *valid, jit_compile=jit_compile), expected)
    stacks = [np.stack([x, x + 1, x]), np.stack([good, bad, good])]
    with pytest.raises(tf.errors.OpError):
        alone(function, *stacks)
    with pytest.raises(tf.errors.OpError):
        vectorize(function, *stacks, jit_compile=jit_compile)


@pytest.mark.thorough
@together(
    ("function", "expected"),
    [
        (lambda x: tf.maximum([0.0, 0, 9], x), [8, np.nan, 9]),
        (lambda x: tf.minimum(x, 1.0), [1, np.nan, 1]),
        (lambda x: tf.clip_by_value(x, 0.0, 1.0), [1, np.nan, 1]),
        (tf.nn.relu6, [6, np.nan, 6]),
        (tf.reduce_max, np.nan),
        (lambda x: tf.reduce_min(x[tf.newaxis], axis=[-1], keepdims=True), [[np.nan]]),
        (lambda x: tf.reduce_max(x[::2]), 9),
        (lambda x: tf.maximum(tf.cast(x[::2], tf.int32), 9), [9, 9]),
    ],
)
def test_compiled_maxima_and_minima_of_nan_are_nan(function, expected):
    x = np.float32([8, np.nan, 9])
    found = vectorize(function, np.stack([np.ones_like(x), x]), jit_compile=True)[1]
    np.testing.assert_array_equal(found, expected)


def test_error_of_compiled_client_work_is_that_of_the_operation(caplog):
    client = tff.types.to_type([("x", np.int32), ("y", np.int32)])

    def divided(client):
        step = lambda i, x: (i + 1, x // client["y"])  # noqa: E731
        return tf.while_loop(lambda i, _: i < 2, step, (0, client["x"]))[1]

    computation = mapped(divided, client)
    with pytest.raises(tf.errors.InvalidArgumentError, match="^Integer division by zero$"):
        run(computation, [{"x": 7, "y": 2}, {"x": 7, "y": 0}], vectorize="always", jit_compile=True)
    (message,) = [m for m in caplog.messages if m.startswith("A round with compiled client work")]
    assert "Client work fails in FloorDiv" in message and "an integer is divided by 0" in message
