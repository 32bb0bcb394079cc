"""Compares structures of tensors."""

from typing import Any

import numpy as np
import tensorflow as tf

_ROUNDING = 1e-4


def leaves(value: Any) -> list[np.ndarray]:
    """Returns all tensors of a structure as arrays."""
    return [np.asarray(leaf) for leaf in tf.nest.flatten(value)]


def equal(a: Any, b: Any) -> bool:
    """Returns whether two structures have the same tensors, bit for bit; NaNs are equal."""
    pairs = zip(leaves(a), leaves(b), strict=True)
    return all(np.array_equal(x, y, equal_nan=x.dtype.kind == "f") for x, y in pairs)


def assert_equal(a: Any, b: Any, name: str) -> None:
    """Asserts that two structures are equal bit for bit; `name` names them in the message."""
    for x, y in zip(leaves(a), leaves(b), strict=True):
        np.testing.assert_array_equal(x, y, err_msg=f"{name} differs")


def assert_close(a: Any, b: Any, name: str) -> None:
    """Asserts that two structures are equal up to the rounding of reordered sums."""
    for x, y in zip(leaves(a), leaves(b), strict=True):
        np.testing.assert_allclose(x, y, _ROUNDING, _ROUNDING, err_msg=f"{name} differs")


def assert_finite(value: Any, name: str) -> None:
    """Asserts that all numbers of a structure are finite."""
    for leaf in leaves(value):
        assert leaf.dtype.kind != "f" or np.all(np.isfinite(leaf)), f"{name} has {leaf}"
