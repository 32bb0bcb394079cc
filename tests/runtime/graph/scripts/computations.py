"""Computations whose results do not depend on which devices compute them."""

import functools

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.python.eager import context as eager_context

from tests.federation import EXAMPLES_TYPE, local_sgd, make_clients, tiny_model
from tff_pfl.algorithms import build_ditto, build_fedavg
from tff_pfl.runtime import create_graph_context

VECTOR = tff.types.TensorType(np.float32, (3,))
RAGGED = tff.types.TensorType(np.int32, (None,))
KEYS = tff.types.TensorType(np.int32, (2,))


def at_clients(member):
    return tff.types.FederatedType(member, tff.CLIENTS)


def at_server(member):
    return tff.types.FederatedType(member, tff.SERVER)


@tff.federated_computation(at_clients(VECTOR), at_clients(np.int32), at_server(np.float32))
def sums(x, n, y):
    struct = tff.federated_zip({"x": x, "n": n})
    return (
        tff.federated_sum(struct),
        tff.federated_sum(tff.federated_broadcast(y)),
        tff.federated_secure_sum(n, 100),
    )


@tff.federated_computation(at_clients(VECTOR), at_clients(np.int32))
def means(x, n):
    return tff.federated_mean(x), tff.federated_mean(x, n)


@tff.federated_computation(at_clients(VECTOR), at_clients(np.int32))
def extremes(x, n):
    return tff.federated_min(x), tff.federated_max(x), tff.federated_min(n), tff.federated_max(n)


@tff.tensorflow.computation(np.str_, np.int32)
def append(text, n):
    return tf.strings.join([text, tf.strings.as_string(n)], " ")


@tff.tensorflow.computation(np.str_, np.str_)
def join(left, right):
    return tf.strings.join([left, right])


@tff.tensorflow.computation(np.str_)
def enclose(text):
    return tf.strings.join(["(", text, ")"])


@tff.federated_computation(at_clients(np.int32))
def aggregated_in_order(n):
    """The text of all numbers, in the order of the clients."""
    return tff.federated_aggregate(n, "", append, join, enclose)


@tff.tensorflow.computation(np.float32)
def halved(y):
    return y / 2


@tff.tensorflow.computation(VECTOR, np.int32, np.float32)
def scaled(x, n, y):
    return x * y + tf.cast(n, tf.float32), n


@tff.federated_computation(at_clients(VECTOR), at_clients(np.int32), at_server(np.float32))
def mapped(x, n, y):
    y = tff.federated_broadcast(tff.federated_map(halved, y))
    return tff.federated_map(scaled, (x, n, y)), tff.federated_zip((n, y))


@tff.tensorflow.computation(VECTOR, np.int32)
def element(table, key):
    return tf.gather(table, key)


@tff.tensorflow.computation(tff.types.SequenceType(np.float32))
def batched(slices):
    return slices.batch(10).get_single_element()


@tff.federated_computation(at_clients(KEYS), at_server(VECTOR))
def selected(keys, table):
    slices = tff.federated_select(keys, tff.federated_value(3, tff.SERVER), table, element)
    return tff.federated_map(batched, slices)


@tff.tensorflow.computation(RAGGED)
def reversed_and_total(x):
    return tf.reverse(x, [0]), tf.reduce_sum(x)


@tff.federated_computation(at_clients(RAGGED))
def ragged(x):
    return tff.federated_map(reversed_and_total, x)


@tff.tensorflow.computation(tff.types.SequenceType(np.int32))
def total(sequence):
    return sequence.reduce(0, tf.add)


@tff.federated_computation(at_clients(tff.types.SequenceType(np.int32)))
def sequences(data):
    totals = tff.federated_map(total, data)
    return totals, tff.federated_sum(totals)


@tff.tensorflow.computation(np.int32)
def counted_with_resources(n):
    """A variable, a table and a data set of the client's own."""
    count = tf.Variable(n)
    rows = tf.lookup.KeyValueTensorInitializer(["a", "b"], [1, 2])
    table = tf.lookup.StaticHashTable(rows, 0)
    with tf.control_dependencies([count.assign_add(10)]):
        doubled = tf.data.Dataset.range(3).map(lambda x: 2 * x)
        total = doubled.reduce(tf.constant(0, tf.int64), tf.add)
        return count.read_value() + table.lookup(tf.constant("b")), total


@tff.federated_computation(at_clients(np.int32))
def resources(n):
    return tff.federated_map(counted_with_resources, n)


@functools.cache
def process(build):
    return build(tiny_model(), EXAMPLES_TYPE, local_sgd(), seed=1)


def ditto(sizes):
    """Two rounds; the second with what the clients keep of the first."""
    ditto = process(build_ditto)
    clients = padded_clients(ditto, sizes)
    first = ditto.next(ditto.initialize(), clients)
    clients = [
        client._replace(state=state) for client, state in zip(clients, first.clients, strict=True)
    ]
    second = ditto.next(first.state, clients)
    return first, second, ditto.personalize(second.state, clients)


def fedavg(sizes):
    """Two rounds of an algorithm whose clients keep nothing."""
    fedavg = process(build_fedavg)
    clients = padded_clients(fedavg, sizes)
    first = fedavg.next(fedavg.initialize(), clients)
    return first, fedavg.next(first.state, clients)


def padded_clients(process, sizes):
    """Clients whose examples have a shape in common."""
    clients = make_clients(process, [8] * len(sizes))
    return [
        client._replace(data=client.data._replace(size=np.int32(size)))
        for client, size in zip(clients, sizes, strict=True)
    ]


def arguments(size):
    """From the name of a case to its function and the arguments for a cohort of a size."""
    rng = np.random.default_rng(size)
    vectors = list(rng.normal(size=(size, 3)).astype(np.float32))
    numbers = [np.int32(3 * i + 1) for i in range(size)]
    table = np.array([5.0, 6.0, 7.0], np.float32)
    return {
        "sums": (sums, vectors, numbers, 1.5),
        "means": (means, vectors, numbers),
        "extremes": (extremes, vectors, numbers),
        "aggregate": (aggregated_in_order, numbers),
        "map": (mapped, vectors, numbers, 3.0),
        "select": (selected, [np.array([i % 3, 1], np.int32) for i in range(size)], table),
        "ragged": (ragged, [np.arange(i, dtype=np.int32) for i in range(size)]),
        "sequences": (sequences, [[i] * i for i in range(size)]),
        "resources": (resources, numbers),
        "ditto": (ditto, [6, 1, 5, 8, 3][:size]),
        "fedavg": (fedavg, [6, 1, 5, 8, 3][:size]),
    }


def results(names, sizes, **options):
    """`{(name, size of the cohort): result}` in a graph context with these options."""
    found = {}
    context = create_graph_context(**options, keep_tensors=False)
    with tff.framework.get_context_stack().install(context):
        for size in sizes:
            cases = arguments(size)
            for name in names:
                function, *args = cases[name]
                found[name, size] = tf.nest.map_structure(np.asarray, function(*args))
    return found


@tff.tensorflow.computation(np.float32)
def log_gamma(x):
    return tf.math.lgamma(x)


@tff.tensorflow.computation(np.float32)
def digamma(x):
    return tf.math.digamma(x)


@tff.federated_computation(at_clients(np.float32))
def marked(x):
    """Operations that are nowhere else: `Lgamma` at the clients, `Digamma` at the server."""
    return tff.federated_map(digamma, tff.federated_sum(tff.federated_map(log_gamma, x)))


def executed_on(size, **options):
    """From an operation of `marked` to the devices of the graphs that TensorFlow executes."""
    context = create_graph_context(**options)
    eager_context.context().enable_run_metadata()
    with tff.framework.get_context_stack().install(context):
        marked([np.float32(i + 1.5) for i in range(size)])
    graphs = eager_context.context().export_run_metadata().partition_graphs
    eager_context.context().disable_run_metadata()
    return {
        op: sorted({node.device for graph in graphs for node in graph.node if node.op == op})
        for op in ("Lgamma", "Digamma")
    }
