"""One function on stacks of inputs: what TensorFlow's parallel-for lacks or gets wrong."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tff_pfl.runtime.graph import internals, vectorization
from tff_pfl.runtime.graph.pfor_rules import NotVectorizableError


def vectorize(function, *stacks):
    """`function` of each row, in a graph that knows nothing of their number."""
    stacks = [tf.constant(stack) for stack in stacks]
    specs = [tf.TensorSpec(stack.shape[1:], stack.dtype) for stack in stacks]

    @tf.function(
        autograph=False,
        input_signature=[tf.TensorSpec([None, *spec.shape], spec.dtype) for spec in specs],
    )
    def run(*stacks):
        one = tf.function(lambda *rows: [function(*rows)]).get_concrete_function(*specs)
        return vectorization.vectorize(one, tf.shape(stacks[0])[0], stacks)

    return run(*stacks)[0].numpy()


def check(function, *stacks):
    expected = [function(*map(tf.constant, row)).numpy() for row in zip(*stacks, strict=True)]
    np.testing.assert_allclose(vectorize(function, *stacks), expected, rtol=1e-6)


X = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.mark.parametrize("clients", [1, 4])
class TestSqueeze:
    def test_of_all_axes(self, clients):
        """TensorFlow's own rule drops the axis of the clients if there is one client."""
        check(lambda x: tf.squeeze(x[tf.newaxis, :, tf.newaxis]), X[:clients])

    def test_of_one_axis(self, clients):
        check(lambda x: tf.squeeze(x[tf.newaxis], [0]), X[:clients])
        check(lambda x: tf.squeeze(x[:, tf.newaxis], [-1]), X[:clients])

    def test_to_a_scalar(self, clients):
        check(lambda x: tf.squeeze(tf.reduce_sum(x, keepdims=True)), X[:clients])


class TestLoops:
    def test_of_as_many_steps_for_all(self):
        def steps(x):
            return tf.while_loop(lambda i, y: i < 5, lambda i, y: (i + 1, y * 0.5 + 1), (0, x))[1]

        check(steps, X)

    def test_of_more_steps_for_some(self):
        def until_large(x):
            return tf.while_loop(lambda y: tf.reduce_sum(y) < 50.0, lambda y: [y + 1], [x])[0]

        check(until_large, X)

    def test_nested(self):
        def inner(y):
            return tf.while_loop(lambda i, z: i < 3, lambda i, z: (i + 1, z * 0.5 + 1), (0, y))[1]

        check(
            lambda x: tf.while_loop(lambda i, y: i < 4, lambda i, y: (i + 1, inner(y) + x), (0, x))[
                1
            ],
            X,
        )

    def test_in_which_a_shared_value_becomes_a_clients_own(self):
        def sums(x):
            total = tf.zeros([3])
            loop = lambda i, total, last: (i + 1, total + x, total)  # noqa: E731
            _, total, last = tf.while_loop(lambda i, *_: i < 3, loop, (0, total, total))
            return tf.stack([total, last])

        check(sums, X)


def test_conditions_of_each_client():
    check(lambda x: tf.raw_ops.Select(condition=x[0] > 4, x=x, y=tf.zeros([3])), X)
    check(lambda x: tf.raw_ops.Select(condition=x > 4, x=x, y=-x), X)
    check(lambda x: tf.cond(x[0] > 4, lambda: x * 2, lambda: x - 1), X)


def test_clipping():
    check(lambda x: tf.clip_by_value(x, 2.0, 7.0), X)
    with pytest.raises(NotVectorizableError, match="ClipByValue"):
        vectorize(
            lambda x: tf.raw_ops.ClipByValue(t=x, clip_value_min=0 * X[0], clip_value_max=X[1]), X
        )


def test_biases_of_each_client():
    images = np.ones([4, 1, 2, 2, 3], np.float32)
    check(tf.nn.bias_add, images, X)
    with pytest.raises(NotVectorizableError, match="BiasAdd"):
        vectorize(lambda x, b: tf.nn.bias_add(x, b, "NCHW"), images.swapaxes(2, 4), X)


def test_slices_from_where_each_client_says():
    starts = np.int32([0, 2, 1, 1])
    check(lambda x, i: tf.slice(x, [i], [1]), X, starts)
    check(lambda x, i: tf.slice(x[tf.newaxis], [0, i], [-1, 1]), X, starts)
    for size in ([-1], [-1, 1]):
        with pytest.raises(NotVectorizableError, match="Slice.*sizes may differ"):
            vectorize(
                lambda x, i, s=size: tf.slice(tf.reshape(x, s), [i, 0][: len(s)], s), X, starts
            )


def test_complex_products():
    """TensorFlow's rule conjugates what is to be transposed."""
    x = np.array([[[1j, 2], [3, 4j]], [[2 - 1j, 0], [1j, 1]]], np.complex64)
    for options in itertools.product((False, True), repeat=2):
        check(
            lambda x, y, o=options: tf.raw_ops.MatMul(a=x, b=y, transpose_a=o[0], transpose_b=o[1]),
            x,
            x[::-1],
        )
    for name in ("transpose_a", "transpose_b", "adjoint_a", "adjoint_b"):
        check(lambda x, name=name: tf.matmul(x, x, **{name: True}), x)
    np.testing.assert_allclose(
        vectorize(lambda x: tf.matmul(x, x, transpose_b=True), x)[0], [[3, 11j], [11j, -7]]
    )


def test_broadcasting_of_different_ranks():
    matrix = tf.reshape(tf.range(6.0), [2, 3])
    check(lambda x: matrix + x, X)
    check(lambda x: x[0] * matrix - x, X)


def test_assertions_of_clients_hold():
    @tf.function
    def checked(x):
        tf.debugging.assert_less(x[0], 8.0, "too large")
        return x * 2

    np.testing.assert_array_equal(vectorize(checked, X[:3]), 2 * X[:3])
    with pytest.raises(tf.errors.InvalidArgumentError, match="too large"):
        vectorize(checked, X)


def test_what_has_no_rule_is_named():
    with pytest.raises(NotVectorizableError, match="TensorListSetItem|TensorList"):
        vectorize(lambda x: tf.TensorArray(tf.float32, 2, element_shape=[3]).write(0, x).read(0), X)


def test_tensorflows_rules_are_back_afterwards():
    before = dict(internals.pfor_rules)
    expand = internals.PForInput.expanddim_inputs_for_broadcast
    check(lambda x: x + 1, X)
    with pytest.raises(NotVectorizableError):
        vectorize(lambda x: tf.TensorArray(tf.float32, 2, element_shape=[3]).write(0, x).read(0), X)
    assert internals.pfor_rules == before
    assert internals.PForInput.expanddim_inputs_for_broadcast is expand


def test_tensorflows_own_vectorization_is_as_before():
    def collected(x):  # which this module refuses, and TensorFlow does not
        return tf.TensorArray(tf.float32, 2, element_shape=[3]).write(0, x).write(1, 2 * x).stack()

    def own():
        return tf.function(lambda xs: tf.vectorized_map(collected, xs))(tf.constant(X)).numpy()

    before = own()
    with pytest.raises(NotVectorizableError):
        vectorize(collected, X)
    np.testing.assert_array_equal(own(), before)
    np.testing.assert_array_equal(before, np.stack([X, 2 * X], axis=1))


def test_tensorflows_own_vectorization_keeps_what_is_refused_here():
    """TensorFlow has a loop for these; this module refuses them."""
    images = np.random.default_rng(0).normal(size=[2, 1, 4, 4, 1]).astype(np.float32)
    kernels = np.random.default_rng(1).normal(size=[2, 2, 2, 1, 1]).astype(np.float32)

    def convolved(image, kernel):
        return tf.nn.conv2d(image, kernel, 1, "SAME")

    def gradient_of_a_shared_filter(image):
        with tf.GradientTape() as tape:
            kernel = tf.constant(kernels[0])
            tape.watch(kernel)
            loss = tf.reduce_sum(tf.sin(convolved(image, kernel)))
        return tape.gradient(loss, kernel)

    def own(images, kernels):
        return (
            tf.vectorized_map(gradient_of_a_shared_filter, images),
            tf.vectorized_map(lambda both: convolved(*both), (images, kernels)),
            tf.vectorized_map(lambda i: tf.slice(X[0], [i], [-1]), tf.constant([1, 1])),
        )

    before = tf.function(own)(images, kernels)
    check(lambda x: x + 1, X)
    for found, expected in zip(tf.function(own)(images, kernels), before, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_tensorflows_table_of_rules_is_what_it_was():
    before = dict(internals.pfor_rules)
    with vectorization.installed():
        assert dict(internals.pfor_rules).keys() > before.keys()  # rules that TensorFlow lacks
    assert dict(internals.pfor_rules) == before


SEGMENT_REDUCTIONS = [
    tf.math.unsorted_segment_sum,
    tf.math.unsorted_segment_max,
    tf.math.unsorted_segment_min,
    tf.math.unsorted_segment_prod,
]


@pytest.mark.parametrize("reduce", SEGMENT_REDUCTIONS, ids=lambda reduce: reduce.__name__)
def test_rows_of_no_segment_are_those_of_no_client(reduce):
    """TensorFlow drops rows of negative segments; its own rule gives them to the client before."""
    segments = np.array([[0, -1, 2], [-1, -1, 1], [2, 0, -1], [1, 1, 1]], np.int32)
    check(lambda x, s: reduce(x, s, 3), X, segments)
    check(lambda x: reduce(x, [1, -1, 1], 3), X)
    check(lambda s: reduce([1.0, 2.0, 3.0], s, 3), segments)


@pytest.mark.parametrize("clients", [1, 4])
def test_clients_without_rows(clients):
    rows = np.zeros([clients, 0, 3], np.float32)
    check(lambda x: tf.matmul(x, tf.ones([3, 2])), rows)
    check(lambda x: tf.reduce_sum(tf.matmul(x, tf.ones([3, 2])), axis=0), rows)
    check(lambda x: tf.matmul(x, tf.ones([2, 3]), transpose_b=True), rows)
    check(lambda x: tf.matmul(x, x, transpose_a=True), rows)
