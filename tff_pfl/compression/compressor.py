"""What a compressor is."""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tff_pfl.registry import Registry

COMPRESSORS = Registry("compressor")
"""Functions `(*, <options>) -> Compressor`."""


class Compressor(NamedTuple):
    """Makes a message of few bytes of a vector, and a vector that is close to it of the message.

    Both functions are pure TensorFlow. The message of zeros, of whatever type, stands for a client
    that was left out: it has to be decoded to finite numbers.

    Attributes:
        encode: `(float32 [n], seed int32 [2]) -> message`, any structure of tensors of known
            shapes: they are what travels.
        decode: `(message, n) -> float32 [n]`.
        is_contraction: Whether what is decoded is never farther from a vector than zeros are.
            Residuals of others could grow without bound, see `rescaled`.
    """

    encode: Callable[[tf.Tensor, tf.Tensor], Any]
    decode: Callable[[Any, int], tf.Tensor]
    is_contraction: bool


class Rescaled(NamedTuple):
    """The message of a `rescaled` compressor.

    Attributes:
        message: Of the compressor itself.
        factor: float32 scalar, what is decoded is multiplied by it.
    """

    message: Any
    factor: tf.Tensor


def rescaled(compressor: Compressor) -> Compressor:
    """A contraction: of what a compressor decodes, the multiple that is closest to the vector.

    With `q` what is decoded of `v`, it is `<q, v> / <q, q> q`, whose error is `v` without its
    projection on `q`, and so not longer than `v`. It is biased where `q` was not, and has 4 bytes
    more.

    Args:
        compressor: Any; one that is a contraction stays as it is.
    """
    if compressor.is_contraction:
        return compressor

    def encode(vector, seed):
        message = compressor.encode(vector, seed)
        decoded = compressor.decode(message, vector.shape.num_elements())
        lengths = [tf.reduce_sum(decoded * other) for other in (vector, decoded)]
        return Rescaled(message, tf.math.divide_no_nan(*lengths))

    def decode(message, size):
        return message.factor * compressor.decode(message.message, size)

    return Compressor(encode, decode, is_contraction=True)
