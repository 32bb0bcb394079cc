"""Numerical work of a client: gradients, convolutions, linear algebra, sorting, randomness."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests.runtime.conformance.catalogue import Catalogue, Run, mapped

case = Catalogue()

UNKNOWN = tff.types.TensorType(np.float32, (None,))
IMAGE = tff.types.TensorType(np.float32, (6, 5, 2))


@case()
def gradients():
    def function(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(x**3)
        return tape.gradient(y, x), tf.gradients(tf.reduce_sum(tf.sin(x)), x)[0]

    values = [np.array(v, np.float32) for v in ([0, 1], [2, 3, 4])]
    return Run(mapped(function, UNKNOWN), values, gives=[(3 * v**2, np.cos(v)) for v in values])


@case()
def gradient_descent():
    """A step of a linear model in a loop, with a number of steps that differs between clients."""

    @tf.function
    def function(steps, x, y):
        weights = tf.zeros([3])
        for _ in tf.range(steps):
            with tf.GradientTape() as tape:
                tape.watch(weights)
                loss = tf.reduce_mean(tf.square(tf.linalg.matvec(x, weights) - y))
            weights -= 0.1 * tape.gradient(loss, weights)
        return weights

    member = (np.int32, tff.types.TensorType(np.float32, (None, 3)), UNKNOWN)
    rng = np.random.default_rng(0)
    values = [
        (n, rng.normal(size=(n + 1, 3)).astype(np.float32), np.ones(n + 1, np.float32))
        for n in (2, 0, 5)
    ]
    return Run(mapped(lambda client: function(*client), member), values)


@case()
def convolution():
    """With one filter for all clients, and with one each, and their gradients."""

    def function(client):
        image, filters = client
        constant = tf.reshape(tf.range(36.0), [3, 3, 2, 2]) / 36
        with tf.GradientTape() as tape:
            tape.watch((image, filters))
            y = tf.nn.conv2d(image[tf.newaxis], constant, 1, "SAME")
            y = tf.nn.max_pool2d(tf.nn.relu(y), 2, 2, "VALID")
            y = tf.nn.bias_add(tf.nn.conv2d(y, filters, 1, "VALID"), tf.ones([3]))
        return y, *tape.gradient(y, (image, filters))

    member = (IMAGE, tff.types.TensorType(np.float32, (2, 2, 2, 3)))
    rng = np.random.default_rng(0)
    values = [tuple(rng.normal(size=t.shape).astype(np.float32) for t in member) for _ in range(3)]
    return Run(mapped(function, member), values)


@case()
def linear_algebra():
    def function(x):
        square = tf.matmul(x, x, transpose_b=True) + tf.eye(3)
        return tf.linalg.inv(square), tf.linalg.cholesky(square), tf.einsum("ij,kj->ik", x, x)

    rng = np.random.default_rng(0)
    values = [rng.normal(size=(3, 4)).astype(np.float32) for _ in range(3)]
    return Run(mapped(function, tff.types.TensorType(np.float32, (3, 4))), values)


@case()
def gather_scatter_and_sort():
    def function(x):
        order = tf.argsort(x, stable=True)
        counts = tf.tensor_scatter_nd_add(
            tf.zeros([4], tf.int32), x[:, tf.newaxis], tf.ones_like(x)
        )
        unique, _ = tf.unique(x)
        return tf.gather(x, order), counts, unique, tf.one_hot(x, 4), tf.reduce_max(x)

    values = [np.array(v, np.int32) for v in ([3, 0, 3], [1, 2, 1, 1])]
    return Run(mapped(function, tff.types.TensorType(np.int32, (None,))), values)


@case()
def softmax_cross_entropy():
    def function(client):
        logits, labels = client
        with tf.GradientTape() as tape:
            tape.watch(logits)
            loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        return loss, tape.gradient(loss, logits), tf.math.in_top_k(labels, logits, 1)

    member = (
        tff.types.TensorType(np.float32, (2, 3)),
        tff.types.TensorType(np.int32, (2,)),
    )
    rng = np.random.default_rng(0)
    values = [
        (rng.normal(size=(2, 3)).astype(np.float32), rng.integers(0, 3, 2).astype(np.int32))
        for _ in range(3)
    ]
    return Run(mapped(function, member), values)


@case()
def keras_layers():
    def function(x):
        network = tf.keras.Sequential(
            [
                tf.keras.layers.Dense(3, "relu", kernel_initializer="identity", input_shape=(2,)),
                tf.keras.layers.LayerNormalization(),
                tf.keras.layers.Dense(2, kernel_initializer="identity"),
            ]
        )
        return network(x)

    values = [np.array(v, np.float32) for v in ([[1, 2]], [[3, 4], [5, 6]])]
    return Run(mapped(function, tff.types.TensorType(np.float32, (None, 2))), values)


@case()
def stateless_randomness():
    def function(seed):
        return (
            tf.random.stateless_normal([2, 3], seed),
            tf.random.stateless_uniform([4], seed, 0, 100, tf.int32),
            tf.random.experimental.stateless_shuffle(tf.range(8), seed),
            tf.random.experimental.stateless_fold_in(seed, 3),
            tf.random.experimental.stateless_split(seed, 2),
            tf.nn.experimental.stateless_dropout(tf.ones([6]), 0.5, seed),
        )

    values = [np.array(v, np.int32) for v in ([1, 2], [3, 4], [1, 2])]
    return Run(mapped(function, tff.types.TensorType(np.int32, (2,))), values)
