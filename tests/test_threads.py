"""Tests that several threads can build models, and compose and run processes, at once."""

import collections
import itertools
import threading

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.federation import EXAMPLES_TYPE, IMAGE_SHAPE, local_sgd, make_clients, vector
from tff_pfl import algorithms, runtime
from tff_pfl.local import Batch
from tff_pfl.models import from_keras

layers = tf.keras.layers


def network():
    return tf.keras.Sequential(
        [
            layers.Flatten(input_shape=IMAGE_SHAPE),
            layers.Dense(8, "relu", name="body"),
            layers.Dropout(0.5),
            layers.GroupNormalization(2, name="norm"),
            layers.Dense(3, name="head"),
        ]
    )


def gradient(**options):
    model = from_keras(network, input_shape=IMAGE_SHAPE, **options)
    x = tf.random.stateless_uniform([6, *IMAGE_SHAPE], [1, 2])
    batch = Batch(x, tf.constant([0, 1, 2] * 2), tf.ones([6]), tf.constant([1, 2]))
    return vector(model.gradient(model.init(0), batch))


def one_round(name):
    model = from_keras(network, input_shape=IMAGE_SHAPE)
    process = algorithms.build(name, model, EXAMPLES_TYPE, local_sgd())
    with tff.framework.get_context_stack().install(runtime.create_graph_context()):
        output = process.next(process.initialize(), make_clients(process, [3, 5, 0]))
        return vector(output.state.algorithm)


def keras_itself():
    """Runs a Keras model with dropout that does not use this library."""
    model = tf.keras.Sequential(
        [
            layers.Dense(4, kernel_initializer="ones", input_shape=(3,)),
            layers.Dropout(0.5),
            layers.Dense(2, kernel_initializer="ones", name="last"),
        ]
    )
    x = tf.ones([50, 3])
    assert np.any(model(x, training=True) != model(x, training=True))
    policies = {layer.dtype_policy.name for layer in model.layers}
    assert policies == {"float32"}
    return model(x).numpy()


BUILDS = {
    "bfloat16": lambda: gradient(compute_type="bfloat16"),
    "float32": lambda: gradient(),
    "keras": keras_itself,
    "segments": lambda: gradient(segments=2),
}
ROUNDS = {name: lambda name=name: one_round(name) for name in ("fedavg", "ditto")}


def found_wrong(jobs, num_threads, times) -> collections.Counter:
    """Runs jobs in threads; counts failures and results that differ from the job alone."""
    expected = {name: job() for name, job in jobs.items()}
    wrong = collections.Counter()

    def work(first):
        for name in itertools.islice(itertools.cycle(jobs), first, first + times):
            try:
                if not np.array_equal(jobs[name](), expected[name]):
                    wrong[name, "differs"] += 1
            except Exception as error:
                wrong[name, repr(error)[:200]] += 1

    threads = [threading.Thread(target=work, args=[2 * i]) for i in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


def test_models_can_be_built_in_threads():
    assert not found_wrong(BUILDS, num_threads=2, times=1)


@pytest.mark.slow
@pytest.mark.parametrize("num_threads", [2, 4])
def test_models_and_rounds_run_in_threads(num_threads):
    assert not found_wrong(BUILDS | ROUNDS, num_threads, times=50)
