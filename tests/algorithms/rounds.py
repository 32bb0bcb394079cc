"""Runs rounds, and makes processes and clients with quadratic objectives, and a linear network.

The number of copies of a client's only example is its number of examples; see `tests.quadratics`.
"""

import collections
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tests import quadratics
from tests.federation import COHORTS, eager, make_client
from tests.quadratics import quadratic_examples, quadratic_model, vector_of, weights_of
from tff_pfl.local import Examples, scan_batches, trees
from tff_pfl.local.seeds import client_seed, run_seed
from tff_pfl.models import TASKS, Model, from_keras, linear
from tff_pfl.templates import Client
from tff_pfl.testing import EagerProcess

DIMS = (2, 1)
A, C = quadratics.objectives(4)
COPIES = (1, 3, 2)
QUADRATIC = quadratic_model(*DIMS)
START = vector_of(QUADRATIC.init(2)).astype(np.float64)


def stacked(vectors) -> Any:
    """Returns the weights of `QUADRATIC` for each of some vectors, along a leading axis."""
    return trees.stack([weights_of(vector, *DIMS) for vector in vectors])


def as_rows(weights) -> np.ndarray:
    """Returns the vectors of stacked weights."""
    return np.concatenate([layer["w"] for layer in weights.values()], axis=1)


class Round(NamedTuple):
    """A cohort, and the server's state, all clients and the metrics after its round."""

    cohort: Sequence[int]
    state: Any
    clients: list[Client]
    metrics: Any


def each_round(process, clients, cohorts=COHORTS, state=None) -> Iterator[Round]:
    """Yields rounds; clients keep their states."""
    state, clients = state or process.initialize(), list(clients)
    for cohort in cohorts:
        state, states, metrics = process.next(state, [clients[i] for i in cohort])
        for i, own in zip(cohort, states, strict=True):
            clients[i] = clients[i]._replace(state=own)
        yield Round(cohort, state, list(clients), metrics)


def on_quadratics(name, local, **options) -> EagerProcess:
    """Makes a process that starts from `START`."""
    return eager(name, QUADRATIC, local, **options, seed=2)


def clients_of(process, copies=COPIES) -> list[Client]:
    """Makes clients that have never taken part; client `i` has the objective of `A[i], C[i]`."""
    return [
        make_client(process, i, quadratic_examples(A[i], C[i], copies=number))
        for i, number in enumerate(copies)
    ]


def personal(process, state, clients) -> list[np.ndarray]:
    """Returns the model of each client as a vector."""
    return [vector_of(model) for model in process.personalize(state, clients)]


def drawn(
    sizes: Sequence[int], inputs: int, classes: int | Sequence
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Draws the inputs of each client around its number, and its labels, both unrounded.

    Args:
        sizes: The number of examples of each client.
        inputs: The number of inputs of an example.
        classes: The number of classes; or what the labels of each client are drawn from.
    """
    rng = np.random.default_rng(0)
    choices = [classes] * len(sizes) if isinstance(classes, int) else classes
    xs = [rng.normal(i, 1, size=(n, inputs)) for i, n in enumerate(sizes)]
    return xs, [rng.choice(its, n) for its, n in zip(choices, sizes, strict=True)]


def clients_with(process, xs, ys) -> list[Client]:
    """Makes clients that have never taken part, with these inputs and labels."""
    return [
        make_client(process, i, Examples(np.float32(x), np.int32(y), np.int32(len(y))))
        for i, (x, y) in enumerate(zip(xs, ys, strict=True))
    ]


def linear_network(inputs: int, has_bias: bool, width: int = 2) -> Model:
    """Makes a network with a linear body and a head of 3 classes, with or without a bias."""

    def init(seed):
        shapes = {"kernel": (width, 3), "bias": (3,)} if has_bias else {"kernel": (width, 3)}
        body = tf.random.stateless_normal((inputs, width), [seed, 0])
        head = {
            name: tf.random.stateless_normal(shape, [seed, len(shape)])
            for name, shape in shapes.items()
        }
        layers = {"body": {"kernel": body}, "head": head}
        return collections.OrderedDict(
            (name, collections.OrderedDict(layer)) for name, layer in layers.items()
        )

    def features(weights, x, training=False, seed=None):
        return x @ weights["body"]["kernel"]

    def apply(weights, x, training=False, seed=None):
        return linear(weights["head"], features(weights, x))

    return Model(init, apply, TASKS["classification"](), name="linear", features=features)


def normalized_network(inputs: int) -> Model:
    """Makes a linear network of 3 classes with batch normalisation and dropout."""

    def network():
        layers = tf.keras.layers
        body = [layers.BatchNormalization(momentum=0.8, name="norm"), layers.Dropout(0.3)]
        return tf.keras.Sequential([tf.keras.Input((inputs,)), *body, layers.Dense(3, name="head")])

    return from_keras(network, input_shape=(inputs,))


def cross_entropy(logits, y) -> tuple[float, np.ndarray]:
    """Returns the mean over examples, and its gradient by the logits."""
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    return -np.mean(np.log(p[range(len(y)), y])), (p - np.eye(p.shape[1])[y]) / len(y)


def slopes(loss, weights: dict[str, np.ndarray], step: float = 1e-7) -> dict[str, np.ndarray]:
    """Returns the gradient of a function of weights by name, by differences."""
    value = loss(weights)

    def slope(name, index):
        moved = weights[name].copy()
        moved[index] += step
        return (loss(weights | {name: moved}) - value) / step

    return {
        name: np.reshape([slope(name, index) for index in np.ndindex(leaf.shape)], leaf.shape)
        for name, leaf in weights.items()
    }


def by_name(weights) -> dict[str, np.ndarray]:
    """Returns weights in float64 by layer and name, such as "head/bias"."""
    return {
        f"{layer}/{name}": np.float64(value)
        for layer, values in weights.items()
        for name, value in values.items()
    }


def batches_of(
    size: int, client_id: int, round_num: int, *, epochs, batch_size, seed=0, exchange=0
) -> list:
    """Returns the rows of each batch of a client in an exchange of a round."""
    if not size:
        return []
    rows = np.arange(size, dtype=np.int32)
    examples = Examples(np.zeros([size, 1], np.float32), rows, np.int32(size))

    def step(carry, batch):
        index, found = carry
        row = tf.where(batch.weight > 0, batch.y, -1)
        return index + 1, tf.tensor_scatter_nd_update(found, [[index]], [row])

    drawn = client_seed(run_seed(seed, exchange), tf.constant(round_num), tf.constant(client_id))
    start = (tf.constant(0), tf.zeros([epochs * -(-size // batch_size), batch_size], tf.int32))
    options = {"epochs": epochs, "batch_size": batch_size, "seed": drawn}
    _, found = scan_batches(step, start, examples, **options)
    return [row[row >= 0] for row in found.numpy()]
