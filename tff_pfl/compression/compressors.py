"""Compressors by name."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tff_pfl.compression.rotation import rotated, rotated_back
from tff_pfl.names import check_names
from tff_pfl.ranges import between, takes, whole
from tff_pfl.registry import Registry

PRECISIONS = ("bfloat16", "float16")
# Folded into the seed of a message, for its rotation and for its rounding.
_ROTATION, _ROUNDING = 0, 1
_WORD = 32  # bits

COMPRESSORS = Registry("compressor")
"""Functions `(*, <options>) -> Compressor`."""


class Compressor(NamedTuple):
    """Encodes a vector as a message of few bytes, and decodes that to a vector close to it.

    Both functions are pure TensorFlow. A client that was left out sends a message of zeros, which
    has to be decoded to finite numbers.

    Attributes:
        encode: `(float32 [n], seed int32 [2]) -> message`, any structure of tensors of known
            shapes, which are sent.
        decode: `(message, n) -> float32 [n]`.
        is_contraction: Whether a decoded vector is never farther from the original than zeros are.
            Otherwise residuals could grow without bound, see `rescaled`.
    """

    encode: Callable[[tf.Tensor, tf.Tensor], Any]
    decode: Callable[[Any, int], tf.Tensor]
    is_contraction: bool


class Rescaled(NamedTuple):
    """The message of a `rescaled` compressor.

    Attributes:
        message: The compressor's own message.
        factor: float32 scalar that multiplies the decoded vector.
    """

    message: Any
    factor: tf.Tensor


def rescaled(compressor: Compressor) -> Compressor:
    """Makes a compressor a contraction, by the multiple of its result closest to the vector.

    With `q` the decoded vector of `v`, it is `<q, v> / <q, q> q`, whose error is `v` without its
    projection on `q`, and so not longer than `v`. It is biased where `q` was not, and takes 4 bytes
    more.

    Args:
        compressor: Any; a contraction stays as it is.
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
    """Rounds numbers to 16 bits, half of the bytes.

    Args:
        precision: "bfloat16", with 8 significant bits and the range of float32; or "float16", with
            11 bits and numbers up to 65504: a client with larger numbers is left out.
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
    """Some entries of a vector.

    Attributes:
        values: float32 `[k]`.
        indices: int32 `[k]`, their places; all other entries are 0.
    """

    values: tf.Tensor
    indices: tf.Tensor


@COMPRESSORS.register("top_k")
@takes(share=between(0, 1))
def top_k(*, share: float = 0.1) -> Compressor:
    """Sends the entries with the largest magnitudes of the whole upload, 8 bytes each.

    (Aji and Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017; Stich et
    al., "Sparsified SGD with memory", NeurIPS 2018.) Other entries are lost, unless there is error
    feedback.

    Args:
        share: Share of the entries, rounded up to one at least; 1 loses nothing, and takes twice
            the bytes.
    """

    def encode(vector, seed):
        del seed
        # 0.07 * 100 is 7, but more in floating point.
        number = max(1, math.ceil(share * vector.shape.num_elements() - 1e-9))
        indices = tf.math.top_k(tf.abs(vector), number).indices
        return Sparse(tf.gather(vector, indices), indices)

    def decode(message, size):
        return tf.scatter_nd(message.indices[:, tf.newaxis], message.values, [size])

    return Compressor(encode, decode, is_contraction=True)


class Quantized(NamedTuple):
    """A vector of whole numbers, and the grid that they are on.

    Attributes:
        words: int32 `[m]`, each of as many whole numbers as fit.
        lowest: float32 scalar, the value of 0.
        step: float32 scalar, from one number to the next.
        seed: int32 `[2]`, of the rotation; `()` without one.
    """

    words: tf.Tensor
    lowest: tf.Tensor
    step: tf.Tensor
    seed: tf.Tensor | tuple


@COMPRESSORS.register("quantized")
@takes(bits=whole(1, 16))
def quantized(*, bits: int = 8, rotation: bool = True) -> Compressor:
    """Quantizes a randomly rotated vector uniformly, with stochastic rounding.

    An entry becomes one of the `2^bits` numbers in equal steps from the lowest to the highest
    entry: one of its two neighbours, the nearer one more often, so that its expectation is the
    entry itself. The error of each is less than a step. (Suresh et al., "Distributed mean
    estimation with limited communication", ICML 2017.) A word of 32 bits has `32 // bits` entries.
    The lowest number and the step take 8 bytes more, the seed of a rotation another 8.

    Args:
        bits: Bits of an entry.
        rotation: Whether the vector is rotated, see `rotated`: entries then have much the same
            magnitude, whatever layer they are from. Otherwise a few large entries make all steps
            large.
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
    """Packs whole numbers side by side into words, the first one in the lowest bits.

    Args:
        numbers: int32 `[n]`, from 0 to `2^bits - 1`.
        bits: Bits of each number, 1 to 16.

    Returns:
        int32 `[ceil(n / (32 // bits))]`.
    """
    size, in_a_word = numbers.shape.num_elements(), _WORD // bits
    rows = tf.reshape(tf.pad(numbers, [[0, -size % in_a_word]]), [-1, in_a_word])
    # No two numbers have a bit in common: their sum is their union.
    return tf.reduce_sum(tf.bitwise.left_shift(rows, _places(bits)), axis=1)


def unpacked(words: tf.Tensor, bits: int, size: int) -> tf.Tensor:
    """Inverts `packed`: int32 `[size]`."""
    rows = tf.bitwise.right_shift(words[:, tf.newaxis], _places(bits))
    # A word whose last bit is set is negative, and is filled up with ones when it is shifted.
    rows = tf.bitwise.bitwise_and(rows, 2**bits - 1)
    return tf.reshape(rows, [-1])[:size]


def _places(bits):
    return tf.constant([[bits * i for i in range(_WORD // bits)]], tf.int32)


def _derived(seed, number):
    return tf.random.experimental.stateless_fold_in(seed, number)
