"""Multiplies by kernels that are sums of a matrix and a product of low rank, without the sums.

A product with `K + down @ up` is one with `K` and small ones with `down` and `up`. Its gradient for
`down` and `up` needs neither the sum nor a gradient of the size of `K`.
"""

import dataclasses
import inspect
import string
from collections.abc import Callable
from typing import Any

import tensorflow as tf


class LowRank(tf.experimental.ExtensionType):
    """A kernel `K + down @ up`, whose rows and columns may be several axes each.

    `tf.matmul`, `tf.tensordot`, `tf.nn.convolution` and `tf.nn.embedding_lookup` multiply by its
    matrices in turn, and so does `einsum` here. Operators and other functions of TensorFlow take
    the sum, except those that take structures of tensors, such as `tf.map_fn`.

    Attributes:
        kernel: `K`, `[*rows, *columns]`.
        down: `[*rows, rank]`.
        up: `[rank, *columns]`.
    """

    kernel: tf.Tensor
    down: tf.Tensor
    up: tf.Tensor

    __array_priority__ = 100  # before NumPy's operators, as of tensors

    @property
    def shape(self) -> tf.TensorShape:
        """The shape of the sum."""
        return self.kernel.shape

    def get_shape(self) -> tf.TensorShape:
        """Returns the shape of the sum."""
        return self.shape

    @property
    def name(self) -> str:
        """The name of `K`, after which Keras names penalties."""
        return self.kernel.name

    @property
    def dtype(self) -> tf.DType:
        """The type of the sum."""
        return self.kernel.dtype

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        """Returns the sum."""
        total = self.kernel + tf.tensordot(self.down, self.up, 1)
        return tf.convert_to_tensor(total, dtype, name=name)


@dataclasses.dataclass(frozen=True)
class TakesLowRank:
    """A function of weights whose kernels may be of low rank."""

    function: Callable[..., Any]

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Calls the function."""
        return self.function(*args, **options)


def summed(weights: Any) -> Any:
    """Returns weights with the sums of kernels of low rank."""
    return tf.nest.map_structure(tf.convert_to_tensor, weights)


def _of_the_sum(operator):
    return lambda low_rank, *others: getattr(tf.convert_to_tensor(low_rank), operator)(*others)


for _operator in tf.Tensor.OVERLOADABLE_OPERATORS - {"__eq__", "__ne__"}:
    setattr(LowRank, _operator, _of_the_sum(_operator))


def _multiplies(api: Callable[..., Any], kernel: str) -> Callable:
    """Registers how a function of TensorFlow multiplies by a kernel of low rank.

    Args:
        api: The function.
        kernel: The name of its argument.

    Returns:
        A decorator of functions `(low_rank, multiply, **arguments)` that return the product, or
        `None` to use the sum. `multiply(tensor)` calls the API with the other arguments.
    """
    signature = inspect.signature(api)

    def register(product):
        @tf.experimental.dispatch_for_api(api, {kernel: LowRank})
        def call(*args, **options):
            given = signature.bind(*args, **options).arguments
            low_rank = given.pop(kernel)

            def multiply(tensor):
                return api(**{**given, kernel: tensor})

            found = product(low_rank, multiply, **given)
            return multiply(tf.convert_to_tensor(low_rank)) if found is None else found

        return product

    return register


def _by_columns(low_rank, multiply):
    """Returns a product whose last axis is that of the columns."""
    return multiply(low_rank.kernel) + tf.tensordot(multiply(low_rank.down), low_rank.up, 1)


@_multiplies(tf.matmul, "b")
def _matmul(low_rank, multiply, a, name=None, **others):
    is_plain = low_rank.shape.rank == 2 and not any(others.values())
    return _by_columns(low_rank, multiply) if is_plain else None


@_multiplies(tf.tensordot, "b")
def _tensordot(low_rank, multiply, a, axes, name=None):
    a = tf.convert_to_tensor(a)
    is_plain = low_rank.shape.rank == 2 and axes in (1, [[len(a.shape) - 1], [0]])
    return _by_columns(low_rank, multiply) if is_plain else None


@_multiplies(tf.nn.embedding_lookup, "params")
def _embedding_lookup(low_rank, multiply, ids, max_norm=None, name=None):
    is_plain = low_rank.shape.rank == 2 and max_norm is None
    return _by_columns(low_rank, multiply) if is_plain else None


@_multiplies(tf.nn.convolution, "filters")
def _convolution(low_rank, multiply, input, data_format=None, **others):
    is_last = data_format is None or data_format.endswith("C")
    is_whole = input.shape[-1] == low_rank.shape[-2]  # not in groups of channels
    is_plain = is_last and is_whole and low_rank.up.shape.rank == 2
    return _by_columns(low_rank, multiply) if is_plain else None


@tf.experimental.dispatch_for_api(tf.cast, {"x": LowRank})
def _cast(x, dtype, name=None):
    return LowRank(*(tf.cast(part, dtype) for part in (x.kernel, x.down, x.up)))


def einsum(equation: str, x: tf.Tensor, low_rank: LowRank) -> tf.Tensor:
    """Computes `tf.einsum` of a tensor and a kernel of low rank, which does not dispatch."""
    terms, result = equation.replace(" ", "").split("->")
    of_x, of_kernel = terms.split(",")
    num_rows = low_rank.down.shape.rank - 1
    rows, columns = of_kernel[:num_rows], of_kernel[num_rows:]
    is_plain = {*rows} <= {*of_x} and "." not in of_x.removeprefix("...")
    if not is_plain:
        return tf.einsum(equation, x, tf.convert_to_tensor(low_rank))
    rank = next(letter for letter in string.ascii_letters if letter not in equation)
    kept = "".join(axis for axis in of_x if axis in result + columns)  # with the ellipsis, if any
    small = tf.einsum(f"{of_x},{rows}{rank}->{kept}{rank}", x, low_rank.down)
    product = tf.einsum(f"{kept}{rank},{rank}{columns}->{result}", small, low_rank.up)
    return tf.einsum(equation, x, low_rank.kernel) + product
