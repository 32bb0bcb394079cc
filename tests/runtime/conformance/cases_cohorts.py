"""Cases of secure sums, and of cohorts of zero, one and several clients."""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests.runtime.conformance.cases import (
    RUN_ERRORS,
    Cases,
    Run,
    at_clients,
    at_server,
    double,
    identity,
    mapped,
    tensor,
)

case = Cases()

STRUCT = collections.OrderedDict(b=np.int32, a=(tensor(np.int32, 2),))
INTRINSICS = {
    "sum": tff.federated_secure_sum,
    "sum_bitwidth": tff.federated_secure_sum_bitwidth,
    "modular_sum": tff.backends.mapreduce.federated_secure_modular_sum,
}


def struct(b, first, second):
    return collections.OrderedDict(b=np.int32(b), a=(np.array([first, second], np.int32),))


def secure(name: str, member, bound) -> tff.Computation:
    return tff.federated_computation(lambda x: INTRINSICS[name](x, bound), at_clients(member))


@case(name=["sum", "sum_bitwidth"], dtype=[np.int32, np.int64])
def secure_sum_of_scalars(name, dtype):
    bound = dtype(8) if name == "sum" else 4
    return Run(secure(name, dtype, bound), [dtype(n) for n in (1, 2, 8)], gives=dtype(11))


BOUNDS = {"one": 6, "each": collections.OrderedDict(b=4, a=(7,))}


@case(fast=["each"], name=["sum", "sum_bitwidth"], bound=list(BOUNDS))
def secure_sum_of_structs(name, bound):
    values = [struct(1, 2, 3), struct(4, 5, 6)]
    return Run(secure(name, STRUCT, BOUNDS[bound]), values, gives=struct(5, 7, 9))


@case(fast=True, name=["sum", "sum_bitwidth"], raises=RUN_ERRORS)
def secure_sum_beyond_the_bound(name):
    return Run(secure(name, np.int32, {"sum": 7, "sum_bitwidth": 3}[name]), [1, 8])


@case(fast=True)
def modular_sum_of_negative_scalars():
    return Run(secure("modular_sum", np.int32, 5), [-3, -4], gives=np.int32(3))


@case(fast=["sum"], name=list(INTRINSICS))
def secure_sum_of_no_clients(name):
    return Run(secure(name, np.int32, 8), [], gives=np.int32(0))


@case(fast=["0", "1"], size=[0, 1, 2, 7])
def cohort(size):
    """Computes sums that depend on the number of clients, and means, NaN without clients."""
    three = tff.tensorflow.computation(lambda: tf.constant(3.0))

    @tff.federated_computation(at_clients(np.float32), at_server(np.int32))
    def function(x, y):
        constant = tff.federated_value(1, tff.CLIENTS)
        return [
            tff.federated_sum(tff.federated_map(double, x)),
            tff.federated_mean(x),
            tff.federated_mean(x, x),
            tff.federated_sum(tff.federated_zip((constant, tff.federated_broadcast(y)))),
            tff.federated_sum(tff.federated_eval(three, tff.CLIENTS)),
        ]

    values = [np.float32(3 * n + 1) for n in range(size)]
    means = [np.mean(values), np.average(values, weights=values)] if values else [np.nan, np.nan]
    gives = [
        np.float32(2 * sum(values)),
        *map(np.float32, means),
        (np.int32(size), np.int32(5 * size)),
        np.float32(3 * size),
    ]
    return Run(function, values, 5, gives=gives)


@case(
    fast=["float16"],
    dtype=[np.float16, np.float32, np.float64, np.int8, np.uint8, np.int32, np.int64],
)
def extremes_of_no_clients(dtype):
    """Checks that the minimum is the largest finite number, and the maximum the smallest."""

    @tff.federated_computation(at_clients(dtype))
    def extremes(x):
        return tff.federated_min(x), tff.federated_max(x)

    info = (np.finfo if np.issubdtype(dtype, np.floating) else np.iinfo)(dtype)
    return Run(extremes, [], gives=(dtype(info.max), dtype(info.min)))


@case(fast=True)
def cohort_without_arguments():
    @tff.federated_computation
    def total():
        return tff.federated_sum(tff.federated_value(3.0, tff.CLIENTS))

    return Run(total, gives=np.float32(0))


# The stock runtime does not return the values of an empty cohort.


@case(fast=True, raises=ValueError)
def map_of_no_clients():
    return Run(mapped(lambda x: 2 * x, np.float32), [], gives=[])


@case(fast=True, raises=ValueError)
def broadcast_to_no_clients():
    broadcast = tff.federated_computation(tff.federated_broadcast, at_server(np.float32))
    return Run(broadcast, 1.0)


@case(fast=True)
def cohorts_of_one_computation():
    """Calls a computation with cohorts of different sizes, one of them twice."""
    total = tff.federated_computation(tff.federated_sum, at_clients(np.float32))
    unknown = identity(at_clients(tensor(np.float32, None)))

    def run():
        sums = [total([np.float32(1)] * size) for size in (2, 7, 0, 2, 1)]
        arrays = [[np.arange(n + size, dtype=np.float32) for n in range(size)] for size in (1, 3)]
        return sums, [unknown(array) for array in arrays]

    gives = [[np.arange(n + size, dtype=np.float32) for n in range(size)] for size in (1, 3)]
    return Run(run, gives=([np.float32(n) for n in (2, 7, 0, 2, 1)], gives))
