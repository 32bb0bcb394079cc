"""Each rule, against the op called for every client alone."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.federation import assert_close, assert_equal
from tests.marks import slow
from tff_pfl.runtime.graph import internals
from tff_pfl.runtime.graph.pfor_rules import (
    NotVectorizableError,
    grouped_convolutions,
    rules,
)


@pytest.fixture(autouse=True)
def rules_are_installed(monkeypatch):
    for op_type, rule in rules(dict(internals.pfor_rules)).items():
        monkeypatch.setitem(internals.pfor_rules, op_type, rule)


SEEDS = np.array([[0, 1], [7, -3], [2**31 - 1, 5]], np.int32)


def vectorized(function, args, *, dynamic=False, jit_compile=False):
    """`function` over the leading axis of `args`, whose length is unknown if `dynamic`."""
    args = [tf.constant(arg) for arg in args]
    axis = [None] if dynamic else args[0].shape[:1]
    specs = [tf.TensorSpec([*axis, *arg.shape[1:]], arg.dtype) for arg in args]

    @tf.function(input_signature=specs, jit_compile=jit_compile)
    def run(*args):
        return tf.vectorized_map(lambda arg: function(*arg), args, fallback_to_while_loop=False)

    return run(*args)


def one_by_one(function, args):
    results = [function(*map(tf.constant, arg)) for arg in zip(*args, strict=True)]
    return tf.nest.map_structure(lambda *leaves: tf.stack(leaves), *results)


def in_loop(function):
    """`function` in a loop of as many steps as its first argument says, as local training is."""

    def run(steps, *args):
        nothing = tf.nest.map_structure(tf.zeros_like, function(*args))
        _, result = tf.while_loop(
            lambda i, _: i < steps, lambda i, _: (i + 1, function(*args)), (0, nothing)
        )
        return result

    return run


def normal(*shape):
    return np.random.default_rng(shape).normal(size=shape).astype(np.float32)


def assert_exact(function, *args):
    """In a static graph, and in a dynamic one: a loop of which clients take more steps or fewer."""
    assert_equal(vectorized(function, args), one_by_one(function, args))
    steps = np.arange(len(args[0]), dtype=np.int32)
    looped = in_loop(function)
    assert_equal(
        vectorized(looped, [steps, *args], dynamic=True), one_by_one(looped, [steps, *args])
    )


def assert_close_to_one_by_one(function, args, alone=None):
    with grouped_convolutions(True):
        result = vectorized(function, args, jit_compile=True)
    assert_close(result, one_by_one(alone or function, args))


@pytest.mark.parametrize("shape", [slow((3, 6)), slow((1, 6)), (3, 4, 6)])
def test_top_k(shape):
    values = np.random.default_rng(0).integers(0, 4, shape).astype(np.int32)  # with ties
    assert_exact(lambda x: (tf.math.top_k(x, 2), tf.math.top_k(x, tf.shape(x)[-1])), values)


def test_top_k_of_a_k_that_differs_by_client():
    with pytest.raises(ValueError, match="expected to be loop invariant"):
        vectorized(
            lambda x, k: tf.math.top_k(x, k).values,
            [np.zeros([2, 6], np.float32), np.array([1, 2], np.int32)],
        )


DRAWS = {
    "bounding_box": lambda seed: tuple(
        tf.image.stateless_sample_distorted_bounding_box([9, 9, 3], [[[0.0, 0.0, 1.0, 1.0]]], seed)
    ),
    "categorical": lambda seed: tf.random.stateless_categorical([[0.0, 1.0, 2.0]], 9, seed),
    "dropout": lambda seed: tf.nn.experimental.stateless_dropout(tf.ones([5, 7]), 0.4, seed),
    "fold_in": lambda seed: tf.random.experimental.stateless_fold_in(seed, seed[1]),
    "full_int": lambda seed: tf.random.stateless_uniform([9], seed, None, None, tf.int32),
    "gamma": lambda seed: tf.random.stateless_gamma([4, 2], seed, alpha=[0.5, 2.0]),
    "index_shuffle": lambda seed: tf.random.experimental.index_shuffle(
        tf.range(5), seed, tf.constant(50)
    ),
    "int": lambda seed: tf.random.stateless_uniform([3, 3], seed, 2, seed[1] + 9, tf.int32),
    "key_counter_alg": lambda seed: tf.raw_ops.StatelessRandomGetKeyCounterAlg(seed=seed)[:2],
    "normal": lambda seed: tf.random.stateless_normal([9], seed),
    "poisson": lambda seed: tf.random.stateless_poisson([9], seed, 3.0),
    "shuffle": lambda seed: tf.random.experimental.stateless_shuffle(tf.range(9), seed),
    "split": lambda seed: tf.random.experimental.stateless_split(seed, 3),
    "truncated_normal": lambda seed: tf.random.stateless_truncated_normal([9], seed),
    "uniform": lambda seed: tf.random.stateless_uniform([2, 5], seed),
    "uniform_float64": lambda seed: tf.random.stateless_uniform([2, 5], seed, dtype=tf.float64),
    "uniform_of_version_1": lambda seed: tf.raw_ops.StatelessRandomUniform(shape=[9], seed=seed),
}


def test_random_numbers_are_those_of_the_client_alone():
    def draw_all(seed):
        return tuple(draw(seed) for draw in DRAWS.values())

    assert_equal(vectorized(draw_all, [SEEDS], dynamic=True), one_by_one(draw_all, [SEEDS]))


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWS)
def test_random_numbers_of_a_kind_alone(name):
    assert_exact(DRAWS[name], SEEDS)


@pytest.mark.slow
def test_seeds_that_are_folded_in_a_loop():
    def draw(seed):
        def step(i, seed, total):
            seed = tf.random.experimental.stateless_fold_in(seed, i)
            return i + 1, seed, total + tf.random.stateless_uniform([4], seed)

        return tf.while_loop(lambda i, *_: i < 3, step, (0, seed, tf.zeros([4])))[2]

    assert_exact(draw, SEEDS)


def test_numbers_of_a_shape_that_is_known_at_run_time():
    def draw(seed, x):
        return tf.random.stateless_uniform(tf.shape(x), seed)

    args = [SEEDS, np.zeros([3, 5], np.float32)]
    assert_equal(vectorized(draw, args, dynamic=True), one_by_one(draw, args))


def test_a_shared_seed_is_drawn_from_once():
    def draw(x):
        key, counter, alg = tf.raw_ops.StatelessRandomGetKeyCounterAlg(seed=[1, 2])
        drawn = tf.raw_ops.StatelessRandomUniformV2(shape=[2], key=key, counter=counter, alg=alg)
        return x + drawn, tf.cast(x, tf.int32) + tf.raw_ops.StatelessRandomGetAlg()

    assert_exact(draw, np.arange(3, dtype=np.float32))


@pytest.mark.slow  # as in `test_pfor_random.py`
@pytest.mark.parametrize("name", ["fold_in", "uniform"])
def test_one_client_and_none(name):
    assert_exact(DRAWS[name], SEEDS[1:2])
    (result,) = tf.nest.flatten(vectorized(DRAWS[name], [SEEDS[:0]], dynamic=True))
    alone = DRAWS[name](tf.constant(SEEDS[0]))
    assert result.shape == [0, *alone.shape]
    assert result.dtype == alone.dtype


def test_select_by_a_scalar_of_the_client():
    rng = np.random.default_rng(0)
    condition = np.array([True, False, True])
    x, y = rng.normal(size=(2, 3, 4, 2)).astype(np.float32)

    def select(c, x_i, y_i):
        branches = [(x_i, y[0]), (x[0], y_i), (x_i, y_i)]
        return [tf.raw_ops.Select(condition=c, x=a, y=b) for a, b in branches]

    assert_exact(select, condition, x, y)


@pytest.mark.parametrize("paddings", [[[1, 2], [0, 3]], slow([[0, 0], [0, 0]])])
def test_pad_with_a_constant(paddings):
    x = normal(3, 4, 2)
    assert_exact(lambda x: (tf.pad(x, paddings, constant_values=7.0), tf.pad(x, paddings)), x)


@pytest.mark.parametrize(
    ("shift", "axis"),
    [([1, 2], [-1, 0]), *(slow(1, 0), slow(1, -1), slow(-1, -2))],
)
def test_roll(shift, axis):
    x = normal(3, 4, 2)
    shifts = np.stack([shift, np.multiply(shift, 2), np.multiply(shift, 0)]).astype(np.int32)
    assert_exact(lambda x, own: (tf.roll(x, shift, axis), tf.roll(x, own, axis)), x, shifts)


@pytest.mark.parametrize("side", ["left", "right"])
def test_search_in_values_of_all_and_in_ones_own(side):
    sorted_rows = np.sort(np.random.default_rng(0).integers(0, 6, [3, 2, 5]))  # some are repeated
    values = np.random.default_rng(1).integers(-1, 7, [3, 2, 4])

    def search(own, values):
        return tf.searchsorted(own, values, side), tf.searchsorted(sorted_rows[0], values, side)

    assert_exact(search, sorted_rows, values)


@pytest.mark.parametrize("segment_sum", [slow(tf.sparse.segment_sum), tf.sparse.segment_mean])
def test_gradient_of_sparse_segments(segment_sum):
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = segment_sum(x, [0, 2, 3], [0, 0, 3], num_segments=6)
            loss = tf.reduce_sum(tf.sin(y))
        return tape.gradient(loss, x)

    assert_exact(gradient, normal(3, 5, 2))


@pytest.mark.parametrize("shape", [(3,), (3, 5), (3, 4, 2)])
def test_l2_loss(shape):
    x = normal(*shape)
    alone = one_by_one(tf.nn.l2_loss, [x])
    assert_close(vectorized(tf.nn.l2_loss, [x]), alone)
    assert_close(vectorized(tf.nn.l2_loss, [x], dynamic=True), alone)


def _conv_ops(name):
    """The three ops of a convolution, all of images `x`, filter `w`, gradient `g` of the output."""
    forward, input_gradient, filter_gradient = (
        functools.partial(getattr(tf.raw_ops, op), strides=[1, 2, 2, 1], padding="SAME")
        for op in (name, f"{name}BackpropInput", f"{name}BackpropFilter")
    )
    return {
        name: lambda x, w, g: forward(input=x, filter=w),
        f"{name}BackpropInput": lambda x, w, g: input_gradient(
            input_sizes=tf.shape(x), filter=w, out_backprop=g
        ),
        f"{name}BackpropFilter": lambda x, w, g: filter_gradient(
            input=x, filter_sizes=tf.shape(w), out_backprop=g
        ),
    }


CONVOLUTIONS = _conv_ops("Conv2D")
DEPTHWISE = _conv_ops("DepthwiseConv2dNative")
NEED_GROUPS = {  # if these differ by client
    "Conv2D": {"x", "w"},
    "Conv2DBackpropInput": {"w"},
    "Conv2DBackpropFilter": {"x"},
}
# What may differ by client, for each of the three ops: its operands, and what gives a shape.
STACKED = [("x", "w", "xw"), ("w", "g", "wg", "xg"), ("x", "g", "xg", "wg")]


def stacked_operands(ops):
    return [(name, s) for name, subsets in zip(ops, STACKED, strict=True) for s in subsets]


def operands(num_clients, kernel_shape, groups=1):
    """Images, filters and, for strides of 2, gradients of the outputs."""
    _, _, in_channels, out_channels = kernel_shape
    return {
        "x": normal(num_clients, 2, 6, 5, in_channels * groups),
        "w": normal(num_clients, *kernel_shape),
        "g": normal(num_clients, 2, 3, 3, out_channels),
    }


def with_shared(function, values, stacked):
    """`function` of the operands in `stacked`, which differ by client; others are the first's."""

    def call(*args):
        chosen = {name: value[0] for name, value in values.items()} | dict(
            zip(stacked, args, strict=True)
        )
        return function(*map(tf.convert_to_tensor, chosen.values()))

    return call, [values[name] for name in stacked]


@pytest.mark.parametrize(("name", "stacked"), stacked_operands(CONVOLUTIONS))
def test_convolution(name, stacked):
    function, args = with_shared(CONVOLUTIONS[name], operands(3, (3, 2, 2, 4)), stacked)
    if NEED_GROUPS[name] <= set(stacked):
        with pytest.raises(NotVectorizableError, match=f"^{name} .* grouped convolution"):
            vectorized(function, args)
        with grouped_convolutions(True):
            result = vectorized(function, args, jit_compile=True)
    else:
        result = vectorized(function, args, dynamic=True)
    assert_close(result, one_by_one(function, args))


@pytest.mark.parametrize(
    ("name", "stacked"), [pair for pair in stacked_operands(CONVOLUTIONS) if len(pair[1]) == 1]
)
def test_convolution_that_has_groups_itself(name, stacked):
    values = operands(3, (3, 2, 2, 4), groups=2)
    function, args = with_shared(CONVOLUTIONS[name], values, stacked)
    assert_close_to_one_by_one(function, args, alone=tf.function(function, jit_compile=True))


@pytest.mark.parametrize(("name", "stacked"), stacked_operands(DEPTHWISE))
def test_depthwise_convolution(name, stacked):
    values = operands(3, (3, 2, 2, 3)) | {"g": normal(3, 2, 3, 3, 6)}
    function, args = with_shared(DEPTHWISE[name], values, stacked)
    alone = one_by_one(function, args)
    assert_close(vectorized(function, args), alone)
    assert_close(vectorized(function, args, dynamic=True), alone)


def value_and_gradients(strides, padding, data_format="NHWC"):
    def function(x, w):
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            y = tf.nn.conv2d(x, w, strides, padding, data_format)
            loss = tf.reduce_sum(tf.sin(y))
        return y, tape.gradient(loss, [x, w])

    return function


@pytest.mark.parametrize(
    ("strides", "padding", "num_clients", "in_channels"),
    [(1, "SAME", 1, 3), (2, "VALID", 3, 1), (2, "SAME", 3, 3)],
)
def test_a_network_of_the_client(strides, padding, num_clients, in_channels):
    args = [normal(num_clients, 2, 7, 6, in_channels), normal(num_clients, 3, 3, in_channels, 4)]
    assert_close_to_one_by_one(value_and_gradients(strides, padding), args)


def test_explicit_padding():
    function = value_and_gradients(2, [[0, 0], [1, 2], [0, 1], [0, 0]])
    assert_close_to_one_by_one(function, [normal(3, 2, 7, 6, 3), normal(3, 3, 3, 3, 4)])


def test_a_network_in_a_loop():
    function = in_loop(value_and_gradients(2, "SAME"))
    args = [normal(3, 2, 7, 6, 3), normal(3, 3, 3, 3, 4)]
    assert_close_to_one_by_one(lambda *args: function(2, *args), args)


@pytest.mark.parametrize("num_clients", [1, 3])
def test_channels_first(num_clients):
    function = value_and_gradients(2, "SAME", "NCHW")
    args = [normal(num_clients, 2, 3, 7, 6), normal(num_clients, 3, 3, 3, 4)]
    assert_close_to_one_by_one(function, args, alone=tf.function(function, jit_compile=True))


def test_grouped_forward_in_loops():
    """What TensorFlow's own kernels do on every CPU, without XLA."""
    args = [normal(3, 2, 7, 6, 2), normal(3, 3, 3, 2, 4)]

    def function(x, w):
        return tf.nn.conv2d(x, w, 1, "SAME")

    looped, steps = in_loop(function), np.arange(3, dtype=np.int32)
    with grouped_convolutions(True):
        result = vectorized(looped, [steps, *args], dynamic=True)
    assert_close(result, one_by_one(looped, [steps, *args]))


def test_groups_are_allowed_within_the_context_alone():
    args = [normal(2, 2, 7, 6, 2), normal(2, 3, 3, 2, 4)]

    def function(x, w):
        return tf.nn.conv2d(x, w, 1, "SAME")

    with pytest.raises(ZeroDivisionError), grouped_convolutions(True):
        vectorized(function, args)
        with grouped_convolutions(False), pytest.raises(NotVectorizableError):
            vectorized(function, args)
        vectorized(function, args)
        raise ZeroDivisionError
    with pytest.raises(NotVectorizableError, match="Conv2D"):
        vectorized(function, args)
    with pytest.raises(NotVectorizableError, match="Conv2D"):
        vectorized(lambda *args: in_loop(function)(2, *args), args)
