import collections
from typing import Any, NamedTuple

import attrs
import numpy as np
import pytest
import tensorflow as tf

from tests.runtime.conformance.compare import assert_same


class Pair(NamedTuple):
    a: Any
    b: Any


@attrs.define
class Attrs:
    a: Any
    b: Any


def result(leaf):
    return collections.OrderedDict(b=[leaf, (leaf, b"x")], a=Pair(leaf, Attrs(leaf, ())))


def numbers(*elements):
    return tf.data.Dataset.from_tensor_slices(tf.constant(elements))


LEAVES = [
    np.float32(1.5),
    np.float32(np.nan),
    np.array([1.5, np.inf], np.float32),
    np.array([1 + 2j], np.complex64),
    np.ones(2, tf.bfloat16.as_numpy_dtype),
    np.array([b"x", b""], object),
    np.int64(3),
    np.bool_(True),
    np.zeros((0, 3)),
    b"bytes",
    (),
    [numbers(1, 2), numbers(1, 2)],
]


@pytest.mark.parametrize("leaf", LEAVES)
def test_results_that_are_the_same(leaf):
    assert_same(result(leaf), result(leaf))


def test_floats_up_to_the_tolerance():
    assert_same(np.float32(1.000005), np.float32(1.0))
    assert_same(np.float32(1.0005), np.float32(1.0), tolerance=1e-3)
    with pytest.raises(AssertionError, match="result"):
        assert_same(np.float32(1.0005), np.float32(1.0))


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (np.float32(1.0), 1.0),
        (np.float32(1.0), np.array(1.0, np.float32)),
        (np.float32(1.0), np.float64(1.0)),
        (np.float32(np.nan), np.float32(1.0)),
        (np.float32(-np.inf), np.float32(np.inf)),
        (np.int32(1), np.int32(2)),
        (np.int32(10**8), np.int32(10**8 + 1)),
        (np.bool_(True), np.bool_(False)),
        (np.ones(2), np.ones(3)),
        (np.ones((2, 1)), np.ones((1, 2))),
        (np.array([b"x"], object), np.array([b"y"], object)),
        (np.array([b"x"], object), np.array([b"x"])),
        (b"x", "x"),
        (b"x", b"y"),
        ((), []),
        ((), None),
        ([1], [1, 1]),
        ({"a": 1}, {"b": 1}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": 1}, collections.OrderedDict(a=1)),
        (Pair(1, 2), (1, 2)),
        (Pair(1, 2), Pair(1, 3)),
        (Attrs(1, 2), Attrs(1, 3)),
        (Attrs(1, 2), Pair(1, 2)),
        (numbers(1, 2), [1, 2]),
        (numbers(1, 2), numbers(1, 3)),
        (numbers(1, 2), numbers(1, 2, 3)),
        (numbers(1, 2), numbers(1.0, 2.0)),
    ],
)
def test_results_that_differ(actual, expected):
    with pytest.raises(AssertionError):
        assert_same(actual, expected)
    with pytest.raises(AssertionError):
        assert_same(result(actual), result(expected))


def test_the_message_says_where():
    with pytest.raises(AssertionError, match=r"type of result\['a'\]\[0\]: .*int32.*float32"):
        assert_same({"a": Pair(np.int32(1), 2)}, {"a": Pair(np.float32(1), 2)})
