"""TensorFlow in a computation: loops, functions, tables, variables, pipelines, assertions."""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests.runtime.conformance.catalogue import Catalogue, Run, at_clients, at_server, mapped

case = Catalogue()

UNKNOWN = tff.types.TensorType(np.float32, (None,))


def triangle(n: int) -> np.int32:
    return np.int32(n * (n - 1) // 2)


@case()
def while_loop_of_different_lengths():
    def function(n):
        return tf.while_loop(lambda i, _: i < n, lambda i, s: (i + 1, s + i), (0, 0))

    gives = [(np.int32(n), triangle(n)) for n in (3, 0, 7)]
    return Run(mapped(function, np.int32), [3, 0, 7], gives=gives)


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


@case()
def scan_and_map_fn():
    def function(x):
        return tf.scan(lambda a, b: a + b, x), tf.map_fn(lambda v: v * v, x)

    values = [np.arange(n, dtype=np.float32) for n in (3, 5)]
    gives = [(np.cumsum(v, dtype=np.float32), v * v) for v in values]
    return Run(mapped(function, UNKNOWN), values, gives=gives)


@case()
def cond():
    function = mapped(lambda x: tf.cond(x > 0, lambda: (x, 1), lambda: (-x, 2)), np.float32)
    gives = [(np.float32(3), np.int32(1)), (np.float32(5), np.int32(2))]
    return Run(function, [3.0, -5.0], gives=gives)


@case()
def switch_case():
    def function(i):
        return tf.switch_case(i, [lambda: 1.5, lambda: 2.5], default=lambda: -1.0)

    return Run(mapped(function, np.int32), [0, 1, 9], gives=[np.float32(n) for n in (1.5, 2.5, -1)])


@case()
def nested_functions():
    @tf.function
    def inner(x):
        return x + 1

    @tf.function
    def outer(x):
        return inner(x) * inner(2 * x)

    function = mapped(lambda x: (outer(x), inner(outer(x))), np.float32)
    return Run(function, [1.0, 2.0], gives=[(np.float32(n), np.float32(n + 1)) for n in (6, 15)])


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
def computation_that_calls_another():
    double = tff.tensorflow.computation(lambda x: 2 * x, np.float32)
    struct = tff.tensorflow.computation(lambda x: {"x": double(x), "y": (x,)}, np.float32)

    def function(x):
        once = struct(x)
        return once, double(once["x"]), double(once["y"][0])

    def gives(x):
        return {"x": np.float32(2 * x), "y": (np.float32(x),)}, np.float32(4 * x), np.float32(2 * x)

    return Run(mapped(function, np.float32), [1.0, 2.0], gives=[gives(1), gives(2)])


@case()
def data_pipeline_inside():
    def function(n):
        numbers = tf.data.Dataset.range(n).map(lambda x: x * n).batch(2)
        return numbers.reduce((np.int64(0), 0), lambda s, b: (s[0] + tf.reduce_sum(b), s[1] + 1))

    gives = [(np.int64(n * triangle(n)), np.int32((n + 1) // 2)) for n in (3, 0, 6)]
    return Run(mapped(function, np.int64), [3, 0, 6], gives=gives)


@case()
def data_pipeline_iterated_by_autograph():
    @tf.function
    def function(numbers):
        total = 0.0
        for x in numbers.take(3):
            total += x
        return total

    function = mapped(function, tff.types.SequenceType(np.float32))
    values = [[1.0, 2.0, 3.0, 4.0], [], [5.0]]
    return Run(function, values, gives=[np.float32(n) for n in (6, 0, 5)])


@case()
def lookup_table():
    def function(key):
        rows = tf.lookup.KeyValueTensorInitializer(["a", "b"], [1, 2])
        return tf.lookup.StaticHashTable(rows, default_value=-1).lookup(key)

    return Run(mapped(function, np.str_), ["a", "b", "c"], gives=[np.int32(n) for n in (1, 2, -1)])


@case()
def lookup_table_of_a_client():
    def function(key):
        rows = tf.lookup.KeyValueTensorInitializer([key, "z"], [1, 2])
        table = tf.lookup.StaticHashTable(rows, default_value=-1)
        return table.lookup(tf.constant(["a", "b", "z"])), table.size()

    gives = [(np.array(v, np.int32), np.int64(2)) for v in ([1, -1, 2], [-1, 1, 2])]
    return Run(mapped(function, np.str_), ["a", "b"], gives=gives)


@case()
def mutable_table_of_a_client():
    def function(key):
        table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, default_value=0)
        keys = tf.constant(["a", "b"])
        with tf.control_dependencies([table.insert([key], [5])]):
            keys = tf.identity(keys)  # what the lookup waits for
            return table.size(), table.lookup(keys)

    gives = [(np.int64(1), np.array(v)) for v in ([5, 0], [0, 5])]
    return Run(mapped(function, np.str_), ["a", "b"], gives=gives)


@case()
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
def variable_that_starts_with_the_argument():
    def function(x):
        variable = tf.Variable(2 * x)
        with tf.control_dependencies([variable.assign_add([1.0, 1.0])]):
            return variable.read_value()

    values = [np.array(v, np.float32) for v in ([1, 2], [3, 4])]
    member = tff.types.TensorType(np.float32, (2,))
    return Run(mapped(function, member), values, gives=[2 * v + 1 for v in values])


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


@case()
def assertion_that_holds():
    def function(x):
        with tf.control_dependencies([tf.debugging.assert_positive(x)]):
            return tf.identity(x)

    return Run(mapped(function, np.float32), [1.0, 2.0], gives=[np.float32(1), np.float32(2)])


@case()
def assertion_that_nothing_depends_on():
    """A computation is a graph, of which only that is run which results depend on."""

    def function(x):
        tf.raw_ops.Assert(condition=x > 0, data=["not positive"])
        return 2 * x

    return Run(mapped(function, np.float32), [1.0, -2.0], gives=[np.float32(2), np.float32(-4)])


@case()
def shapes_that_are_known_late():
    def function(x):
        x = tf.ensure_shape(x, [None])
        pair = tf.reshape(x, [2, -1])
        return pair, tf.shape(pair), tf.boolean_mask(x, x > 1), tf.where(x > 1), tf.size(x)

    values = [np.arange(n, dtype=np.float32) for n in (4, 6)]
    return Run(mapped(function, UNKNOWN), values)


@case()
def results_that_are_no_tensors():
    function = mapped(lambda x: collections.OrderedDict(b=3, a=(np.ones(2), True, "s")), np.float32)
    gives = collections.OrderedDict(b=np.int32(3), a=(np.ones(2), np.bool_(True), b"s"))
    return Run(function, [1.0, 2.0], gives=[gives, gives])


@case()
def strings_to_numbers():
    def function(text):
        words = tf.strings.split(text)
        return tf.strings.to_number(words), words

    def gives(*words):
        return np.array([float(w) for w in words], np.float32), np.array(words, object)

    return Run(mapped(function, np.str_), ["1 2.5", "3"], gives=[gives(b"1", b"2.5"), gives(b"3")])


@case()
def map_over_struct_of_everything():
    """Clients' values, a broadcast and a constant, in one map."""
    member = collections.OrderedDict(x=UNKNOWN, n=np.int32, name=np.str_)

    @tff.tensorflow.computation(member, np.float32, np.int32)
    def function(client, factor, constant):
        total = factor * tf.reduce_sum(client["x"])
        return collections.OrderedDict(
            name=tf.strings.upper(client["name"]),
            total=total + tf.cast(client["n"] * constant, tf.float32),
        )

    @tff.federated_computation(at_clients(member), at_server(np.float32))
    def map_clients(clients, factor):
        constant = tff.federated_value(10, tff.CLIENTS)
        return tff.federated_map(function, (clients, tff.federated_broadcast(factor), constant))

    values = [
        collections.OrderedDict(x=np.array([1, 2], np.float32), n=1, name="a"),
        collections.OrderedDict(x=np.array([3], np.float32), n=2, name="b"),
    ]
    gives = [
        collections.OrderedDict(name=b"A", total=np.float32(16)),
        collections.OrderedDict(name=b"B", total=np.float32(26)),
    ]
    return Run(map_clients, values, 2.0, gives=gives)
