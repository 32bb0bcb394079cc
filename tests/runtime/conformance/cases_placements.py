"""Cases that move values between placements and apply functions at a placement."""

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
    subtract,
    tensor,
)

case = Cases()

KEYS = tensor(np.int32, 2)
TABLE = tensor(np.float32, 3, 2)


@tff.tensorflow.computation
def three():
    return collections.OrderedDict(b=tf.constant(3.0), a=(tf.constant(1), tf.constant("x")))


@case(fast=True)
def eval_at_server():
    @tff.federated_computation
    def evaluate():
        return tff.federated_eval(three, tff.SERVER)

    gives = collections.OrderedDict(b=np.float32(3), a=(np.int32(1), b"x"))
    return Run(evaluate, gives=gives)


@case(fast=True)
def eval_at_clients():
    @tff.federated_computation(at_clients(np.float32))
    def evaluate(_):
        return tff.federated_eval(three, tff.CLIENTS)

    gives = collections.OrderedDict(b=np.float32(3), a=(np.int32(1), b"x"))
    return Run(evaluate, [1.0, 2.0], gives=[gives, gives])


@case(fast=True)
def value_at_clients():
    """Checks that an all-equal result is one value, not a list."""

    @tff.federated_computation(at_clients(np.float32))
    def value(_):
        return tff.federated_value(collections.OrderedDict(b=1, a=(2.0,)), tff.CLIENTS)

    gives = collections.OrderedDict(b=np.int32(1), a=(np.float32(2),))
    return Run(value, [1.0, 2.0], gives=gives)


@case(fast=True)
def map_of_an_all_equal_argument():
    @tff.federated_computation(
        tff.types.FederatedType(np.float32, tff.CLIENTS, all_equal=True), at_clients(np.int32)
    )
    def function(x, _):
        return tff.federated_map(double, x), x

    return Run(function, 1.5, [0, 0], gives=([np.float32(3), np.float32(3)], np.float32(1.5)))


@case(fast=True)
def map_of_two_arguments_at_clients():
    @tff.federated_computation(at_clients(np.float32), at_server(np.float32))
    def function(x, y):
        return tff.federated_map(subtract, (x, tff.federated_broadcast(y)))

    return Run(function, [1.0, 5.0], 2.0, gives=[np.float32(-1), np.float32(3)])


@case(fast=True)
def broadcast():
    @tff.federated_computation(at_server((np.float32, [np.str_])), at_clients(np.int32))
    def function(x, _):
        return tff.federated_broadcast(x)

    return Run(function, (1.5, ["x"]), [0, 0], gives=(np.float32(1.5), [b"x"]))


@case(fast=True)
def sum_and_mean_of_a_broadcast():
    @tff.federated_computation(at_server(np.float32), at_clients(np.float32))
    def function(x, weights):
        x = tff.federated_broadcast(x)
        return tff.federated_sum(x), tff.federated_mean(x), tff.federated_mean(x, weights)

    gives = (np.float32(4.5), np.float32(1.5), np.float32(1.5))
    return Run(function, 1.5, [1.0, 2.0, 3.0], gives=gives)


@case(fast=True)
def zip_at_clients():
    @tff.federated_computation(at_clients(np.float32), at_clients(np.int32))
    def function(x, y):
        return tff.federated_zip((x, y)), tff.federated_zip([y]), tff.federated_zip({"x": x})

    gives = (
        [(np.float32(1), np.int32(2)), (np.float32(3), np.int32(4))],
        [[np.int32(2)], [np.int32(4)]],
        [{"x": np.float32(1)}, {"x": np.float32(3)}],
    )
    return Run(function, [1.0, 3.0], [2, 4], gives=gives)


@case(fast=True)
def zip_with_all_equal_members():
    @tff.federated_computation(at_clients(np.float32), at_clients(np.int32), at_server(np.str_))
    def function(x, y, z):
        z = tff.federated_broadcast(z)
        constant = tff.federated_value(7, tff.CLIENTS)
        return tff.federated_zip(collections.OrderedDict(c=x, b=(y, [z]), a=constant))

    def gives(c, b):
        return collections.OrderedDict(c=np.float32(c), b=(np.int32(b), [b"z"]), a=np.int32(7))

    return Run(function, [1.0, 3.0], [2, 4], "z", gives=[gives(1, 2), gives(3, 4)])


def select(keys, table, function, *, secure=False) -> tff.Computation:
    """Makes a computation that returns each client's sequence of slices in one batch."""
    intrinsic = tff.federated_secure_select if secure else tff.federated_select
    function = tff.tensorflow.computation(function, (table, np.int32))

    @tff.tensorflow.computation(tff.types.SequenceType(function.type_signature.result))
    def batch(slices):
        return slices.batch(10).get_single_element()

    @tff.federated_computation(at_clients(keys), at_server(table))
    def function_of_clients(keys, table):
        max_key = tff.federated_value(3, tff.SERVER)
        return tff.federated_map(batch, intrinsic(keys, max_key, table, function))

    return function_of_clients


def keys(*numbers) -> np.ndarray:
    return np.array(numbers, np.int32)


TABLE_VALUE = np.arange(6, dtype=np.float32).reshape(3, 2)


@case(fast=["True"], secure=[False, True])
def select_of_several_keys(secure):
    function = select(KEYS, TABLE, lambda table, key: tf.gather(table, key), secure=secure)
    gives = [TABLE_VALUE[[0, 2]], TABLE_VALUE[[1, 1]]]
    return Run(function, [keys(0, 2), keys(1, 1)], TABLE_VALUE, gives=gives)


@case(fast=True, raises=RUN_ERRORS)
def select_that_fails():
    function = select(KEYS, TABLE, lambda table, key: tf.gather(table, key))
    return Run(function, [keys(1, 3)], TABLE_VALUE)


@case(fast=True)
def select_that_returns_sequences():
    slice_of = tff.tensorflow.computation(
        lambda table, key: tf.gather(table, key), (TABLE, np.int32)
    )

    def slices(keys, table):
        return tff.federated_select(keys, tff.federated_value(3, tff.SERVER), table, slice_of)

    @tff.federated_computation(at_clients(KEYS), at_server(KEYS), at_server(TABLE))
    def function(keys, shared, table):
        return slices(keys, table), slices(tff.federated_broadcast(shared), table)

    first, second = (
        tf.data.Dataset.from_tensor_slices(TABLE_VALUE[rows]) for rows in ([0, 2], [1, 1])
    )
    values = ([keys(0, 2), keys(1, 1)], keys(1, 1), TABLE_VALUE)
    return Run(function, *values, gives=([first, second], [second, second]))
