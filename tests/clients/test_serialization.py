"""Tests `tff_pfl.clients.serialization`."""

import collections
from typing import Any, NamedTuple

import attrs
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.marks import together
from tff_pfl.clients.errors import CorruptStateError, ForeignStateError
from tff_pfl.clients.serialization import deserialize, pack, serialize, unpack

BFLOAT16 = tf.bfloat16.as_numpy_dtype


class Nothing(NamedTuple):
    pass


class State(NamedTuple):
    model: Any
    history: Any
    nothing: Any
    step: Any


STATE_TYPE = tff.types.to_type(
    State(
        model=collections.OrderedDict(
            [
                ("dense/kernel", (np.float32, [2, 3])),
                ("dense", collections.OrderedDict(kernel=np.float64)),
                ("__metadata__", (np.bool_, [None])),
                ("a%2Fb", np.int64),
                ("a/b", np.int64),
            ]
        ),
        history=[(np.float16, [None, 2]), (BFLOAT16, [2])],
        nothing=Nothing(),
        step=np.uint8,
    )
)


def make_state() -> State:
    return State(
        model=collections.OrderedDict(
            [
                ("dense/kernel", np.array([[1, np.nan, -0.0], [np.inf, 1e-45, 2]], np.float32)),
                ("dense", collections.OrderedDict(kernel=np.float64(0.1))),
                ("__metadata__", np.array([True, False, True])),
                ("a%2Fb", np.int64(2**62)),
                ("a/b", np.int64(-1)),
            ]
        ),
        history=[np.zeros([0, 2], np.float16), np.array([1.5, np.nan], BFLOAT16)],
        nothing=Nothing(),
        step=np.uint8(255),
    )


def restored(value, value_type):
    return deserialize(serialize(value, value_type), value_type)


def assert_same_bits(a, b):
    tf.nest.assert_same_structure(a, b)
    for x, y in zip(tf.nest.flatten(a), tf.nest.flatten(b), strict=True):
        assert (x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes())


def test_values_are_restored_bit_for_bit_in_their_containers():
    result = restored(make_state(), STATE_TYPE)
    assert_same_bits(result, make_state())
    assert isinstance(result.step, np.ndarray)


def test_equal_values_have_equal_bytes_and_results_are_writable():
    buffer = serialize(make_state(), STATE_TYPE)
    assert all(serialize(make_state(), STATE_TYPE) == buffer for _ in range(5))
    first = deserialize(buffer, STATE_TYPE)
    first.model["dense/kernel"][:] = 7
    assert_same_bits(deserialize(buffer, STATE_TYPE), make_state())


def test_packed_leaves_are_bytes_preceded_by_unknown_shapes():
    value_type = tff.types.to_type(
        collections.OrderedDict([("w", (BFLOAT16, [2])), ("n", [np.int32, (np.uint8, [None])])])
    )
    value = collections.OrderedDict(
        w=np.array([1.5, -0.0], BFLOAT16), n=[7, np.array([1, 2], "u1")]
    )
    shape = b"\1" + bytes(7) + b"\2" + bytes(7)
    assert pack(value, value_type) == b"\xc0?\0\x80" + b"\7\0\0\0" + shape + b"\1\2"


class Pair(NamedTuple):
    a: Any
    b: Any


class Reversed(NamedTuple):
    b: Any
    a: Any


@attrs.define
class Attrs:
    a: Any
    b: Any


@together("container", [Pair, Attrs, dict, None])
def test_result_has_the_container_of_the_type(container):
    elements = [("a", np.int32), ("b", tff.types.StructType([np.float32]))]
    if container is None:
        value_type, container = tff.types.StructType(elements), collections.OrderedDict
    else:
        value_type = tff.types.StructWithPythonType(elements, container)
    result = restored({"a": 1, "b": [2.0]}, value_type)
    assert type(result) is container
    assert result == container(a=np.int32(1), b=(np.float32(2),))


@together(
    "value",
    [
        Pair(1, 2.0),
        Reversed(2.0, 1),
        Attrs(1, 2.0),
        {"b": 2.0, "a": 1},
        {"a": tf.constant(1), "b": tf.constant(2.0)},
        tff.structure.Struct([("a", 1), ("b", 2)]),
        (1, 2),
    ],
)
def test_serialize_accepts_the_containers_and_leaves_of_tff(value):
    value_type = tff.types.to_type(collections.OrderedDict(a=np.int32, b=np.float32))
    result = restored(value, value_type)
    assert result == collections.OrderedDict(a=np.int32(1), b=np.float32(2))
    assert [x.dtype for x in result.values()] == [np.int32, np.float32]


def test_transposed_and_strided_arrays_are_restored():
    value_type = tff.types.TensorType(np.int32, [None, None])
    base = np.arange(12, dtype=np.int32).reshape(3, 4)
    for value in (base.T, base[::2, ::-1]):
        np.testing.assert_array_equal(restored(value, value_type), value)


@together(
    ("value", "value_type"),
    [
        ((), tff.types.StructType([])),
        (b"\xff\x00 text", tff.types.TensorType(np.str_)),
        (np.array([[b"a", b""], [b"\0", b"cc"]], object), tff.types.TensorType(np.str_, [None, 2])),
    ],
)
def test_empty_structs_and_strings_are_restored(value, value_type):
    found = restored(value, value_type)
    assert type(found) is type(value)
    np.testing.assert_array_equal(found, value)


def test_text_becomes_utf_8():
    assert restored("tëxt", tff.types.TensorType(np.str_)) == "tëxt".encode()


@together(
    ("value", "leaf_type", "message"),
    [
        (np.zeros(2), (np.float32, [2]), r"float32\[2\] at 'a/b', found float64\[2\]"),
        (1.5, np.int32, "found float64"),
        (1, np.str_, "Expected str at 'a/b', found 1"),
        ([b"a", b"b"], (np.str_, [3]), r"found \[b'a', b'b'\]"),
        (1, tff.types.SequenceType(np.int32), "booleans, integers, floats or strings"),
        (1, collections.OrderedDict(c=np.int32), "found a int"),
        ({"d": 1}, collections.OrderedDict(c=np.int32), r"found elements \['d'\]"),
        ((1, 2), tff.types.StructType([np.int32, ("c", np.int32)]), "all named or all unnamed"),
    ],
)
def test_serialize_refuses_a_value_of_another_type(value, leaf_type, message):
    value_type = tff.types.to_type(
        collections.OrderedDict(a=collections.OrderedDict(b=tff.types.to_type(leaf_type)))
    )
    with pytest.raises(TypeError, match=message):
        serialize({"a": {"b": value}}, value_type)


def test_error_for_another_type_prints_both_types():
    stored_type = tff.types.to_type(collections.OrderedDict(a=np.int32))
    other_type = tff.types.to_type(collections.OrderedDict(a=np.int64))
    with pytest.raises(ForeignStateError) as error:
        deserialize(serialize({"a": 1}, stored_type), other_type)
    assert str(stored_type) in str(error.value)
    assert str(other_type) in str(error.value)


def test_damaged_and_truncated_bytes_are_refused():
    value_type = tff.types.to_type(collections.OrderedDict(a=(np.float32, [2]), b=(np.int32, [2])))
    value = {"a": np.ones([2], np.float32), "b": np.ones([2], np.int32)}
    buffer = serialize(value, value_type)
    flipped = [buffer[:i] + bytes([buffer[i] ^ 1]) + buffer[i + 1 :] for i in range(len(buffer))]
    for damaged in flipped + [buffer[:length] for length in range(len(buffer))]:
        with pytest.raises(CorruptStateError, match="bytes are not a serialized <a=.* damaged"):
            deserialize(damaged, value_type)


@together(
    ("leaf", "value"),
    [
        (np.int32, 3),
        ((np.int32, [None]), np.array([3, 4], np.int32)),
        ((np.str_, [None]), ["text", "more"]),
    ],
)
def test_packed_bytes_of_another_length_are_refused(leaf, value):
    value_type = tff.types.to_type(leaf)
    buffer = pack(value, value_type)
    for wrong in (b"", buffer[:-1], buffer + b"!"):
        with pytest.raises(CorruptStateError, match="bytes are not a packed"):
            unpack(wrong, value_type)
