"""Tests that random numbers of many clients equal those of each client alone, bit for bit."""

import numpy as np
import pytest
import tensorflow as tf

from tests.federation import assert_equal
from tests.marks import slow
from tests.runtime.graph.clients.vectorizing import alone, vectorize
from tff_pfl.runtime.graph.clients import vectorization

random = tf.random
_EXTREMES = [0, 1, -1, 2**31 - 1, -(2**31)]
SEEDS = np.concatenate(
    [
        np.array([[a, b] for a in _EXTREMES for b in _EXTREMES], np.int32),
        np.random.default_rng(0).integers(-(2**31), 2**31, (10, 2), np.int64).astype(np.int32),
    ]
)
_LONG = [*_EXTREMES, 2**31, 2**32 - 1, 2**32, 2**63 - 1, -(2**63)]
LONG_SEEDS = np.array([[a, b] for a in _LONG for b in _LONG], np.int64)


def bits(dtype, *shape):
    return lambda seed: random.stateless_uniform(shape, seed, None, None, dtype)


DRAWS = {
    "int32": bits(tf.int32, 3, 3),
    "uint32": bits(tf.uint32, 5),
    "int64": bits(tf.int64, 5),
    "uniform": lambda seed: random.stateless_uniform([3, 4], seed),
    "uniform of no numbers": lambda seed: random.stateless_uniform([0], seed),
    "one uniform number": lambda seed: random.stateless_uniform([], seed),
    "uint64": bits(tf.uint64, 5),
    "uniform float64": lambda seed: random.stateless_uniform([5], seed, dtype=tf.float64),
    "all int32": lambda seed: random.stateless_uniform([9], seed, -(2**31), 2**31 - 1, tf.int32),
    "most int64": lambda seed: random.stateless_uniform([9], seed, -(2**62), 2**62 + 7, tf.int64),
    "integers": lambda seed: random.stateless_uniform([3, 3], seed, 2, seed[1] % 9 + 9, tf.int32),
    "normal": lambda seed: random.stateless_normal([9], seed),
    "normal float64": lambda seed: random.stateless_normal([9], seed, dtype=tf.float64),
    "dropout": lambda seed: tf.nn.experimental.stateless_dropout(tf.ones([5, 7]), 0.4, seed),
    "shuffle": lambda seed: random.experimental.stateless_shuffle(tf.range(9), seed),
    "fold in": lambda seed: random.experimental.stateless_fold_in(seed, seed[1]),
    "split": lambda seed: random.experimental.stateless_split(seed, 3),
    "key and counter": lambda seed: tf.raw_ops.StatelessRandomGetKeyCounterAlg(seed=seed)[:2],
    "version 1": lambda seed: tf.raw_ops.StatelessRandomUniform(shape=[9], seed=seed),
}


_UNCOMPILED = {"shuffle", "key and counter", "version 1"}


@pytest.mark.parametrize("name", DRAWS)
def test_random_numbers_equal_those_of_each_client_alone(name):
    assert_equal(vectorize(DRAWS[name], SEEDS), alone(DRAWS[name], SEEDS))


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["uint32", "uniform", "fold in"])
def test_seeds_may_have_64_bits(name):
    assert_equal(vectorize(DRAWS[name], LONG_SEEDS), alone(DRAWS[name], LONG_SEEDS))


@pytest.mark.parametrize("name", ["int32", "normal", "uniform of no numbers"])
def test_there_may_be_no_clients(name):
    drawn, one = vectorize(DRAWS[name], SEEDS[:0]), DRAWS[name](tf.constant(SEEDS[0]))
    assert (drawn.shape, drawn.dtype) == ((0, *one.shape), one.dtype)


@pytest.mark.thorough
@pytest.mark.parametrize("count", [0, 3, 5])
def test_number_of_draws_may_be_known_at_run_time_only(count):
    """Tries numbers that leave words of the last block of four unused."""
    count = tf.Variable(count)  # not a constant

    def some(seed):
        return random.stateless_uniform([count], seed, None, None, tf.int32)

    assert_equal(vectorize(some, SEEDS), alone(some, SEEDS))


@pytest.mark.thorough
def test_draws_work_in_a_loop_and_with_seeds_of_unknown_shape():
    def draw(seed):
        def step(i, seed, total):
            seed = random.experimental.stateless_fold_in(seed, i)
            return i + 1, seed, total + random.stateless_uniform([4], seed)

        return tf.while_loop(lambda i, *_: i < 3, step, (0, seed, tf.zeros([4])))[2]

    assert_equal(vectorize(draw, SEEDS), alone(draw, SEEDS))
    spec = [tf.TensorSpec(None, tf.int32)]
    one = tf.function(lambda seed: [DRAWS["uniform"](seed)]).get_concrete_function(*spec)
    together = tf.function(
        lambda seeds: vectorization.vectorize(one, tf.constant(3), [seeds]), input_signature=spec
    )
    seeds = tf.constant(SEEDS[:3])
    assert_equal(together(seeds)[0], tf.stack([one(seed)[0] for seed in tf.unstack(seeds)]))


def test_shared_seed_is_drawn_from_once():
    def draw(x):
        key, counter, alg = tf.raw_ops.StatelessRandomGetKeyCounterAlg(seed=[1, 2])
        drawn = tf.raw_ops.StatelessRandomUniformV2(shape=[2], key=key, counter=counter, alg=alg)
        return x + drawn, tf.cast(x, tf.int32) + tf.raw_ops.StatelessRandomGetAlg()

    x = np.arange(3, dtype=np.float32)
    assert_equal(vectorize(draw, x), alone(draw, x))


@pytest.mark.thorough
@pytest.mark.parametrize("names", [["uniform"], slow(DRAWS.keys() - _UNCOMPILED)])
def test_compiled_draws_are_equal(names):
    """Compiles draws with a seed for each client, and with one for all, also in a loop."""

    def draws(seed):
        def step(i, total):
            return i + 1, total + random.stateless_normal([3], [7, i])

        shared = tf.while_loop(lambda i, _: i < 3, step, (0, tf.zeros([3])))[1]
        return {name: DRAWS[name](seed) for name in names} | {"shared normal": shared}

    compiled, expected = vectorize(draws, SEEDS[:5], jit_compile=True), alone(draws, SEEDS[:5])
    for name in compiled:
        if "normal" in name:
            np.testing.assert_allclose(compiled[name], expected[name], 1e-5, 1e-6, err_msg=name)
        else:
            assert_equal(compiled[name], expected[name])
