"""Compressors by name."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.ranges import between, takes, whole
from tff_pfl.arguments.registry import Registry
from tff_pfl.compression.rotation import rotated, rotated_back

PRECISIONS = ("bfloat16", "float16")
# Folded into a message's seed, for its rotation and its rounding.
_ROTATION, _ROUNDING = 0, 1
_WORD = 32  # Bits in a word.

COMPRESSORS = Registry("compressor")
"""Functions `(*, <options>) -> Compressor`."""


@dataclasses.dataclass(frozen=True)
class Compressor:
    """A pair of functions that encode a vector as a short message, and decode the message.

    Both functions are pure TensorFlow. A client that was left out sends a message of zeros, which
    must decode to finite numbers.

    Attributes:
        encode: `(float32 [n], seed int32 [2]) -> message`. The message is any structure of tensors
            of known shapes, which are sent.
        decode: `(message, n) -> float32 [n]`.
        is_contraction: Whether a decoded vector is never farther from the original than zeros are.
            Otherwise residuals could grow without bound (see `rescaled`).
    """

    encode: Callable[[tf.Tensor, tf.Tensor], Any]
    decode: Callable[[Any, int], tf.Tensor]
    is_contraction: bool


class Rescaled(NamedTuple):
    """The message of a `rescaled` compressor.

    Attributes:
        message: The message of the original compressor.
        factor: float32 scalar that multiplies the decoded vector.
    """

    message: Any
    factor: tf.Tensor


def rescaled(compressor: Compressor) -> Compressor:
    """Makes a compressor a contraction by rescaling its result to be closest to the vector.

    If `q` is the decoded vector of `v`, the result is `<q, v> / <q, q> q`. Its error is `v` minus
    its projection on `q`, which is not longer than `v`. The result is biased even if `q` is
    unbiased, and takes 4 more bytes.

    Args:
        compressor: Any compressor. A contraction is returned unchanged.
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


@COMPRESSORS.register("half")
def half(*, precision: str = "bfloat16") -> Compressor:
    """Makes a compressor that rounds numbers to 16 bits, half of the bytes.

    Args:
        precision: "bfloat16", with 8 significant bits and the range of float32, or "float16", with
            11 significant bits and numbers up to 65504. A client with larger numbers is left out.
    """
    check_names("precision", [precision], PRECISIONS)

    def encode(vector, seed):
        del seed
        return tf.cast(vector, precision)

    def decode(message, size):
        del size
        return tf.cast(message, tf.float32)

    return Compressor(encode, decode, is_contraction=True)


class Sparse(NamedTuple):
    """A message with some entries of a vector.

    Attributes:
        values: float32 `[k]`.
        indices: int32 `[k]`, the indices of the entries. All other entries are 0.
    """

    values: tf.Tensor
    indices: tf.Tensor


@COMPRESSORS.register("top_k")
@takes(share=between(0, 1))
def top_k(*, share: float = 0.1) -> Compressor:
    """Makes a compressor that sends the entries with the largest magnitudes, 8 bytes each.

    The entries are the largest of the whole upload. (Aji and Heafield, "Sparse communication for
    distributed gradient descent", EMNLP 2017; Stich et al., "Sparsified SGD with memory", NeurIPS
    2018.) Other entries are lost unless there is error feedback.

    Args:
        share: The share of the entries to send. Their number is rounded up, and at least one. 1 is
            lossless and takes twice as many bytes as the upload.
    """

    def encode(vector, seed):
        del seed
        # In floating point, 0.07 * 100 is more than 7.
        number = max(1, math.ceil(share * vector.shape.num_elements() - 1e-9))
        indices = tf.math.top_k(tf.abs(vector), number).indices
        return Sparse(tf.gather(vector, indices), indices)

    def decode(message, size):
        return tf.scatter_nd(message.indices[:, tf.newaxis], message.values, [size])

    return Compressor(encode, decode, is_contraction=True)


class Quantized(NamedTuple):
    """A message with a vector of integers, and their grid.

    Attributes:
        words: int32 `[m]`, each with as many packed integers as fit.
        lowest: float32 scalar, the value of the integer 0.
        step: float32 scalar, the difference between the values of two consecutive integers.
        seed: int32 `[2]`, the seed of the rotation, or `()` without rotation.
    """

    words: tf.Tensor
    lowest: tf.Tensor
    step: tf.Tensor
    seed: tf.Tensor | tuple


@COMPRESSORS.register("quantized")
@takes(bits=whole(1, 16))
def quantized(*, bits: int = 8, rotation: bool = True) -> Compressor:
    """Makes a compressor that quantizes a randomly rotated vector, with stochastic rounding.

    Each entry is rounded to one of `2^bits` values, in equal steps from the lowest to the highest
    entry. It is rounded up or down at random such that the expectation is the entry itself. The
    error of an entry is less than a step. (Suresh et al., "Distributed mean estimation with limited
    communication", ICML 2017.) A word of 32 bits holds `32 // bits` entries. The lowest value and
    the step take 8 more bytes, and the seed of a rotation another 8.

    Args:
        bits: The number of bits for each entry.
        rotation: Whether the vector is rotated (see `rotated`). Rotated entries have similar
            magnitudes, even if they come from different layers. Without rotation, a few large
            entries make all steps large.
    """
    levels = 2.0**bits - 1.0

    def encode(vector, seed):
        turn = _derived(seed, _ROTATION)
        if rotation:
            vector = rotated(vector, turn)
        lowest = tf.reduce_min(vector)
        step = (tf.reduce_max(vector) - lowest) / levels
        drawn = tf.random.stateless_uniform(vector.shape, _derived(seed, _ROUNDING))
        numbers = tf.floor(tf.math.divide_no_nan(vector - lowest, step) + drawn)
        numbers = tf.cast(tf.clip_by_value(numbers, 0.0, levels), tf.int32)
        return Quantized(packed(numbers, bits), lowest, step, turn if rotation else ())

    def decode(message, size):
        numbers = tf.cast(unpacked(message.words, bits, size), tf.float32)
        vector = message.lowest + message.step * numbers
        return rotated_back(vector, message.seed) if rotation else vector

    return Compressor(encode, decode, is_contraction=False)


def packed(numbers: tf.Tensor, bits: int) -> tf.Tensor:
    """Packs integers side by side into words, the first one in the lowest bits.

    Args:
        numbers: int32 `[n]`, from 0 to `2^bits - 1`.
        bits: The number of bits of each number, 1 to 16.

    Returns:
        int32 `[ceil(n / (32 // bits))]`.
    """
    size, in_a_word = numbers.shape.num_elements(), _WORD // bits
    rows = tf.reshape(tf.pad(numbers, [[0, -size % in_a_word]]), [-1, in_a_word])
    # The numbers have no common bits, so their sum is their union.
    return tf.reduce_sum(tf.bitwise.left_shift(rows, _places(bits)), axis=1)


def unpacked(words: tf.Tensor, bits: int, size: int) -> tf.Tensor:
    """Unpacks the int32 `[size]` numbers that `packed` packed into words."""
    rows = tf.bitwise.right_shift(words[:, tf.newaxis], _places(bits))
    # Shifting a word with a set highest bit, a negative number, fills it with ones.
    rows = tf.bitwise.bitwise_and(rows, 2**bits - 1)
    return tf.reshape(rows, [-1])[:size]


def _places(bits):
    return tf.constant([[bits * i for i in range(_WORD // bits)]], tf.int32)


def _derived(seed, number):
    return tf.random.experimental.stateless_fold_in(seed, number)
