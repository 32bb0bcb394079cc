"""Linear algebra, einsum, Fourier transforms."""

import numpy as np
import tensorflow as tf

from tests.runtime.graph.fuzz.catalogue import Family
from tests.runtime.graph.fuzz.operands import (
    DOUBLE,
    FLOAT,
    complexes,
    definite,
    integers,
    real,
    regular,
    triangular,
)

family = Family("linear algebra")
add = family.add

_NUMBERS = {"float": real, "complex": complexes}
for _kind, _draw in _NUMBERS.items():
    _names = ["transpose_a", "transpose_b", "adjoint_a", "adjoint_b"]
    for _options in ([], *([name] for name in _names), ["transpose_a", "transpose_b"]):
        _flags = dict.fromkeys(_options, True)
        _left = (3, "n") if any(name.endswith("_a") for name in _options) else ("n", 3)
        _right = (2, 3) if any(name.endswith("_b") for name in _options) else (3, 2)
        add(
            f"matmul {_kind} {_options}",
            lambda x, y, flags=_flags: tf.matmul(x, y, **flags),
            _draw(*_left),
            _draw(*_right),
        )
        add(
            f"batch matmul {_kind} {_options}",
            lambda x, y, flags=_flags: tf.matmul(x, y, **flags),
            _draw(2, *_left),
            _draw(2, *_right),
        )
    add(f"matmul of 3 and 2 {_kind}", tf.matmul, _draw(2, "n", 3), _draw(3, 2))
    add(f"matmul of 2 and 3 {_kind}", tf.matmul, _draw("n", 3), _draw(2, 3, 2))
    add(f"matvec {_kind}", tf.linalg.matvec, _draw("n", 3), _draw(3))
    add(
        f"tensordot {_kind}",
        lambda x, y: tf.tensordot(x, y, [[1], [0]]),
        _draw("n", 3, 2),
        _draw(3, 2),
    )
    for _equation, _shapes in {
        "ij,jk->ik": (("n", 3), (3, 2)),
        "ij,kj->ki": (("n", 3), (2, 3)),
        "i,j->ij": (("n",), (3,)),
        "ij,ij->": (("n", 3), ("n", 3)),
        "ij,ij->j": (("n", 3), ("n", 3)),
        "bij,bjk->bik": ((2, "n", 3), (2, 3, 2)),
        "...ij,jk->...ik": ((2, "n", 3), (3, 2)),
        "ij,j->i": (("n", 3), (3,)),
        "bhqd,bhkd->bhqk": ((2, 2, 3, 2), (2, 2, 4, 2)),
    }.items():
        add(
            f"einsum {_equation} {_kind}",
            lambda x, y, e=_equation: tf.einsum(e, x, y),
            *(_draw(*shape) for shape in _shapes),
        )
    for _equation in ("ij->ji", "ij->i", "ij->", "...j->...j"):
        add(f"einsum {_equation} {_kind}", lambda x, e=_equation: tf.einsum(e, x), _draw("n", 3))
    add(f"einsum ii->i {_kind}", lambda x: tf.einsum("ii->i", x), _draw(3, 3))
    add(f"trace {_kind}", tf.linalg.trace, _draw(2, 3, 3))

for _dtype in (FLOAT, DOUBLE, np.complex64):
    _name = np.dtype(_dtype).name
    _vector = real if _dtype is not np.complex64 else complexes
    _right = _vector(3, 2, dtype=_dtype)
    add(f"cholesky {_name}", tf.linalg.cholesky, definite(3, 3, dtype=_dtype))
    add(f"inverse {_name}", tf.linalg.inv, regular(2, 3, 3, dtype=_dtype))
    add(f"determinant {_name}", tf.linalg.det, regular(3, 3, dtype=_dtype))
    add(f"solve {_name}", tf.linalg.solve, regular(3, 3, dtype=_dtype), _right)
    add(
        f"adjoint solve {_name}",
        lambda a, b: tf.linalg.solve(a, b, adjoint=True),
        regular(3, 3, dtype=_dtype),
        _right,
    )
    add(
        f"triangular solve {_name}",
        tf.linalg.triangular_solve,
        triangular(3, 3, dtype=_dtype),
        _right,
    )
    add(
        f"adjoint triangular solve {_name}",
        lambda a, b: tf.linalg.triangular_solve(a, b, adjoint=True),
        triangular(3, 3, dtype=_dtype),
        _right,
    )
add("integer product", lambda x, y: tf.matmul(x, y), integers(-3, 4, "n", 3), integers(-3, 4, 3, 2))


def _projector(vectors):
    return tf.matmul(vectors[:, :1], vectors[:, :1], transpose_b=True)


for _name in ("fft", "ifft", "fft2d", "ifft2d"):
    add(_name, getattr(tf.signal, _name), complexes(2, 4))
for _name in ("fft3d", "ifft3d", "irfft2d", "irfft3d"):
    add(_name, getattr(tf.signal, _name), complexes(2, 2, 3))
add("rfft", tf.signal.rfft, real("n", 4))
add("irfft", tf.signal.irfft, complexes("n", 3))
