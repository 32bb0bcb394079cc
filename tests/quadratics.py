"""Provides clients with quadratic objectives, whose steps have a closed form.

A client's only example is its objective, f(w) = 1/2 (w - c)^T A (w - c) + b. One batch has all the
client's data, so that gradient descent is exact:

    model = quadratic_model(2)
    result = local_sgd.train(model, weights_of(w, 2), quadratic_examples(A, c, b), context)
    vector_of(result.weights)  # c + (I - eta A)^K (w - c)
"""

import collections

import numpy as np
import tensorflow as tf

from tests.federation import make_client
from tff_pfl.local import Examples, examples_type
from tff_pfl.models import Model, Task
from tff_pfl.templates import Client


def quadratic_model(*dims: int) -> Model:
    """Makes the model of the quadratic in w, stored as a layer of weights for each of `dims`.

    `init(seed)` is standard normal.
    """
    dim = sum(dims)

    def init(seed):
        return weights_of(tf.random.stateless_normal([dim], [seed, 0]), *dims)

    def apply(weights, x, training=False, seed=None):
        w = tf.concat([layer["w"] for layer in weights.values()], axis=0)
        a, c, b = tf.split(tf.cast(x, tf.float32), [dim * dim, dim, 1], axis=-1)
        offset = w - c
        scaled = tf.linalg.matvec(tf.reshape(a, [-1, dim, dim]), offset)
        return 0.5 * tf.reduce_sum(offset * scaled, axis=-1) + b[:, 0]

    return Model(init, apply, task=Task("outputs", lambda y, outputs: outputs), name="quadratic")


def quadratic_examples(a, c, b=0.0, copies=1) -> Examples:
    """Returns `copies` of the example with symmetric matrix `a`, centre `c` and offset `b`."""
    x = np.concatenate([np.ravel(a), np.ravel(c), [b]]).astype(np.float32)
    return Examples(np.stack([x] * copies), np.zeros([copies], np.int32), np.int32(copies))


def quadratic_clients(process, matrices, centres, copies) -> list[Client]:
    """Makes clients that have never taken part, each with copies of its example."""
    examples = map(quadratic_examples, matrices, centres, [0.0] * len(copies), copies)
    return [make_client(process, i, its) for i, its in enumerate(examples)]


def quadratic_type(dim: int):
    """Returns the TFF type of `quadratic_examples`."""
    return examples_type([dim * dim + dim + 1], np.float32)


def weights_of(vector, *dims: int):
    """Returns the weights of `quadratic_model(*dims)` for a vector."""
    parts = tf.split(tf.cast(vector, tf.float32), dims)
    return collections.OrderedDict(
        (f"layer{i}", collections.OrderedDict(w=part)) for i, part in enumerate(parts)
    )


def vector_of(weights) -> np.ndarray:
    """Returns the vector of a quadratic model's weights."""
    return np.concatenate([np.asarray(layer["w"]) for layer in weights.values()])


def objectives(number=3, dim=3) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Returns the matrices and the centres of some clients."""
    centres = [np.random.default_rng(10 + i).normal(size=dim) for i in range(number)]
    return [spd(dim, seed) for seed in range(number)], centres


def descended(w, a, c, rate, steps) -> np.ndarray:
    """Returns the result of gradient steps from `w`: `c + (I - rate A)^steps (w - c)`."""
    return c + np.linalg.matrix_power(np.eye(len(c)) - rate * a, steps) @ (w - c)


def spd(dim: int, seed: int) -> np.ndarray:
    """Returns a symmetric matrix with eigenvalues between 0.5 and 2."""
    rng = np.random.default_rng(seed)
    q, _ = np.linalg.qr(rng.normal(size=(dim, dim)))
    return (q * rng.uniform(0.5, 2.0, size=dim)) @ q.T
