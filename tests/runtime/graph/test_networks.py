"""Trains many kinds of networks for a round, in each way of the runtime, against `EagerProcess`.

The cases are a covering array: each network meets each runtime, with four of the optimizers and
four of the methods; each runtime meets each optimizer and each method.
"""

import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.federation import assert_close, make_client, traced
from tff_pfl import algorithms, runtime
from tff_pfl.data import FederatedDataset
from tff_pfl.local import LocalTraining
from tff_pfl.models import Task, from_keras, tasks
from tff_pfl.runtime.graph.clients.pfor_rules import NotVectorizableError
from tff_pfl.templates import compose

layers, optimizers = tf.keras.layers, tff.learning.optimizers
CLASSES, SIZES, TOLERANCE = 3, (7, 4, 11), 2e-5
IMAGE, VECTOR, SEQUENCE, TOKENS = (6, 6, 2), (5,), (4, 3), (4,)


def sequential(*stack):
    """Returns a network of layers with a head; relu's kinks would amplify rounding errors."""
    return lambda x: layers.Dense(CLASSES, name="head")(
        functools.reduce(lambda value, layer: layer()(value), stack, x)
    )


def conv(filters=4, **options):
    return lambda: layers.Conv2D(filters, 3, activation="elu", **options)


def residual(x):
    hidden = layers.Conv2D(2, 3, padding="same")(x)
    hidden = layers.BatchNormalization()(hidden)
    hidden = layers.ReLU()(layers.Add()([x, hidden]))
    return sequential(layers.GlobalAveragePooling2D)(hidden)


def attention(x):
    hidden = layers.MultiHeadAttention(2, 3)(x, x)
    return sequential(layers.Flatten)(layers.LayerNormalization()(hidden))


def shared(x):
    layer = layers.Dense(5, activation="tanh")
    return sequential()(layer(layer(x)))


def two_inputs(inputs):
    image = sequential(conv(), layers.Flatten)(inputs["image"])
    return layers.Add()([image, layers.Dense(CLASSES, name="other")(inputs["vector"])])


def two_outputs(x):
    hidden = layers.Dense(4, activation="elu")(x)
    return {"one": sequential()(hidden), "two": layers.Dense(2, name="other")(hidden)}


def normalized(make):
    """Returns the small network whose gradients are functions that return their arguments."""
    return sequential(lambda: layers.Conv2D(4, 3), make, layers.ReLU, layers.Flatten)


def recurrent(kind, unroll):
    return sequential(lambda: kind(4, unroll=unroll))


NETWORKS = {
    "dense": (VECTOR, sequential(lambda: layers.Dense(6, "elu"))),
    "convolution": (IMAGE, sequential(conv(), layers.MaxPool2D, layers.Flatten)),
    "strides": (IMAGE, sequential(conv(strides=2, padding="same"), layers.Flatten)),
    "separable": (IMAGE, sequential(lambda: layers.SeparableConv2D(4, 3), layers.Flatten)),
    "depthwise": (IMAGE, sequential(lambda: layers.DepthwiseConv2D(3), layers.Flatten)),
    "transposed": (IMAGE, sequential(lambda: layers.Conv2DTranspose(2, 3), layers.Flatten)),
    "residual": (IMAGE, residual),
    "batch norm": (IMAGE, normalized(layers.BatchNormalization)),
    "batch norm of vectors": (
        VECTOR,
        sequential(lambda: layers.Dense(4), layers.BatchNormalization),
    ),
    "layer norm": (IMAGE, normalized(layers.LayerNormalization)),
    "group norm": (IMAGE, normalized(lambda: layers.GroupNormalization(2))),
    "dropout": (VECTOR, sequential(lambda: layers.Dense(6, "elu"), lambda: layers.Dropout(0.4))),
    "embedding": (TOKENS, sequential(lambda: layers.Embedding(9, 3), layers.Flatten)),
    "lstm": (SEQUENCE, recurrent(layers.LSTM, False)),
    "lstm, unrolled": (SEQUENCE, recurrent(layers.LSTM, True)),
    "gru": (SEQUENCE, recurrent(layers.GRU, False)),
    "gru, unrolled": (SEQUENCE, recurrent(layers.GRU, True)),
    "convolution of sequences": (SEQUENCE, sequential(lambda: layers.Conv1D(4, 2), layers.Flatten)),
    "attention": (SEQUENCE, attention),
    "shared layer": (VECTOR, shared),
    "two inputs": ({"image": IMAGE, "vector": VECTOR}, two_inputs),
    "two outputs": (VECTOR, two_outputs),
}
OPTIMIZERS = {
    "sgd": {"optimizer": optimizers.build_sgdm(0.1)},
    "momentum": {"optimizer": optimizers.build_sgdm(0.1, 0.9)},
    "adam": {"optimizer": optimizers.build_adam(0.01, epsilon=1e-3)},
    "rmsprop": {"optimizer": optimizers.build_rmsprop(0.01, epsilon=1e-3)},
    "schedule": {
        "optimizer": optimizers.build_sgdm(0.1),
        "schedule": lambda round_num: 0.5 / (1.0 + round_num),
    },
    "clipping": {"optimizer": optimizers.build_sgdm(0.1), "clip_norm": 0.5},
}
METHODS = {
    "fedavg": {},
    "ditto": {"lambda_": 0.5},
    "fedper": {"personal_layers": ["head"]},
    "apfl": {},
    "plgu_lf": {"num_personal_layers": 1},
}
RUNTIMES = {
    "loop": {"vectorize": "never"},
    "vectorized": {"vectorize": "always"},
    "compiled": {"jit_compile": True},
    "compiled and vectorized": {"vectorize": "always", "jit_compile": True},
}
# Networks that only a loop or XLA computes: with filters, or loops over steps, of each client.
CONVOLUTIONS = {
    *("convolution", "strides", "separable", "transposed", "residual", "two inputs"),
    *("batch norm", "layer norm", "group norm", "convolution of sequences"),
}
LOOPS = {"lstm", "gru"}
REFUSED = {(name, "vectorized") for name in CONVOLUTIONS | LOOPS}
REFUSED |= {(name, "compiled and vectorized") for name in LOOPS}


def covering_array():
    """Yields the network, the optimizer, the method and the runtime of each case."""
    for row, network in enumerate(NETWORKS):
        for column, way in enumerate(RUNTIMES):
            optimizer = [*OPTIMIZERS][(row + column) % len(OPTIMIZERS)]
            yield network, optimizer, [*METHODS][(row + 2 * column) % len(METHODS)], way


def rows_of(shape, size, rng):
    """Returns random inputs: words for an embedding, else numbers."""
    if shape is TOKENS:
        return rng.integers(0, 9, (size, *shape)).astype(np.int32)
    if isinstance(shape, dict):
        return {name: rows_of(part, size, rng) for name, part in shape.items()}
    return rng.normal(size=(size, *shape)).astype(np.float32)


def clients_of(shape):
    """Returns the data of clients of unequal sizes, the last batches of which are partial."""
    rng = np.random.default_rng(0)
    arrays = [
        (rows_of(shape, size, rng), rng.integers(0, CLASSES, size), rows_of(shape, 1, rng), [0])
        for size in SIZES
    ]
    return FederatedDataset.from_client_arrays(arrays, CLASSES)


@functools.cache
def model_of(name):
    shape, apply = NETWORKS[name]

    def network():
        if isinstance(shape, dict):
            inputs = {key: tf.keras.Input(part, name=key) for key, part in shape.items()}
        else:
            inputs = tf.keras.Input(shape, dtype=tf.int32 if shape is TOKENS else tf.float32)
        return tf.keras.Model(inputs, apply(inputs))

    def loss(y, outputs):
        penalty = tf.reduce_sum(tf.square(outputs["two"]), axis=1)
        return tasks.sparse_cross_entropy(y, outputs["one"]) + 0.1 * penalty

    task = Task("both", loss) if name == "two outputs" else None
    return from_keras(network, input_shape=shape, task=task)


@pytest.mark.slow  # `make test-trainings`, which continuous integration runs
@pytest.mark.parametrize(("network", "optimizer", "method", "way"), list(covering_array()))
def test_round_equals_the_eager_one(network, optimizer, method, way):
    model, dataset = model_of(network), clients_of(NETWORKS[network][0])
    local = LocalTraining(**OPTIMIZERS[optimizer], epochs=2, batch_size=4)
    eager = traced(method, model, local, **METHODS[method])
    algorithm = algorithms.make(method, model, local, **METHODS[method])
    clients = [
        make_client(eager, number, dataset.examples(number, "train"))
        for number in range(len(SIZES))
    ]
    expected = eager.next(eager.initialize(), clients)
    with tff.framework.get_context_stack().install(runtime.create_graph_context(**RUNTIMES[way])):
        process = compose(algorithm, dataset.examples_type)
        if (network, way) in REFUSED:
            with pytest.raises(NotVectorizableError):
                process.next(process.initialize(), clients)
            return
        found = process.next(process.initialize(), clients)
    assert_close(found.state.algorithm, expected.state.algorithm, TOLERANCE)
    assert_close(found.clients, expected.clients, TOLERANCE)
