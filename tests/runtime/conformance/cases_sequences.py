"""Cases of sequences: as lists and as data sets, reduced, mapped, and in results."""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests.runtime.conformance.cases import Cases, Run, add, at_clients, at_server, mapped, tensor

case = Cases()

Dataset = tf.data.Dataset
FLOATS = tff.types.SequenceType(np.float32)
STRUCT = collections.OrderedDict(b=np.float32, a=np.int32)
STRUCTS = tff.types.SequenceType(STRUCT)


def floats(*numbers) -> Dataset:
    return Dataset.from_tensor_slices(np.array(numbers, np.float32))


def total(numbers):
    return numbers.reduce(np.float32(0), lambda a, b: a + b)


def all_of(elements):
    return elements.batch(20).get_single_element()


def describe(x):
    return collections.OrderedDict(double=2 * x, integer=tf.cast(x, tf.int32))


DESCRIBE = tff.tensorflow.computation(describe, np.float32)


@case(fast=["list"], name=["list", "dataset", "empty_list", "empty_dataset"])
def sequence_given_as(name):
    """Reduces a sequence in TensorFlow, at all placements."""
    value = {
        "list": [1.0, 2.0],
        "dataset": floats(1, 2),
        "empty_list": [],
        "empty_dataset": floats(),
    }[name]
    reduce_sequence = tff.tensorflow.computation(total, FLOATS)

    @tff.federated_computation(FLOATS, at_server(FLOATS), at_clients(FLOATS))
    def function(unplaced, server, clients):
        placed = [tff.federated_map(reduce_sequence, x) for x in (server, clients)]
        return reduce_sequence(unplaced), *placed

    gives = np.float32(0 if "empty" in name else 3)
    clients = [value, [5.0], value]
    return Run(function, value, value, clients, gives=(gives, gives, [gives, np.float32(5), gives]))


@case(fast=["datasets"], name=["datasets", "lists"])
def sequence_of_structs(name):
    value = [collections.OrderedDict(b=float(n), a=n) for n in range(3)]
    if name == "datasets":
        columns = collections.OrderedDict(b=np.arange(3.0, dtype=np.float32), a=np.arange(3))
        value = Dataset.from_tensor_slices(columns)
        value = value.map(lambda e: collections.OrderedDict(b=e["b"], a=tf.cast(e["a"], tf.int32)))
    gives = collections.OrderedDict(
        b=np.arange(3, dtype=np.float32), a=np.arange(3, dtype=np.int32)
    )
    return Run(mapped(all_of, STRUCTS), [value, value], gives=[gives, gives])


@case(fast=True)
def sequence_in_a_struct():
    """Passes a sequence beside another value, as learning algorithms do."""
    struct = (FLOATS, np.float32)
    function = mapped(lambda p: p[0].reduce(p[1], lambda a, b: a + p[1] * b), struct)
    gives = [np.float32(8), np.float32(50)]
    return Run(function, [(floats(1, 2), 2.0), ([4.0], 10.0)], gives=gives)


@case()
def sequences_of_different_static_shapes():
    """Passes batches of known and of unknown size."""
    batches = tff.types.SequenceType(tensor(np.float32, None))

    def function(elements):
        return elements.reduce(0.0, lambda s, b: s + tf.reduce_sum(b))

    numbers = floats(1, 2, 3, 4)
    values = [numbers.batch(2, drop_remainder=True), numbers.batch(3), numbers.batch(4)]
    return Run(mapped(function, batches), values, gives=[np.float32(10)] * 3)


@case(fast=["True"], reshuffle=[False, True])
def sequence_that_is_shuffled(reshuffle):
    """Checks that the seed determines the order for each client and each call."""
    numbers = floats(*range(10)).shuffle(10, seed=1, reshuffle_each_iteration=reshuffle)
    function = mapped(all_of, FLOATS)

    def twice(values):
        return function(values), function(values)

    order = np.array(list(numbers.as_numpy_iterator()))
    return Run(twice, [numbers, numbers], gives=([order, order], [order, order]))


@case(fast=True)
def sequences_of_no_clients():
    function = mapped(total, FLOATS)

    @tff.federated_computation(at_clients(FLOATS))
    def sum_of_totals(values):
        return tff.federated_sum(function(values))

    return Run(sum_of_totals, [], gives=np.float32(0))


@case(name=["list", "dataset"])
def sequence_identity(name):
    value = [1.0, 2.0] if name == "list" else floats(1, 2)

    @tff.federated_computation(FLOATS, at_server(FLOATS), at_clients(FLOATS))
    def function(unplaced, server, clients):
        return unplaced, server, clients

    gives = (floats(1, 2), floats(1, 2), [floats(1, 2), floats(5)])
    return Run(function, value, value, [value, [5.0]], gives=gives)


@case(fast=True)
def sequence_between_two_maps():
    make = tff.tensorflow.computation(lambda n: Dataset.range(n), np.int64)
    gather = tff.tensorflow.computation(all_of, tff.types.SequenceType(np.int64))

    @tff.federated_computation(at_clients(np.int64))
    def function(n):
        return tff.federated_map(gather, tff.federated_map(make, n))

    return Run(function, [3, 1], gives=[np.arange(3), np.arange(1)])


@case(fast=True)
def sequence_reduce_at_clients():
    @tff.federated_computation(at_clients(FLOATS))
    def function(x):
        return tff.sequence_reduce(x, tff.federated_value(np.float32(10), tff.CLIENTS), add)

    instead = mapped(lambda x: 10 + total(x), FLOATS)
    return Run(
        function, [floats(1, 2), []], instead=instead, gives=[np.float32(13), np.float32(10)]
    )


@case(fast=True)
def sequence_map_at_clients():
    function = tff.federated_computation(
        lambda x: tff.sequence_map(DESCRIBE, x), at_clients(FLOATS)
    )
    instead = mapped(lambda x: x.map(describe), FLOATS)
    gives = [floats(1.5).map(describe), floats().map(describe)]
    return Run(function, [[1.5], floats()], instead=instead, gives=gives)


@case(fast=True)
def aggregate_of_sequences():
    """Uses a sequence as accumulator, to which each client's value is appended."""

    @tff.tensorflow.computation
    def nothing():
        return floats()

    @tff.tensorflow.computation(FLOATS, np.float32)
    def append(values, value):
        return values.concatenate(Dataset.from_tensors(value))

    @tff.tensorflow.computation(FLOATS, FLOATS)
    def join(values, others):
        return values.concatenate(others)

    @tff.tensorflow.computation(FLOATS)
    def total(values):
        return values.reduce(0.0, lambda total, value: 10.0 * total + value)

    @tff.federated_computation(at_clients(np.float32))
    def aggregate(values):
        return tff.federated_aggregate(values, nothing(), append, join, total)

    return Run(aggregate, [np.float32(1), np.float32(2), np.float32(3)], gives=np.float32(123))
