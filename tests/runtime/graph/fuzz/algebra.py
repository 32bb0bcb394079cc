"""Operations of linear algebra, einsum and Fourier transforms."""

import numpy as np

from tests.runtime.graph.fuzz.catalogue import family
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

_EQUATIONS = {
    "ij,jk->ik": (("n", 3), (3, 2)),
    "ij,kj->ki": (("n", 3), (2, 3)),
    "i,j->ij": (("n",), (3,)),
    "ij,ij->": (("n", 3), ("n", 3)),
    "ij,ij->j": (("n", 3), ("n", 3)),
    "bij,bjk->bik": ((2, "n", 3), (2, 3, 2)),
    "...ij,jk->...ik": ((2, "n", 3), (3, 2)),
    "ij,j->i": (("n", 3), (3,)),
    "bhqd,bhkd->bhqk": ((2, 2, 3, 2), (2, 2, 4, 2)),
}


def _products(kind, draw):
    """Returns products of one kind of numbers, named in a comment in each expression."""
    products = {
        "tf.matmul(x, y) # 3 and 2 axes": [draw(2, "n", 3), draw(3, 2)],
        "tf.matmul(x, y) # 2 and 3 axes": [draw("n", 3), draw(2, 3, 2)],
        "tf.linalg.matvec(x, y)": [draw("n", 3), draw(3)],
        "tf.tensordot(x, y, [[1], [0]])": [draw("n", 3, 2), draw(3, 2)],
        "tf.einsum('ii->i', x)": [draw(3, 3)],
        "tf.linalg.trace(x)": [draw(2, 3, 3)],
    }
    for flags in ("", "transpose_a", "transpose_b", "adjoint_a", "adjoint_b", "transpose_a both"):
        left = (3, "n") if "_a" in flags else ("n", 3)
        right = (2, 3) if "_b" in flags or "both" in flags else (3, 2)
        options = "".join(f", {flag}=True" for flag in flags.replace("both", "transpose_b").split())
        for batch in ((), (2,)):
            expression = f"tf.matmul(x, y{options}) # batch {batch}"
            products[expression] = [draw(*batch, *left), draw(*batch, *right)]
    for equation, shapes in _EQUATIONS.items():
        products[f"tf.einsum('{equation}', x, y)"] = [draw(*shape) for shape in shapes]
    for equation in ("ij->ji", "ij->i", "ij->", "...j->...j"):
        products[f"tf.einsum('{equation}', x)"] = [draw("n", 3)]
    return {f"{expression} # {kind}": operands for expression, operands in products.items()}


def _factors(dtype):
    draw = complexes if dtype is np.complex64 else real
    options = {"dtype": dtype}
    square, right = regular(3, 3, **options), draw(3, 2, **options)
    factors = {
        "tf.linalg.cholesky(x)": [definite(3, 3, **options)],
        "tf.linalg.inv(x)": [regular(2, 3, 3, **options)],
        "tf.linalg.det(x)": [square],
    }
    for adjoint in ("", ", adjoint=True"):
        factors[f"tf.linalg.solve(x, y{adjoint})"] = [square, right]
        lower = triangular(3, 3, **options)
        factors[f"tf.linalg.triangular_solve(x, y{adjoint})"] = [lower, right]
    return {
        f"{expression} # {dtype.__name__}": operands for expression, operands in factors.items()
    }


operations = family(
    "linear algebra",
    {
        **_products("float", real),
        **_products("complex", complexes),
        **_factors(FLOAT),
        **_factors(DOUBLE),
        **_factors(np.complex64),
        "tf.matmul(x, y) # integers": [integers(-3, 4, "n", 3), integers(-3, 4, 3, 2)],
        **{
            f"tf.signal.{name}(x)": [complexes(2, 4)] for name in ("fft", "ifft", "fft2d", "ifft2d")
        },
        **{
            f"tf.signal.{name}(x)": [complexes(2, 2, 3)]
            for name in ("fft3d", "ifft3d", "irfft2d", "irfft3d")
        },
        "tf.signal.rfft(x)": [real("n", 4)],
        "tf.signal.irfft(x)": [complexes("n", 3)],
    },
)
