"""Whether two results of a computation are the same, down to their Python types."""

import attrs
import numpy as np
import tensorflow as tf

TOLERANCE = 1e-5


def assert_same(actual, expected, tolerance: float = TOLERANCE, path: str = "result") -> None:
    """Raises AssertionError unless two results are the same.

    The same are: containers and names; types of leaves (NumPy scalar, array of any class, bytes),
    data types and shapes; integers, strings and booleans exactly; floats up to a tolerance.

    Args:
        actual: A result: arrays, scalars, strings and data sets in Python containers.
        expected: Another.
        tolerance: Of floats, relative and absolute. NaN is the same as NaN.
        path: How to call the result in the message.
    """
    if isinstance(expected, tf.data.Dataset):
        assert isinstance(actual, tf.data.Dataset), f"{path}: {type(actual)}, not a data set"
        _assert_equal(actual.element_spec, expected.element_spec, f"element_spec of {path}")
        actual, expected = list(actual), list(expected)
    _assert_equal(_type(actual), _type(expected), f"type of {path}")
    if attrs.has(type(expected)):
        actual = attrs.asdict(actual, recurse=False)
        expected = attrs.asdict(expected, recurse=False)
    if isinstance(expected, dict):
        _assert_equal(list(actual), list(expected), f"keys of {path}")
        for key in expected:
            assert_same(actual[key], expected[key], tolerance, f"{path}[{key!r}]")
    elif isinstance(expected, (list, tuple)):
        _assert_equal(len(actual), len(expected), f"length of {path}")
        for index, pair in enumerate(zip(actual, expected, strict=True)):
            assert_same(*pair, tolerance, f"{path}[{index}]")
    else:
        _assert_same_leaf(actual, expected, tolerance, path)


def _assert_same_leaf(actual, expected, tolerance, path):
    if isinstance(expected, tf.Tensor):  # an element of a data set
        actual, expected = actual.numpy(), expected.numpy()
    if isinstance(expected, (np.ndarray, np.generic)):
        _assert_equal(actual.dtype, expected.dtype, f"dtype of {path}")
        _assert_equal(actual.shape, expected.shape, f"shape of {path}")
        if _is_inexact(expected.dtype):
            options = {"rtol": tolerance, "atol": tolerance, "err_msg": path}
            np.testing.assert_allclose(_widen(actual), _widen(expected), **options)
        else:
            np.testing.assert_array_equal(actual, expected, path)
    else:
        _assert_equal(actual, expected, path)


def _type(value):
    return np.ndarray if isinstance(value, np.ndarray) else type(value)


def _assert_equal(actual, expected, what):
    assert actual == expected, f"{what}: {actual!r}, not {expected!r}"


def _is_inexact(dtype):
    return dtype.kind in "fc" or dtype == tf.bfloat16.as_numpy_dtype


def _widen(array):
    return np.asarray(array, np.complex128 if array.dtype.kind == "c" else np.float64)
