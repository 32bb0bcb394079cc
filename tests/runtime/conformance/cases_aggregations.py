"""Cases of sums, means, extremes, secure sums and `federated_aggregate`."""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests.runtime.conformance.cases import Cases, Run, add, at_clients, at_server, tensor

case = Cases()

FLOATS = [np.float16, np.float32, np.float64]
INTEGERS = [np.int8, np.uint8, np.int32, np.int64]
VECTOR = tensor(np.float32, 2)
MODEL = collections.OrderedDict(weights=VECTOR, more=(np.float32, [np.float64]))


def model(value: float):
    vector = np.array([value, -value], np.float32)
    return collections.OrderedDict(
        weights=vector, more=(np.float32(value), [np.float64(2 * value)])
    )


def aggregated(name: str, member) -> tff.Computation:
    return tff.federated_computation(lambda x: getattr(tff, name)(x), at_clients(member))


def weighted_mean(member, weight) -> tff.Computation:
    @tff.federated_computation(at_clients(member), at_clients(weight))
    def mean(values, weights):
        return tff.federated_mean(values, weights)

    return mean


@case(
    fast=["int8", "bfloat16"],
    dtype=[*FLOATS, *INTEGERS, np.complex64, tf.bfloat16.as_numpy_dtype],
)
def sum_of_scalars(dtype):
    return Run(aggregated("federated_sum", dtype), [dtype(n) for n in (1, 2, 4)], gives=dtype(7))


@case(fast=True)
def sum_of_structs():
    return Run(aggregated("federated_sum", MODEL), [model(1), model(2), model(4)], gives=model(7))


@case(fast=True)
def sum_that_wraps():
    return Run(aggregated("federated_sum", np.int8), [100, 100], gives=np.int8(-56))


@case(dtype=[np.float32, np.float64], weight=[np.float64, np.uint8, np.int32])
def weighted_mean_of_scalars(dtype, weight):
    values, weights = [dtype(1), dtype(4)], [weight(1), weight(2)]
    return Run(weighted_mean(dtype, weight), values, weights, gives=dtype(3))


@case(fast=["int64"], weight=[np.float32, np.int64])
def weighted_mean_of_structs(weight):
    values, weights = [model(1), model(4), model(9)], [weight(1), weight(2), weight(0)]
    return Run(weighted_mean(MODEL, weight), values, weights, gives=model(3))


@case(fast=True)
def weighted_mean_with_zero_weights():
    mean = weighted_mean(np.float32, np.float32)
    return Run(mean, [1.0, 2.0], [0.0, 0.0], gives=np.float32(np.nan))


@case(name=["min", "max"], dtype=[*FLOATS, *INTEGERS])
def extreme_of_scalars(name, dtype):
    function = aggregated(f"federated_{name}", dtype)
    return Run(function, [dtype(n) for n in (3, 1, 4)], gives=dtype({"min": 1, "max": 4}[name]))


@case(fast=["min"], name=["min", "max"])
def extreme_of_structs(name):
    member = (np.int32, collections.OrderedDict(b=VECTOR))
    values = [(n, collections.OrderedDict(b=np.array([n, -n], np.float32))) for n in (3, 1, 4)]
    low, high = {"min": (1, -4), "max": (4, -1)}[name]
    gives = (np.int32(low), collections.OrderedDict(b=np.array([low, high], np.float32)))
    return Run(aggregated(f"federated_{name}", member), values, gives=gives)


@case(fast=["min"], name=["min", "max"])
def extreme_with_nan(name):
    function = aggregated(f"federated_{name}", np.float32)
    return Run(function, [1.0, np.nan, 2.0], gives=np.float32(np.nan))


def largest_two() -> tff.Computation:
    """Makes an aggregation whose clients' values, accumulator and result differ in type."""
    accumulator = collections.OrderedDict(first=np.int32, second=np.int32)

    @tff.tensorflow.computation(accumulator, np.float32)
    def accumulate(best, value):
        both = tf.stack([best["first"], best["second"], tf.cast(value, tf.int32)])
        values, _ = tf.math.top_k(both, 2)
        return collections.OrderedDict(first=values[0], second=values[1])

    @tff.tensorflow.computation(accumulator, accumulator)
    def merge(a, b):
        values, _ = tf.math.top_k(tf.stack([a["first"], a["second"], b["first"], b["second"]]), 2)
        return collections.OrderedDict(first=values[0], second=values[1])

    @tff.tensorflow.computation(accumulator)
    def report(best):
        return tf.strings.as_string(best["first"]), tf.cast(best["second"], tf.float64)

    @tff.federated_computation(at_clients(np.float32))
    def aggregate(values):
        zero = collections.OrderedDict(first=-1, second=-1)
        return tff.federated_aggregate(values, zero, accumulate, merge, report)

    return aggregate


@case(fast=True)
def aggregate_of_three_types():
    return Run(largest_two(), [3.2, 9.9, 5.1, 1.0], gives=(b"9", np.float64(5)))


@case(fast=True)
def aggregate_counts_zero_once():
    @tff.tensorflow.computation(np.float32)
    def report(total):
        return 10 * total

    @tff.federated_computation(at_clients(np.float32))
    def aggregate(values):
        return tff.federated_aggregate(values, np.float32(5), add, add, report)

    return Run(aggregate, [float(n) for n in range(7)], gives=np.float32(260), is_divisible=False)


@case(fast=True)
def aggregate_by_federated_lambdas():
    """Uses functions that are structs and calls of TensorFlow, but not TensorFlow themselves."""

    @tff.tensorflow.computation(np.int32)
    def increment(n):
        return n + 1

    pair = (np.float32, np.int32)

    @tff.federated_computation(pair, np.float32)
    def accumulate(accumulator, value):
        return add(accumulator[0], value), increment(accumulator[1])

    @tff.federated_computation(pair, pair)
    def merge(a, b):
        return add(a[0], b[0]), increment(a[1])  # unused if clients are accumulated one by one

    @tff.federated_computation(pair)
    def report(accumulator):
        return collections.OrderedDict(count=accumulator[1], total=accumulator[0])

    @tff.federated_computation(at_clients(np.float32))
    def aggregate(values):
        return tff.federated_aggregate(values, (0.0, 0), accumulate, merge, report)

    gives = collections.OrderedDict(count=np.int32(3), total=np.float32(7))
    return Run(aggregate, [1.0, 2.0, 4.0], gives=gives)


# If `accumulate` and `merge` concatenate, clients need not be accumulated one by one.

ROWS = tensor(np.float32, None)
ROWS_OF_TWO = tensor(np.float32, None, 2)


def join(a, b):
    return tf.concat([a, b], axis=0)


def empty(spec):
    zeros = tf.zeros([size or 0 for size in spec.shape], spec.dtype)
    return tf.raw_ops.PlaceholderWithDefault(input=zeros, shape=spec.shape)


def collection(member, rows, accumulate, merge=join, zero=None, arguments="named"):
    """Makes a computation that appends the clients' values to `zero`, of the type `rows`.

    TFF passes two arguments to TensorFlow by a lambda if they are named, otherwise as a pair.
    """
    specs = tff.types.type_to_tf_tensor_specs(tff.types.to_type(rows))

    def of_two(function, second):
        if arguments == "named":
            return tff.tensorflow.computation(lambda a, b: function(a, b), rows, second)
        return tff.tensorflow.computation(lambda pair: function(*pair), (rows, second))

    zero = tff.tensorflow.computation(zero or (lambda: tf.nest.map_structure(empty, specs)))
    accumulate, merge = of_two(accumulate, member), of_two(merge, rows)
    report = tff.tensorflow.computation(lambda rows: rows, rows)

    @tff.federated_computation(at_clients(member))
    def collect(values):
        return tff.federated_aggregate(values, zero(), accumulate, merge, report)

    return collect


def ranges(*sizes):
    """Returns vectors of these sizes with the numbers 0, 1, 2, ..."""
    return [v.astype(np.float32) for v in np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])]


@case(fast=True, arguments=["named", "pair"])
def concatenation_of_rows_of_each_client(arguments):
    function = collection(
        VECTOR, ROWS_OF_TWO, lambda rows, x: join(rows, [x, -x]), arguments=arguments
    )
    gives = np.array([[0, 1], [0, -1], [2, 3], [-2, -3]], np.float32)
    return Run(function, ranges(2, 2), gives=gives)


@case(fast=["(2, 0, 3)"], sizes=[(2, 0, 3), (0, 1), (0, 0), (4,)])
def concatenation_of_different_numbers_of_rows(sizes):
    function = collection(ROWS, ROWS, join)
    return Run(function, ranges(*sizes), gives=np.arange(sum(sizes), dtype=np.float32))


@case(fast=True)
def concatenation_without_clients():
    return Run(collection(ROWS, ROWS, join), [], gives=np.zeros([0], np.float32))


@case(fast=True)
def concatenation_of_broadcast_values():
    collect = collection(np.float32, ROWS, lambda rows, x: join(rows, [x, 2 * x]))

    @tff.federated_computation(at_server(np.float32), at_clients(np.float32))
    def broadcast(x, values):
        return collect(tff.federated_broadcast(x)), tff.federated_sum(values)

    gives = (np.array([3, 6, 3, 6], np.float32), np.float32(3))
    return Run(broadcast, 3.0, [1.0, 2.0], gives=gives)


@case(fast=True)
def concatenation_of_tensors_of_unknown_rank():
    unknown = tff.types.TensorType(np.float32, None)

    def zero():
        return tf.raw_ops.PlaceholderWithDefault(input=tf.zeros([0, 2]), shape=None)

    values = [np.ones((2, 2), np.float32), np.zeros((1, 2), np.float32)]
    function = collection(unknown, unknown, join, zero=zero)
    return Run(function, values, gives=np.concatenate(values))


@case(fast=True)
def concatenation_to_initial_rows():
    function = collection(ROWS, ROWS, join, zero=lambda: join(empty(tf.TensorSpec([None])), [9.0]))
    return Run(function, ranges(1, 2), gives=np.array([9, 0, 1, 2], np.float32), is_divisible=False)


@case(fast=True)
def concatenation_that_depends_on_earlier_rows():
    def accumulate(rows, value):
        return join(rows, [value + 10 * tf.cast(tf.size(rows), tf.float32)])

    function = collection(np.float32, ROWS, accumulate)
    return Run(
        function, [1.0, 2.0, 3.0], gives=np.array([1, 12, 23], np.float32), is_divisible=False
    )


@case(fast=True)
def concatenation_merged_in_the_wrong_order():
    """Checks that `merge` is unused if clients are accumulated one by one."""
    function = collection(ROWS, ROWS, join, lambda first, second: join(second, first))
    return Run(function, ranges(1, 2, 1), gives=np.arange(4, dtype=np.float32), is_divisible=False)


@case(fast=True)
def concatenation_along_another_axis():
    columns = tensor(np.float32, 2, None)
    function = collection(
        VECTOR,
        columns,
        lambda columns, pair: tf.concat([columns, pair[:, tf.newaxis]], axis=1),
        lambda first, second: tf.concat([first, second], axis=1),
    )
    return Run(function, ranges(2, 2), gives=np.array([[0, 2], [1, 3]], np.float32))
