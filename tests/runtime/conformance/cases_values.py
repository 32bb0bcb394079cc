"""Cases of data types, shapes and strings, and of the Python values that they accept."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests.runtime.conformance.cases import (
    Cases,
    Run,
    at_clients,
    at_server,
    identity,
    mapped,
    tensor,
)

case = Cases()

BFLOAT16 = tf.bfloat16.as_numpy_dtype
INTEGERS = [getattr(np, f"{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
FLOATS = [np.float16, np.float32, np.float64, BFLOAT16]
DTYPES = [np.bool_, *INTEGERS, *FLOATS, np.complex64, np.complex128]


@case(fast=["uint64", "bfloat16"], dtype=DTYPES)
def scalars_of(dtype):
    @tff.federated_computation(dtype, at_server(dtype), at_clients(dtype))
    def function(unplaced, server, clients):
        return unplaced, server, clients

    return Run(function, dtype(1), dtype(0), [dtype(1)], gives=(dtype(1), dtype(0), [dtype(1)]))


@case(fast=["bool_"], dtype=DTYPES)
def arrays_through_a_map_of(dtype):
    function = mapped(lambda x: (x, x[1], tf.reverse(x, [0])), tensor(dtype, 2))
    array = np.array([0, 1], dtype)
    return Run(function, [array, array], gives=[(array, dtype(1), array[::-1])] * 2)


@case(fast=True)
def extreme_numbers():
    array = np.array([np.nan, np.inf, -np.inf, -0.0], np.float32)
    function = mapped(lambda x: (x, tf.math.is_nan(x), 1 / x), tensor(np.float32, 4))
    inverse = np.array([np.nan, 0, -0.0, -np.inf], np.float32)
    return Run(function, [array], gives=[(array, np.isnan(array), inverse)])


@case()
def narrower_numbers_than_the_type():
    function = identity((np.float64, np.int64, tensor(np.float64, 2)))
    value = (np.float32(1.5), np.int8(3), np.ones(2, np.float32))
    return Run(function, value, gives=(np.float64(1.5), np.int64(3), np.ones(2)))


@case(fast=True)
def lists_for_arrays():
    function = identity((tensor(np.float32, 2), tensor(np.int32, None), tensor(np.str_, 2)))
    gives = (np.array([1, 2], np.float32), np.array([3], np.int32), np.array([b"a", b"b"], object))
    return Run(function, ([1.0, 2.0], (3,), ["a", b"b"]), gives=gives)


@case()
def tensors_and_variables_for_arrays():
    @tff.federated_computation(at_clients(tensor(np.float32, 2)), np.str_)
    def function(x, y):
        return x, y

    array = np.array([1, 2], np.float32)
    values = [tf.constant(array), tf.Variable(array), array]
    return Run(function, values, tf.constant("x"), gives=([array] * 3, b"x"))


@case(fast=True)
def clients_of_different_kinds():
    values = [1.5, np.float32(2.5), np.array(3.5, np.float32), tf.constant(4.5)]
    return Run(
        mapped(lambda x: 2 * x, np.float32), values, gives=[np.float32(n) for n in (3, 5, 7, 9)]
    )


@case(fast=True)
def arrays_that_change_between_calls():
    """Checks that results are not views of arguments, and arguments are read in every call."""

    @tff.federated_computation(at_clients(tensor(np.float32, 1000)), at_server(tensor(np.int32, 3)))
    def function(x, y):
        return x, y, tff.federated_sum(x)

    def run():
        x, y = np.ones(1000, np.float32), np.ones(3, np.int32)
        results = []
        for number in (2, 3):
            results.append(function([x, x], y))
            x[:] = number
            y[:] = number
        return results

    def gives(n):
        x = np.full(1000, n, np.float32)
        return [x, x], np.full(3, n, np.int32), 2 * x

    return Run(run, gives=[gives(1), gives(2)])


@case(
    fast=["big_endian"],
    name=["fortran", "strided", "big_endian", "read_only", "zero_dimensional"],
)
def array_layout(name):
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    value = {
        "fortran": np.asfortranarray(array),
        "strided": np.repeat(array, 2, axis=1)[:, ::2],
        "big_endian": array.astype(">i4"),
        "read_only": np.frombuffer(array.tobytes(), np.int32).reshape(2, 3),
        "zero_dimensional": np.array(7, np.int32),
    }[name]
    gives = np.int32(7) if value.ndim == 0 else array
    function = mapped(lambda x: x + 1, tensor(np.int32, *value.shape))
    return Run(function, [value], gives=[gives + np.int32(1)])


@case(fast=True)
def unknown_dimension():
    """Uses clients' arrays of different lengths in arguments, maps and results."""

    def function(x):
        return x, tf.concat([x, x], axis=0), tf.shape(x)[0]

    def array(size):
        return np.arange(3 * size, dtype=np.float32).reshape(size, 3)

    def gives(size):
        return array(size), np.concatenate([array(size)] * 2), np.int32(size)

    values = [array(size) for size in (2, 5, 0, 1)]
    return Run(
        mapped(function, tensor(np.float32, None, 3)),
        values,
        gives=[gives(n) for n in (2, 5, 0, 1)],
    )


@case(fast=True)
def unknown_rank():
    function = mapped(lambda x: tf.reduce_sum(x), tff.types.TensorType(np.float32, None))
    values = [np.ones(shape, np.float32) for shape in ((2,), (2, 3), (1, 1, 1))]
    return Run(function, values, gives=[np.float32(n) for n in (2, 6, 1)])


@case(fast=True)
def unknown_rank_in_the_result():
    @tff.federated_computation(at_clients(tff.types.TensorType(np.float32, None)))
    def function(x):
        return x

    values = [np.ones(shape, np.float32) for shape in ((2,), (2, 3))]
    return Run(function, values, gives=values)


STRINGS = {
    "str": "ab",
    "bytes": b"ab",
    "numpy_str": np.str_("ab"),
    "numpy_bytes": np.bytes_(b"ab"),
    "array": np.array("ab"),
    "object_array": np.array(b"ab", object),
}


@case(name=list(STRINGS))
def string_as(name):
    function = mapped(lambda x: (x, tf.strings.join([x, "!"])), np.str_)
    return Run(function, [STRINGS[name]], gives=[(b"ab", b"ab!")])


@case(fast=True)
def strings_of_arbitrary_bytes():
    values = [b"\xff\x00", b"a\x00", "h\u00e9".encode(), b""]
    function = mapped(lambda x: (x, tf.strings.length(x)), np.str_)
    return Run(function, values, gives=[(v, np.int32(len(v))) for v in values])


@case(fast=True)
def string_arrays():
    def function(x):
        return x, tf.strings.length(x), tf.strings.reduce_join(x)

    def gives(*strings):
        lengths = np.array([len(s) for s in strings], np.int32)
        return np.array(strings, object), lengths, b"".join(strings)

    values = [np.array(["a", "bcd"]), np.array([b"x\x00y"], object), np.array([], object)]
    expected = [gives(b"a", b"bcd"), gives(b"x\x00y"), gives()]
    return Run(mapped(function, tensor(np.str_, None)), values, gives=expected)


@case(fast=True)
def strings_and_numbers_from_one_map():
    """Computes a string and a number in one map."""
    function = mapped(lambda x: (tf.strings.as_string(x), x + 1), np.int32)
    return Run(function, [3, 40], gives=[(b"3", np.int32(4)), (b"40", np.int32(41))])
