"""Tests each rule of vectorization against calls of the operation for one client at a time."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

from tests.federation import assert_close, assert_equal
from tests.marks import slow, together
from tests.runtime.graph.clients.vectorizing import alone, in_loop, normal, vectorize
from tff_pfl.runtime.graph import internals
from tff_pfl.runtime.graph.clients import vectorization
from tff_pfl.runtime.graph.clients.pfor_convolutions import GROUPED, PATCHES, forced, own_filters
from tff_pfl.runtime.graph.clients.pfor_rules import NotVectorizableError
from tff_pfl.runtime.graph.operations import operations


def integers(low, high, *shape):
    return np.random.default_rng(shape).integers(low, high, shape).astype(np.int32)


X = np.arange(12, dtype=np.float32).reshape(4, 3)
Y = normal(3, 4, 2)
STARTS = np.int32([0, 2, 1, 1])
CONDITION = np.array([True, False, True])
COMPLEX = np.array([[[1j, 2], [3, 4j]], [[2 - 1j, 0], [1j, 1]]], np.complex64)
NO_ROWS = np.zeros([4, 0, 3], np.float32)
SEGMENTS = np.array([[0, -1, 2], [-1, -1, 1], [2, 0, -1], [1, 1, 1]], np.int32)
MATRIX = np.arange(6, dtype=np.float32).reshape(2, 3)


def both_shared_and_own(select):
    return lambda c, x, y: [select(c, a, b) for a, b in ((x, Y[0]), (Y[1], y), (x, y))]


def gradient_of_segments(segment_sum):
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = segment_sum(x, [0, 2, 3], [0, 0, 3], num_segments=6)
            loss = tf.reduce_sum(tf.sin(y))
        return tape.gradient(loss, x)

    return gradient


SORTED = np.sort(integers(0, 6, 3, 2, 5))  # some are repeated


def searches(own, x):
    sides = ("left", "right")
    return [tf.searchsorted(rows, x, side) for side in sides for rows in (own, SORTED[0])]


def products(x, y):
    flags = [(a, b) for a in (False, True) for b in (False, True)]
    raw = [tf.raw_ops.MatMul(a=x, b=y, transpose_a=a, transpose_b=b) for a, b in flags]
    return raw + [tf.matmul(x, y, adjoint_a=a, adjoint_b=b) for a, b in flags]


def products_without_rows(x):
    ones = tf.ones([3, 2])
    return [
        tf.matmul(x, ones),
        tf.reduce_sum(tf.matmul(x, ones), axis=0),
        tf.matmul(x, tf.transpose(ones), transpose_b=True),
        tf.matmul(x, x, transpose_a=True),
    ]


def segments(x, s):
    rows = [(x, s), (x, [1, -1, 1]), ([1.0, 2.0, 3.0], s)]
    return [tf.math.unsorted_segment_sum(values, ids, 3) for values, ids in rows]


def steps(x):
    return tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 0.5 + 1), (0, x))[1]


def nested(x):
    return tf.while_loop(lambda i, y: i < 4, lambda i, y: (i + 1, steps(y) + x), (0, x))[1]


def shared_becomes_own(x):
    loop = lambda i, total, last: (i + 1, total + x, total)  # noqa: E731
    return tf.while_loop(lambda i, *_: i < 3, loop, (0, tf.zeros([3]), tf.zeros([3])))[1:]


# Each case has something that TensorFlow's parallel-for lacks or gets wrong.
RULES = {
    "top_k": (lambda x: (tf.math.top_k(x, 2), tf.math.top_k(x, 6)), integers(0, 4, 3, 4, 6)),
    "bitcast": (lambda y: tf.bitcast(y, tf.int32), Y),
    "l2_loss": (tf.nn.l2_loss, Y),
    "pad": (
        lambda x: (tf.pad(x, [[1, 2], [0, 3]], constant_values=7.0), tf.pad(x, [[1, 0]] * 2)),
        Y,
    ),
    "roll": (
        lambda x, own: (tf.roll(x, [1, 2], [-1, 0]), tf.roll(x, own, [-1, 0])),
        *(Y, np.int32([[1, 2], [2, 4], [0, 0]])),
    ),
    "searches": (searches, SORTED, integers(-1, 7, 3, 2, 4)),
    "gradient of sparse sums": (gradient_of_segments(tf.sparse.segment_sum), normal(3, 5, 2)),
    "gradient of sparse means": (gradient_of_segments(tf.sparse.segment_mean), normal(3, 5, 2)),
    "unsorted segments": (segments, X, SEGMENTS),
    "selection by a scalar": (
        both_shared_and_own(lambda c, x, y: tf.raw_ops.Select(condition=c, x=x, y=y)),
        *(CONDITION, Y, Y[::-1]),
    ),
    "selection by a tensor": (lambda x: tf.raw_ops.Select(condition=x > 4, x=x, y=-x), X),
    "branches": (lambda x: tf.cond(x[0] > 4, lambda: x * 2, lambda: x - 1), X),
    "clipping": (lambda x: tf.clip_by_value(x, 2.0, 7.0), X),
    "biases": (tf.nn.bias_add, np.ones([4, 1, 2, 2, 3], np.float32), X),
    "own slices": (
        lambda x, i: (tf.slice(x, [i], [1]), tf.slice(x[tf.newaxis], [0, i], [-1, 1])),
        *(X, STARTS),
    ),
    "squeeze": (
        lambda x: (
            tf.squeeze(x[tf.newaxis, :, tf.newaxis]),
            tf.squeeze(x[tf.newaxis], [0]),
            tf.squeeze(x[:, tf.newaxis], [-1]),
            tf.squeeze(tf.reduce_sum(x, keepdims=True)),
        ),
        X,
    ),
    "complex products": (products, COMPLEX, COMPLEX[::-1]),
    "complex products with a shared matrix": (
        lambda x: products(x, tf.constant(COMPLEX[0])),
        COMPLEX,
    ),
    "products without rows": (products_without_rows, NO_ROWS),
    "broadcasting of different ranks": (lambda x: (MATRIX + x, x[0] * MATRIX - x), X),
    "a loop": (steps, X),
    "nested loops": (nested, X),
    "a loop of more steps for some": (
        lambda x: tf.while_loop(lambda y: tf.reduce_sum(y) < 50.0, lambda y: [y + 1], [x])[0],
        X,
    ),
    "a loop in which a shared value becomes a client's own": (shared_becomes_own, X),
}


@pytest.mark.thorough_but_one
@pytest.mark.parametrize("name", RULES)
def test_results_equal_those_of_each_client_alone(name):
    function, *stacks = RULES[name]
    for clients in (slice(None), slice(1)):  # TensorFlow's rules may drop the axis of one client
        rows = [stack[clients] for stack in stacks]
        assert_close(vectorize(function, *rows), alone(function, *rows), 1e-6)


@pytest.mark.thorough
def test_rules_work_in_a_loop_of_more_steps_for_some_clients():
    function, *stacks = RULES["selection by a scalar"]
    stacks = [np.arange(len(stacks[0]), dtype=np.int32), *stacks]
    assert_equal(vectorize(in_loop(function), *stacks), alone(in_loop(function), *stacks))


def write_and_read(x):
    return tf.TensorArray(tf.float32, 2, element_shape=[3]).write(0, x).write(1, 2 * x).stack()


REFUSED = {
    "ClipByValue": (
        lambda x: tf.raw_ops.ClipByValue(t=x, clip_value_min=0 * X[0], clip_value_max=X[1]),
        X,
    ),
    "BiasAdd": (
        lambda x, b: tf.nn.bias_add(x, b, "NCHW"),
        *(np.ones([4, 1, 3, 2, 2], np.float32), X),
    ),
    "Slice: Slices whose sizes differ by client": (lambda x, i: tf.slice(x, [i], [-1]), X, STARTS),
    "expected to be loop invariant": (lambda x, k: tf.math.top_k(x, k).values, X, STARTS),
    "TensorList": (write_and_read, X),
    "Conv2D .* grouped convolution": (
        lambda x, k: tf.nn.conv2d(x, k, 1, "SAME"),
        *(normal(2, 1, 4, 4, 1), normal(2, 2, 2, 1, 1)),
    ),
}


@together("message", REFUSED)
def test_operations_without_a_correct_rule_are_refused(message):
    function, *stacks = REFUSED[message]
    with pytest.raises(NotVectorizableError, match=message):
        vectorize(function, *stacks)


def test_assertions_of_clients_hold():
    @tf.function
    def checked(x):
        tf.debugging.assert_less(x[0], 8.0, "too large")
        return x * 2

    assert_equal(vectorize(checked, X[:3]), 2 * X[:3])
    with pytest.raises(tf.errors.InvalidArgumentError, match="too large"):
        vectorize(checked, X)


def test_tensorflows_own_vectorization_is_unchanged():
    def own():
        return tf.function(lambda xs: tf.vectorized_map(write_and_read, xs))(tf.constant(X))

    result, before = own(), dict(internals.pfor_rules)
    expand = internals.PForInput.expanddim_inputs_for_broadcast
    with pytest.raises(NotVectorizableError):
        vectorize(write_and_read, X)
    assert dict(internals.pfor_rules) == before
    assert internals.PForInput.expanddim_inputs_for_broadcast is expand
    assert_equal(own(), result)


# The tests below are of convolutions whose filters differ by client.


def convolutions(name):
    """Returns the three operations of a convolution: output, input gradient, filter gradient."""
    options = {"strides": [1, 2, 2, 1], "padding": "SAME"}
    raw = [getattr(tf.raw_ops, f"{name}{end}") for end in ("", "BackpropInput", "BackpropFilter")]
    return (
        lambda x, w, g: raw[0](input=x, filter=w, **options),
        lambda x, w, g: raw[1](input_sizes=tf.shape(x), filter=w, out_backprop=g, **options),
        lambda x, w, g: raw[2](input=x, filter_sizes=tf.shape(w), out_backprop=g, **options),
    )


# For each of the three operations, the tensors that differ by client.
STACKED = [("x", "w", "xw"), ("w", "g", "wg", "xg"), ("x", "g", "xg", "wg")]
STACKED = [(which, stacked) for which, subsets in enumerate(STACKED) for stacked in subsets]
NEED_GROUPS = [{"x", "w"}, {"w"}, {"x"}]  # groups are needed if all of these differ by client


def with_shared(function, kernel_shape, stacked, groups=1):
    """Returns a function of the operands in `stacked`, and their values; the rest is constant."""
    *_, channels, out_channels = kernel_shape
    is_depthwise = function in DEPTHWISE
    values = {
        "x": normal(3, 2, 6, 5, channels * groups),
        "w": normal(3, *kernel_shape),
        "g": normal(3, 2, 3, 3, channels * out_channels if is_depthwise else out_channels),
    }

    def call(*args):
        own = dict(zip(stacked, args, strict=True))
        return function(*({name: value[0] for name, value in values.items()} | own).values())

    return call, [values[name] for name in stacked]


CONVOLUTIONS = convolutions("Conv2D")
DEPTHWISE = convolutions("DepthwiseConv2dNative")


@pytest.mark.thorough
@pytest.mark.parametrize(("which", "stacked"), STACKED)
def test_convolution_equals_each_client_alone(which, stacked):
    function, args = with_shared(CONVOLUTIONS[which], (3, 2, 2, 4), stacked)
    if NEED_GROUPS[which] <= set(stacked):
        with pytest.raises(NotVectorizableError, match="grouped convolution"):
            vectorize(function, *args)
        with own_filters(PATCHES):
            assert_close(vectorize(function, *args), alone(function, *args))
        with own_filters(GROUPED):
            result = vectorize(function, *args, jit_compile=True)
    else:
        result = vectorize(function, *args)
    assert_close(result, alone(function, *args))


def test_convolution_may_have_groups_itself():
    """Covers the rule's check of the number of groups."""
    function, args = with_shared(CONVOLUTIONS[0], (3, 2, 2, 4), "w", groups=2)
    with own_filters(GROUPED):
        result = vectorize(function, *args, jit_compile=True)
    assert_close(result, alone(tf.function(function, jit_compile=True), *args))


@pytest.mark.parametrize(
    ("which", "stacked"), [pair for pair in STACKED if pair[1] in ("w", "wg", "x")]
)
def test_depthwise_convolution_equals_each_client_alone(which, stacked):
    function, args = with_shared(DEPTHWISE[which], (3, 2, 3, 2), stacked)
    assert_close(vectorize(function, *args), alone(function, *args))


EXPLICIT = [[0, 0], [1, 2], [0, 1], [0, 0]]


@pytest.mark.thorough
@pytest.mark.parametrize(("padding", "data_format"), [(EXPLICIT, "NHWC"), ("SAME", "NCHW")])
def test_gradients_of_own_filters_equal_each_client_alone(padding, data_format):
    def value_and_gradients(x, w):
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            y = tf.nn.conv2d(x, w, 2, padding, data_format)
            loss = tf.reduce_sum(tf.sin(y))
        return y, *tape.gradient(loss, [x, w])

    images = normal(3, 2, 7, 6, 3) if data_format == "NHWC" else normal(3, 2, 3, 7, 6)
    args = [images, normal(3, 3, 3, 3, 4)]
    with own_filters(GROUPED):
        result = vectorize(value_and_gradients, *args, jit_compile=True)
    assert_close(result, alone(tf.function(value_and_gradients, jit_compile=True), *args))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("options", "shape"),
    [
        slow({"strides": (3, 2), "padding": "VALID"}, (4, 1)),
        slow({"strides": 2, "padding": EXPLICIT}, (3, 2)),
        slow({"strides": 1, "padding": "VALID", "dilations": (2, 1)}, (2, 2)),
        ({"strides": 2, "padding": "SAME"}, (2, 3)),
    ],
)
def test_first_and_second_derivatives_by_patches_equal_each_client_alone(options, shape):
    def derivatives(x, w):
        with tf.GradientTape() as outer:
            outer.watch([x, w])
            with tf.GradientTape() as inner:
                inner.watch([x, w])
                loss = tf.reduce_sum(tf.sin(tf.nn.conv2d(x, w, **options)))
            first = inner.gradient(loss, [x, w])
            norm = sum(tf.reduce_sum(tf.square(gradient)) for gradient in first)
        return *first, *outer.gradient(norm, [x, w])

    args = [normal(3, *sizes).astype(np.float64) for sizes in ((2, 7, 6, 2), (*shape, 2, 4))]
    with own_filters(PATCHES):
        result = vectorize(derivatives, *args)
    # On CPUs, only XLA has the gradients of dilated convolutions.
    one = tf.function(derivatives, jit_compile="dilations" in options)
    assert_close(result, alone(one, *args))


@together(
    ("way", "outputs", "inputs", "expected"),
    [
        (None, 16, 8, "BatchMatMulV2"),
        (None, 8, 8, "Conv2D"),
        (None, 16, 128, "Conv2D"),
        (GROUPED, 16, 8, "Conv2D"),
        (PATCHES, 8, 8, "BatchMatMulV2"),
    ],
)
def test_sizes_decide_how_to_convolve_unless_one_way_is_forced(way, outputs, inputs, expected):
    """Checks the operations of convolutions with own filters, of 16 images of 8 x 8."""
    specs = [tf.TensorSpec(shape) for shape in ([16, 8, 8, inputs], [3, 3, inputs, outputs])]
    one = tf.function(lambda x, w: [tf.nn.conv2d(x, w, 1, "SAME")]).get_concrete_function(*specs)

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, *s.shape]) for s in specs])
    def all_clients(x, w):
        return vectorization.vectorize(one, tf.shape(x)[0], [x, w])

    with own_filters(GROUPED, PATCHES), forced(way) if way else contextlib.nullcontext():
        found = {x.type for x in operations(all_clients.get_concrete_function().graph)}
    assert found & {"BatchMatMulV2", "Conv2D"} == {expected}


@pytest.mark.thorough
def test_groups_are_allowed_only_within_the_context():
    """Uses forward convolutions in a loop, whose groups TensorFlow computes on every CPU."""
    args = [np.arange(3, dtype=np.int32), normal(3, 2, 7, 6, 2), normal(3, 3, 3, 2, 4)]
    function = in_loop(lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"))
    with pytest.raises(ZeroDivisionError), own_filters(GROUPED):
        with own_filters(), pytest.raises(NotVectorizableError):
            vectorize(function, *args)
        assert_close(vectorize(function, *args), alone(function, *args))
        raise ZeroDivisionError
    with pytest.raises(NotVectorizableError, match="Conv2D"):
        vectorize(function, *args)
