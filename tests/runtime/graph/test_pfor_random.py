"""Random numbers of many clients at once are those that TensorFlow draws for each, bit for bit."""

import numpy as np
import pytest
import tensorflow as tf

from tests.marks import slow
from tff_pfl.runtime.graph import vectorization

_EXTREMES = [0, 1, -1, 2**31 - 1, -(2**31)]
SEEDS = np.concatenate(
    [
        np.array([[a, b] for a in _EXTREMES for b in _EXTREMES], np.int32),
        np.random.default_rng(0).integers(-(2**31), 2**31, (40, 2), np.int64).astype(np.int32),
    ]
)
DRAWS = {
    "int32": lambda seed, shape: tf.random.stateless_uniform(
        shape, seed, minval=None, maxval=None, dtype=tf.int32
    ),
    "uint32": lambda seed, shape: tf.random.stateless_uniform(
        shape, seed, minval=None, maxval=None, dtype=tf.uint32
    ),
    "int64": lambda seed, shape: tf.random.stateless_uniform(
        shape, seed, minval=None, maxval=None, dtype=tf.int64
    ),
    "float32": tf.random.stateless_uniform,
    "float64": lambda seed, shape: tf.random.stateless_uniform(shape, seed, dtype=tf.float64),
    "normal": tf.random.stateless_normal,
    "fold_in": lambda seed, shape: tf.random.experimental.stateless_fold_in(seed, 5),
    "shuffle": lambda seed, shape: tf.random.experimental.stateless_shuffle(tf.range(9), seed),
}


def draw(name, seed, shape):
    function = DRAWS[name]
    if name in ("float32", "normal"):
        return function(shape, seed)
    return function(seed, shape)


def vectorized(function, seeds):
    """`function` of each seed, in a graph that knows nothing of their number."""
    spec = tf.TensorSpec([2], seeds.dtype)
    one = tf.function(lambda seed: [function(seed)]).get_concrete_function(spec)

    @tf.function(input_signature=[tf.TensorSpec([None, 2], seeds.dtype)])
    def all_of_them(seeds):
        return vectorization.vectorize(one, tf.shape(seeds)[0], [seeds])

    return all_of_them(seeds)[0].numpy()


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize(
    "shape",
    [(3, 4), *(slow(s) for s in [(), (0,), (1,), (5,)])],
    ids=str,
)
def test_numbers_are_tensorflows_own(name, shape):
    expected = np.stack([draw(name, seed, shape).numpy() for seed in SEEDS])
    actual = vectorized(lambda seed: draw(name, seed, shape), SEEDS)
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(actual, expected)


def test_one_client():
    expected = [draw("int32", SEEDS[7], (6,)).numpy()]
    np.testing.assert_array_equal(
        vectorized(lambda seed: draw("int32", seed, (6,)), SEEDS[7:8]), expected
    )


@pytest.mark.parametrize("size", [0, 6])
@pytest.mark.parametrize("name", ["int64", "normal", "shuffle"])
def test_no_clients(name, size):
    drawn = vectorized(lambda seed: draw(name, seed, (size,)), SEEDS[:0])
    one = draw(name, SEEDS[0], (size,))
    assert (drawn.shape, drawn.dtype) == ((0, *one.shape), one.dtype)


@pytest.mark.parametrize("name", ["int32", "uint32", "float32"])
def test_seeds_of_64_bits(name):
    extremes = [*_EXTREMES, 2**31, 2**32 - 1, 2**32, 2**63 - 1, -(2**63)]
    seeds = np.array([[a, b] for a in extremes for b in extremes], np.int64)
    expected = np.stack([draw(name, seed, (5,)).numpy() for seed in seeds])
    np.testing.assert_array_equal(vectorized(lambda seed: draw(name, seed, (5,)), seeds), expected)


def test_as_many_numbers_as_are_known_at_run_time():
    """The words of a block of four that are too many are left out."""
    for count in (0, 3, 5):
        count = tf.Variable(count)  # no constant

        def some(seed, count=count):
            return tf.random.stateless_uniform([count], seed, None, None, tf.int32)

        expected = np.stack([some(seed).numpy() for seed in SEEDS])
        np.testing.assert_array_equal(vectorized(some, SEEDS), expected)


@pytest.mark.parametrize("name", ["int32", "float32", "fold_in"])
def test_seeds_whose_shape_is_not_known(name):
    seeds = tf.constant(SEEDS[:3])
    specs = [tf.TensorSpec(None, tf.int32)]
    one = tf.function(lambda seed: [draw(name, seed, [4])]).get_concrete_function(*specs)

    @tf.function(input_signature=specs)
    def together(seeds):
        return vectorization.vectorize(one, tf.constant(3), [seeds])

    alone = [one(seed)[0] for seed in tf.unstack(seeds)]
    np.testing.assert_array_equal(together(seeds)[0], alone)
