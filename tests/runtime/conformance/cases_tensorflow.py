"""Cases of TensorFlow in a computation: loops, functions, resources, numerical work."""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests.runtime.conformance.cases import (
    Cases,
    Run,
    at_clients,
    at_server,
    mapped,
    tensor,
)

case = Cases()

UNKNOWN = tensor(np.float32, None)


def triangle(n: int) -> np.int32:
    return np.int32(n * (n - 1) // 2)


@case()
def while_loop_of_autograph():
    @tf.function
    def function(n):
        total = 0
        for i in tf.range(n):
            if tf.equal(i, 2):  # in a graph of TFF, == of tensors is that of objects
                continue
            total += i
        return total

    return Run(mapped(function, np.int32), [4, 0, 7], gives=[np.int32(n) for n in (4, 0, 19)])


@case()
def while_loop_with_tensor_array():
    @tf.function
    def function(n):
        squares = tf.TensorArray(tf.int32, size=0, dynamic_size=True)
        for i in tf.range(n):
            squares = squares.write(i, i * i)
        return squares.stack()

    gives = [np.arange(n, dtype=np.int32) ** 2 for n in (3, 1)]
    return Run(mapped(function, np.int32), [3, 1], gives=gives)


@case(fast=True)
def switch_case():
    def function(i):
        return tf.switch_case(i, [lambda: 1.5, lambda: 2.5], default=lambda: -1.0)

    return Run(mapped(function, np.int32), [0, 1, 9], gives=[np.float32(n) for n in (1.5, 2.5, -1)])


@case()
def functions_of_one_name():
    """In one computation, in another, and for other shapes."""

    def build(number):
        @tf.function
        def inner(x):
            return x + number

        return tff.tensorflow.computation(lambda x: (inner(x), inner(tf.stack([x, x]))), np.float32)

    one, two = build(1.0), build(2.0)

    @tff.federated_computation(at_clients(np.float32))
    def function(x):
        return tff.federated_map(one, x), tff.federated_map(two, x), tff.federated_map(one, x)

    def gives(n):
        return np.float32(n), np.array([n, n], np.float32)

    return Run(function, [1.0], gives=([gives(2)], [gives(3)], [gives(2)]))


@case()
def data_pipeline_inside():
    def function(n):
        numbers = tf.data.Dataset.range(n).map(lambda x: x * n).batch(2)
        return numbers.reduce((np.int64(0), 0), lambda s, b: (s[0] + tf.reduce_sum(b), s[1] + 1))

    gives = [(np.int64(n * triangle(n)), np.int32((n + 1) // 2)) for n in (3, 0, 6)]
    return Run(mapped(function, np.int64), [3, 0, 6], gives=gives)


@case(fast=True)
def mutable_table_of_a_client():
    def function(key):
        table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, default_value=0)
        keys = tf.constant(["a", "b"])
        with tf.control_dependencies([table.insert([key], [5])]):
            keys = tf.identity(keys)  # what the lookup waits for
            return table.size(), table.lookup(keys)

    gives = [(np.int64(1), np.array(v)) for v in ([5, 0], [0, 5])]
    return Run(mapped(function, np.str_), ["a", "b"], gives=gives)


@case(fast=True)
def variable_of_a_client():
    """Starts anew for every client, and in the next call."""

    def function(x):
        variable = tf.Variable(1.0)
        with tf.control_dependencies([variable.assign_add(x)]):
            return variable.read_value()

    add = mapped(function, np.float32)

    def twice(values):
        return add(values), add(values)

    gives = [np.float32(n) for n in (2, 3, 5)]
    return Run(twice, [1.0, 2.0, 4.0], gives=(gives, gives))


@case()
def variable_in_a_loop():
    def function(n):
        variable = tf.Variable(0.0)

        @tf.function
        def loop(n):
            for i in tf.range(n):
                variable.assign_add(tf.cast(i, tf.float32))
            return variable.read_value()

        return loop(n)

    gives = [np.float32(triangle(n)) for n in (3, 0, 5)]
    return Run(mapped(function, np.int32), [3, 0, 5], gives=gives)


@case()
def variable_at_server():
    def function(x):
        variable = tf.Variable(1.0)
        with tf.control_dependencies([variable.assign_add(x)]):
            return variable.read_value()

    function = tff.tensorflow.computation(function, np.float32)

    @tff.federated_computation(at_server(np.float32))
    def map_server(x):
        return tff.federated_map(function, x), tff.federated_map(function, x)

    return Run(map_server, 2.0, gives=(np.float32(3), np.float32(3)))


@case(fast=True)
def assertion_that_nothing_depends_on():
    """A computation is a graph, of which only that is run which results depend on."""

    def function(x):
        tf.raw_ops.Assert(condition=x > 0, data=["not positive"])
        return 2 * x

    return Run(mapped(function, np.float32), [1.0, -2.0], gives=[np.float32(2), np.float32(-4)])


@case()
def results_that_are_no_tensors():
    function = mapped(lambda x: collections.OrderedDict(b=3, a=(np.ones(2), True, "s")), np.float32)
    gives = collections.OrderedDict(b=np.int32(3), a=(np.ones(2), np.bool_(True), b"s"))
    return Run(function, [1.0, 2.0], gives=[gives, gives])


IMAGE = tensor(np.float32, 6, 5, 2)


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

    member = (IMAGE, tensor(np.float32, 2, 2, 2, 3))
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
    return Run(mapped(function, tensor(np.float32, 3, 4)), values)


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
    return Run(mapped(function, tensor(np.float32, None, 2)), values)


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
    return Run(mapped(function, tensor(np.int32, 2)), values)
