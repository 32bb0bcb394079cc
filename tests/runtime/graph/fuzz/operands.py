"""Draws the operands of the fuzz's operations, separately for each client.

An operand is a function `(rng, sizes) -> array`. A name such as `"n"` in a shape stands for the
size `sizes["n"]`.
"""

from collections.abc import Callable, Mapping

import numpy as np

Operand = Callable[[np.random.Generator, Mapping[str, int]], np.ndarray]

FLOAT, DOUBLE = np.float32, np.float64
INT, LONG = np.int32, np.int64
COMPLEX = np.complex64


def _shape(shape, sizes) -> tuple[int, ...]:
    return tuple(sizes[size] if isinstance(size, str) else size for size in shape)


def real(*shape, dtype=FLOAT) -> Operand:
    """Draws normal numbers, some of which are equal or zero."""

    def draw(rng, sizes):
        values = rng.normal(size=_shape(shape, sizes))
        rounded = rng.random(values.shape) < 0.3
        return np.asarray(np.where(rounded, np.round(values), values), dtype)

    return draw


def nonzero(*shape, dtype=FLOAT) -> Operand:
    """Draws normal numbers that are not close to 0."""

    def draw(rng, sizes):
        values = rng.normal(size=_shape(shape, sizes))
        return np.asarray(values + np.where(values < 0, -0.1, 0.1), dtype)

    return draw


def between(low, high, *shape, dtype=FLOAT) -> Operand:
    return lambda rng, sizes: np.asarray(rng.uniform(low, high, _shape(shape, sizes)), dtype)


def positive(*shape, dtype=FLOAT) -> Operand:
    return between(0.2, 2.5, *shape, dtype=dtype)


def complexes(*shape, dtype=COMPLEX) -> Operand:
    def draw(rng, sizes):
        real, imaginary = rng.normal(size=(2, *_shape(shape, sizes)))
        return np.asarray(real + 1j * imaginary, dtype)

    return draw


def integers(low, high, *shape, dtype=INT) -> Operand:
    """Draws integers from `low` to `high - 1`."""
    return lambda rng, sizes: np.asarray(rng.integers(low, high, _shape(shape, sizes)), dtype)


def booleans(*shape) -> Operand:
    return lambda rng, sizes: np.asarray(rng.random(_shape(shape, sizes)) < 0.5)


def ascending(low, high, *shape, dtype=INT) -> Operand:
    """Draws integers that are sorted along the last axis."""
    draw = integers(low, high, *shape, dtype=dtype)
    return lambda rng, sizes: np.sort(draw(rng, sizes), axis=-1)


def permutation(size, dtype=INT) -> Operand:
    return lambda rng, sizes: rng.permutation(*_shape([size], sizes)).astype(dtype)


def seed(dtype=INT) -> Operand:
    """Draws the seed of a stateless random operation."""
    return integers(-(2**31), 2**31, 2, dtype=dtype)


def probabilities(*shape, dtype=FLOAT) -> Operand:
    """Draws positive numbers that add up to 1 along the last axis."""

    def draw(rng, sizes):
        values = rng.uniform(0.1, 1, _shape(shape, sizes))
        return (values / values.sum(axis=-1, keepdims=True)).astype(dtype)

    return draw


def regular(*shape, dtype=FLOAT) -> Operand:
    """Draws square matrices that are far from singular."""

    def draw(rng, sizes):
        values = rng.normal(size=_shape(shape, sizes))
        if np.issubdtype(dtype, np.complexfloating):
            values = values + 1j * rng.normal(size=values.shape)
        return (values + 4 * np.eye(values.shape[-1])).astype(dtype)

    return draw


def definite(*shape, dtype=FLOAT) -> Operand:
    """Draws symmetric positive definite matrices with well separated eigenvalues."""
    draw = regular(*shape, dtype=dtype)

    def draw_definite(rng, sizes):
        values = draw(rng, sizes)
        square = values @ values.conj().swapaxes(-1, -2)
        return (square + np.diag(np.arange(square.shape[-1]) * 20.0)).astype(dtype)

    return draw_definite


def triangular(*shape, dtype=FLOAT) -> Operand:
    draw = regular(*shape, dtype=dtype)
    return lambda rng, sizes: np.tril(draw(rng, sizes))


def distinct(*shape, dtype=FLOAT) -> Operand:
    """Draws numbers that are all different, so that their order is unique."""

    def draw(rng, sizes):
        shape_ = _shape(shape, sizes)
        return rng.permutation(int(np.prod(shape_))).reshape(shape_).astype(dtype)

    return draw
