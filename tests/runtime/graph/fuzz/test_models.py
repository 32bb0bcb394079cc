"""Fuzzes models: stored types, preprocess, layers and losses, on clients of unequal sizes.

Compares each client's training in the runtime, with padded batches, with a plain loop of Keras over
the client's own rows.
"""

import dataclasses
import os

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from hypothesis import strategies

from tests.federation import local_sgd
from tests.runtime.graph.fuzz.drawing import draws
from tff_pfl import runtime
from tff_pfl.local import ClientContext, Examples, examples_type
from tff_pfl.models import Task, from_keras
from tff_pfl.models.tasks import sparse_cross_entropy

layers = tf.keras.layers
WIDTH, CLASSES, ROWS, EPOCHS, RATE = 4, 3, 6, 2, 0.1
CASES = int(os.environ.get("FUZZ_MODEL_CASES", "1000"))
PARTS = 10

# The ranges of inputs. Float32 cannot represent all integers above 2^24.
STORED = {
    np.float32: (-3, 3),
    np.float64: (-3, 3),
    np.bool_: (0, 2),
    np.uint8: (0, 256),
    np.int32: (2**30, 2**30 + 9),
    np.int64: (10**12, 10**12 + 9),
}


def floats(x):
    return tf.cast(x, tf.float32)


def odd(x):
    return floats(tf.math.floormod(tf.cast(x, tf.int64), 2))


def normalized(x):
    """Normalizes by given moments, in an operation that TensorFlow's remapper splits."""
    ones = tf.ones([WIDTH])
    x, _, _ = tf.compat.v1.nn.fused_batch_norm(
        tf.reshape(odd(x), [-1, 1, 1, WIDTH]),
        scale=2 * ones,
        offset=ones,
        mean=0.5 * ones,
        variance=0.25 * ones,
        is_training=False,
    )
    return tf.reshape(x, [-1, WIDTH])


PREPROCESS = {
    "floats": lambda x: floats(x) / 256,
    "odd": odd,
    "normalized": normalized,
    "one-hot": lambda x: tf.one_hot(tf.cast(odd(x)[:, 0], tf.int32), WIDTH),
    "each row's own mean": lambda x: odd(x) - tf.reduce_mean(odd(x), axis=1, keepdims=True),
    "inverse root": lambda x: tf.math.rsqrt(1.0 + odd(x)),
    "where": lambda x: tf.where(odd(x) > 0.5, 1.0, -2.0),
}


LAYERS = {
    "dense": lambda: layers.Dense(WIDTH, "elu"),
    "relu": lambda: layers.Dense(WIDTH, "relu"),
    "group": lambda: layers.GroupNormalization(2),
    "layer": lambda: layers.LayerNormalization(),
    "constant": lambda: layers.Normalization(mean=[0.5] * WIDTH, variance=[2.0] * WIDTH),
    "convolution": lambda: tf.keras.Sequential(
        [layers.Reshape((WIDTH, 1)), layers.Conv1D(1, 3, padding="same"), layers.Flatten()]
    ),
}
LOSSES = {
    "cross-entropy": sparse_cross_entropy,
    "squares": lambda y, z: tf.reduce_sum((z - tf.one_hot(y, CLASSES)) ** 2, axis=1),
}
WAYS = {
    "chosen": {},
    "loop": {"vectorize": "never"},
    "compiled": {"jit_compile": True},
    "side by side": {"vectorize": "always"},
    "side by side, compiled": {"vectorize": "always", "jit_compile": True},
}


@dataclasses.dataclass(frozen=True)
class Case:
    dtype: type
    preprocess: str
    layers: tuple[str, ...]
    loss: str
    sizes: tuple[int, ...]
    is_padded: bool
    way: str
    seed: int

    def network(self):
        body = [LAYERS[name]() for name in self.layers]
        head = layers.Dense(CLASSES, name="head")
        return tf.keras.Sequential([tf.keras.Input((WIDTH,)), *body, head])


# On CPUs, convolutions whose filters differ by client have all gradients with XLA only.
cases = strategies.builds(
    Case,
    dtype=strategies.sampled_from(list(STORED)),
    preprocess=strategies.sampled_from(list(PREPROCESS)),
    layers=strategies.lists(strategies.sampled_from(list(LAYERS)), max_size=2).map(tuple),
    loss=strategies.sampled_from(list(LOSSES)),
    sizes=strategies.lists(strategies.integers(0, ROWS), min_size=1, max_size=3).map(tuple),
    is_padded=strategies.booleans(),
    way=strategies.sampled_from(list(WAYS)),
    seed=strategies.integers(0, 2**32 - 1),
).filter(lambda case: case.way != "side by side" or "convolution" not in case.layers)


def drawn_clients(case):
    rng = np.random.default_rng(case.seed)
    low, high = STORED[case.dtype]
    clients = []
    for size in case.sizes:
        x = rng.uniform(low, high, (ROWS if case.is_padded else size, WIDTH))
        x = (np.floor(x) if low >= 0 else x).astype(case.dtype)
        y = rng.integers(0, CLASSES, len(x)).astype(np.int32)
        clients.append(Examples(x, y, np.int32(size)))
    return clients


def trained_by_keras(case, weights, examples):
    """Returns the weights after gradient descent on all of a client's own rows."""
    with tf.Graph().as_default(), tf.__internal__.eager_context.eager_mode():
        network = case.network()
        for variable, weight in zip(network.weights, weights, strict=True):
            variable.assign(weight)
        x, y = (tf.constant(rows[: examples.size]) for rows in (examples.x, examples.y))
        for _ in range(EPOCHS if examples.size else 0):
            with tf.GradientTape() as tape:
                outputs = network(PREPROCESS[case.preprocess](x), training=True)
                loss = tf.reduce_mean(LOSSES[case.loss](y, outputs))
            for variable, slope in zip(
                network.weights, tape.gradient(loss, network.weights), strict=True
            ):
                if slope is not None:
                    variable.assign_sub(RATE * slope)
        return [variable.numpy() for variable in network.weights]


def try_case(case):
    model = from_keras(
        case.network,
        input_shape=(WIDTH,),
        preprocess=PREPROCESS[case.preprocess],
        task=Task(case.loss, LOSSES[case.loss]),
    )
    local = local_sgd(RATE, EPOCHS, batch_size=ROWS)

    def work(examples):
        context = ClientContext(tf.constant(0), tf.constant(0), tf.constant([1, 2]))
        return local.train(model, model.init(0), examples, context).weights

    data_type = examples_type((WIDTH,), case.dtype)
    work = tff.tensorflow.computation(work, data_type)

    @tff.federated_computation(tff.types.FederatedType(data_type, tff.CLIENTS))
    def work_of_clients(examples):
        return tff.federated_map(work, examples)

    clients = drawn_clients(case)
    context = runtime.create_graph_context(**WAYS[case.way])
    with tff.framework.get_context_stack().install(context):
        results = work_of_clients(clients)
    initial = [weight for layer in model.init(0).values() for weight in layer.values()]
    for examples, result in zip(clients, results, strict=True):
        actual = [weight for layer in result.values() for weight in layer.values()]
        expected = trained_by_keras(case, initial, examples)
        for one, other in zip(actual, expected, strict=True):
            scale = np.abs(other).max(initial=10)  # inputs are up to 10^12
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6 * scale)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_models_train_as_in_keras(part):
    different = []

    @draws(CASES // PARTS, f"part {part}")
    @hypothesis.given(case=cases)
    def try_one(case):
        try:
            try_case(case)
        except Exception as error:
            different.append(f"{case}\n{type(error).__name__}: {error!s:.2000}")

    try_one()
    assert not different, "\n\n".join(different)
