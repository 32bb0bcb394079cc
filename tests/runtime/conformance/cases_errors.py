"""Cases that must raise."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests.runtime.conformance.cases import (
    RUN_ERRORS,
    Cases,
    Run,
    at_clients,
    at_server,
    identity,
    mapped,
    tensor,
)

case = Cases()

VECTOR = tensor(np.float32, 2)
UNKNOWN = tensor(np.float32, None)


def check_positive(x):
    with tf.control_dependencies([tf.debugging.assert_positive(x, "must be positive")]):
        return tf.identity(x)


@case(fast=True, raises=RUN_ERRORS, match="must be positive")
def assertion_at_server():
    check = tff.tensorflow.computation(check_positive, np.float32)

    @tff.federated_computation(at_server(np.float32))
    def function(x):
        return tff.federated_map(check, x)

    return Run(function, -1.0)


@case(fast=True, raises=RUN_ERRORS, match="must be positive")
def assertion_in_a_function():
    """Checks that a `tf.function` also runs assertions on which no result depends."""

    @tf.function
    def function(x):
        tf.debugging.assert_positive(x, "must be positive")
        return 2 * x

    return Run(mapped(function, np.float32), [1.0, -1.0])


@case(fast=True)
def call_after_a_failure():
    """Checks that a failed call does not change the next one."""
    function = mapped(check_positive, np.float32)

    def call():
        try:
            function([1.0, -1.0])
        except RUN_ERRORS:
            return function([1.0, 2.0])

    return Run(call, gives=[np.float32(1), np.float32(2)])


@case(fast=True, raises=RUN_ERRORS, match="ivision by zero")
def integer_division_by_zero():
    return Run(mapped(lambda x: 1 // x, np.int32), [1, 0])


@case(fast=True, raises=RUN_ERRORS)
def client_with_a_wrong_shape():
    values = [np.ones(n, np.float32) for n in (2, 3)]
    return Run(mapped(lambda x: tf.ensure_shape(x, [2]), UNKNOWN), values)


BAD_VALUES = {
    "int_for_float": (np.float32, 1),
    "float_for_int": (np.int32, 1.5),
    "bool_for_int": (np.int32, True),
    "int_for_bool": (np.bool_, 1),
    "int_too_large": (np.uint8, 300),
    "wide_scalar": (np.float32, np.float64(1)),
    "scalar_for_array": (VECTOR, np.float32(1)),
    "other_length": (VECTOR, np.ones(3, np.float32)),
    "int_list": (VECTOR, [1, 2]),
    "array_for_struct": ((np.float32, np.float32), np.ones(2, np.float32)),
    "long_struct": ((np.float32, np.float32), (1.0, 2.0, 3.0)),
    "array_for_sequence": (tff.types.SequenceType(np.float32), np.ones(2, np.float32)),
    "other_dataset": (tff.types.SequenceType(np.float32), tf.data.Dataset.range(2)),
}


@case(
    fast=["float_for_int", "int_too_large", "other_length", "long_struct", "other_dataset"],
    name=list(BAD_VALUES),
    raises=TypeError,
)
def bad_value_at_clients(name):
    type_signature, value = BAD_VALUES[name]
    return Run(identity(at_clients(type_signature)), [value])


@case(fast=True, raises=TypeError)
def bad_value_that_is_not_used():
    @tff.federated_computation(at_clients(VECTOR))
    def function(_):
        return tff.federated_value(1, tff.SERVER)

    return Run(function, [np.ones(3, np.float32)])


@case(fast=True, raises=ValueError)
def string_that_is_not_ascii():
    """Raises in the stock runtime only, which accepts the same text as bytes."""
    return Run(identity(np.str_), "h\u00e9", gives=b"h\xc3\xa9")


@case(fast=["tuple"], name=["tuple", "array"], raises=TypeError)
def clients_in_another_container(name):
    value = {"tuple": (1.0, 2.0), "array": np.ones(2, np.float32)}[name]
    return Run(identity(at_clients(np.float32)), value)


@case(fast=True, raises=ValueError, match="non-sorted")
def dataset_of_unsorted_dicts():
    """Raises in the stock runtime only, which accepts ordered dictionaries."""
    rows = tf.data.Dataset.from_tensor_slices({"b": [1.0], "a": [2]})
    struct = tff.types.StructWithPythonType([("b", np.float32), ("a", np.int32)], dict)

    def function(elements):
        return elements.reduce((0.0, 0), lambda s, e: (s[0] + e["b"], s[1] + e["a"]))

    function = tff.tensorflow.computation(function, tff.types.SequenceType(struct))
    return Run(function, rows, gives=(np.float32(1), np.int32(2)))
