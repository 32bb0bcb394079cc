"""Tests that blocks must draw all random numbers from seeds."""

import random
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.marks import together
from tests.templates.mean_process import compose, mean_exchange
from tff_pfl.tracing import errors
from tff_pfl.tracing.trace import trace

pytestmark = pytest.mark.usefixtures("clients_in_a_loop")

SHAPE = [3]


def shuffled(**options):
    return (
        tf.data.Dataset.range(4).shuffle(4, **options).reduce(np.int64(0), lambda s, x: 2 * s + x)
    )


def in_loop(x):
    return tf.while_loop(lambda i, _: i < 3, lambda i, s: (i + 1, s + x * draw()), (0, 0.0))[1]


def draw():
    return tf.random.normal([])


UNSEEDED = {
    "RandomUniform": lambda x: tf.random.uniform(SHAPE),
    "RandomShuffle": lambda x: tf.random.shuffle(tf.range(4), seed=7),
    "UniformCandidateSampler": lambda x: tf.random.uniform_candidate_sampler(
        tf.constant([[1]], tf.int64), 1, 2, True, 5
    )[0],
    "NonDeterministicInts": lambda x: tf.raw_ops.NonDeterministicInts(shape=[2]),
    "RngReadAndSkip": lambda x: tf.random.Generator.from_seed(1).normal(SHAPE),
    "PyFunc": lambda x: tf.numpy_function(lambda: 1.0, [], tf.float64),
    "EagerPyFunc": lambda x: tf.py_function(lambda: 1.0, [], tf.float32),
    "ShuffleDataset": lambda x: shuffled(),
    "FractionalMaxPool": lambda x: tf.nn.fractional_max_pool(
        x * tf.ones([1, 4, 4, 1]), [1, 1.4, 1.4, 1], pseudo_random=True
    )[0],
}
NESTED = {
    "a loop": in_loop,
    "a map": lambda x: tf.map_fn(lambda y: y * draw(), x * tf.ones(SHAPE)),
    "a data set": lambda x: (
        tf.data.Dataset.range(2).map(lambda _: draw()).reduce(0.0, lambda s, y: s + y)
    ),
}
SEEDED = {
    "stateless shuffle": lambda x: tf.random.experimental.stateless_shuffle(tf.range(4), [1, 2]),
    "data set": lambda x: shuffled(seed=0),
    "fractional pooling": lambda x: tf.nn.fractional_max_pool(
        x * tf.reshape(tf.range(36.0), [1, 6, 6, 1]), [1, 1.4, 1.4, 1], pseudo_random=True, seed=3
    )[0],
    "tf.function": tf.function(lambda x: x + tf.random.stateless_uniform([], [1, 2])),
}


@pytest.fixture(autouse=True)
def graph_has_a_seed():
    """Sets a seed that does not help: each call of an operation continues its sequence."""
    tf.random.set_seed(3)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", UNSEEDED)
def test_operations_without_a_seed_raise(kind):
    with pytest.raises(errors.RandomnessError, match=f"(?s)^a block: .*of type '{kind}.*stateless"):
        trace("a block", UNSEEDED[kind], np.float32)


@pytest.mark.parametrize("draw", [np.random.uniform, random.random])
def test_numbers_drawn_while_a_block_is_traced_raise(draw):
    with pytest.raises(errors.RandomnessError, match="^a block draws .* NumPy's or Python's own"):
        trace("a block", lambda x: x * np.float32(draw()), np.float32)


@pytest.fixture
def another_thread_draws():
    """Draws from both generators in another thread while a test runs."""
    over = threading.Event()

    def draw():
        while not over.wait(1e-4):
            random.random()
            np.random.uniform()

    thread = threading.Thread(target=draw)
    thread.start()
    yield
    over.set()
    thread.join()


@pytest.mark.usefixtures("another_thread_draws")
def test_draws_of_another_thread_do_not_count():
    def block(x):
        time.sleep(0.01)
        return tf.function(lambda: tf.while_loop(lambda y: y < 1.0, lambda y: y + x, [x]))()

    assert [trace("a block", block, np.float32)(0.5) for _ in range(5)] == [[1.0]] * 5
    test_numbers_drawn_while_a_block_is_traced_raise(np.random.uniform)


@together("where", NESTED)
def test_nested_operations_without_a_seed_raise(where):
    with pytest.raises(errors.RandomnessError, match="'RandomStandardNormal' draws random numbers"):
        trace("a block", NESTED[where], np.float32)


@together("name", SEEDED)
def test_seeded_operations_are_accepted(name):
    traced = trace("a block", SEEDED[name], np.float32)
    assert traced.type_signature.parameter == tff.types.TensorType(np.float32)
    np.testing.assert_array_equal(traced(1.0), traced(1.0))


def test_error_names_client_work_that_draws():
    def noisy(message, state, data, context):
        output = mean_exchange().client_work(message, state, data, context)
        return output._replace(upload=output.upload + tf.random.normal([2]))

    message = "Exchange 'train' of .*: client_work: operation '.*' of type 'RandomStandardNormal'"
    with pytest.raises(errors.RandomnessError, match=message):
        compose(mean_exchange(client_work=noisy))


def test_changes_of_variables_are_refused():
    """Without the check, the change is lost, since nothing depends on it."""

    def work(change):
        def scaled(x):
            variable = tf.Variable(2.0)
            change(variable, x)
            return variable * 3.0

        return trace("client_work", scaled, tff.TensorType(np.float32))

    for change in (lambda v, x: v.assign_add(x), lambda v, x: v.assign(x)):
        with pytest.raises(errors.TemplateError, match="^client_work: .* changes a tf.Variable"):
            work(change)
    assert work(lambda variable, x: None)(1.0) == 6.0
