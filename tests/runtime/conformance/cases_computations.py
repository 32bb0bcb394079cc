"""Cases of the parts of a computation: TensorFlow, lambdas, functions, constants."""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests.runtime.conformance.cases import Cases, Run, at_clients, at_server, double, subtract

case = Cases()

FUNCTION = tff.types.FunctionType(np.float32, np.float32)


@case(fast=True)
def tensorflow_called_directly():
    @tff.tensorflow.computation(np.float32, np.int32)
    def function(a, b):
        return collections.OrderedDict(b=tf.cast(b, tf.float32) - a, a=(a, [b]))

    def call():
        return function(1.5, 2), function(b=2, a=1.5)

    gives = collections.OrderedDict(b=np.float32(0.5), a=(np.float32(1.5), [np.int32(2)]))
    return Run(call, gives=(gives, gives))


@case(fast=True)
def tensorflow_that_returns_its_argument_twice():
    function = tff.tensorflow.computation(lambda a: (a, [a], 2 * a), np.float32)
    return Run(function, 1.5, gives=(np.float32(1.5), [np.float32(1.5)], np.float32(3)))


@case(fast=["identity"], name=["identity", "constant", "selection"])
def lambda_without_tensorflow(name):
    struct = collections.OrderedDict(b=np.float32, a=(np.int32, np.str_))
    body = {
        "identity": lambda x: x,
        "constant": lambda x: (7, True),
        "selection": lambda x: [x.a[1], x.b],
    }[name]
    function = tff.federated_computation(body, struct)

    @tff.federated_computation(at_clients(struct), at_server(struct))
    def function_of_all(clients, server):
        return tff.federated_map(function, clients), tff.federated_map(function, server)

    value = collections.OrderedDict(b=1.5, a=(2, "x"))
    gives = {
        "identity": collections.OrderedDict(b=np.float32(1.5), a=(np.int32(2), b"x")),
        "constant": (np.int32(7), np.bool_(True)),
        "selection": [b"x", np.float32(1.5)],
    }[name]
    return Run(function_of_all, [value, value], value, gives=([gives, gives], gives))


@case(fast=True)
def function_as_argument():
    @tff.federated_computation(FUNCTION, np.float32)
    def twice(function, x):
        return function(function(x))

    return Run(twice, double, 1.5, gives=np.float32(6))


@case(fast=True)
def no_arguments():
    three = tff.tensorflow.computation(lambda: tf.constant(3.0))

    @tff.federated_computation
    def function():
        x = three()
        return (
            x,
            double(x),
            tff.federated_map(double, tff.federated_value(x, tff.SERVER)),
            double(7.5),
        )

    gives = (np.float32(3), np.float32(6), np.float32(6), np.float32(15))
    return Run(function, gives=gives)


CONSTANTS = {
    "int": (7, np.int32(7)),
    "float": (1.5, np.float32(1.5)),
    "bool": (True, np.bool_(True)),
    "str": ("x", b"x"),
    "array": (np.arange(3), np.arange(3)),
    "struct": (
        collections.OrderedDict(b=1, a=(2.5, [False])),
        collections.OrderedDict(b=np.int32(1), a=(np.float32(2.5), [np.bool_(False)])),
    ),
    "empty": ((), ()),
}


@case(name=list(CONSTANTS))
def constant_at_placements_of(name):
    value, gives = CONSTANTS[name]

    @tff.federated_computation(at_clients(np.float32))
    def function(_):
        placed = [tff.federated_value(value, place) for place in (tff.SERVER, tff.CLIENTS)]
        return placed[0], placed[1]

    return Run(function, [1.0, 2.0], gives=(gives, gives))


@case(fast=True)
def constants_as_map_arguments():
    @tff.federated_computation(at_clients(np.float32))
    def function(x):
        constant = tff.federated_value(0.5, tff.CLIENTS)
        return tff.federated_map(subtract, (x, constant))

    return Run(function, [1.0, 2.0], gives=[np.float32(0.5), np.float32(1.5)])
