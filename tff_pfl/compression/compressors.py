"""Compressors by name."""

import math
from typing import NamedTuple

import tensorflow as tf

from tff_pfl.compression.compressor import COMPRESSORS, Compressor
from tff_pfl.compression.packing import packed, unpacked
from tff_pfl.compression.rotation import rotated, rotated_back
from tff_pfl.names import check_names
from tff_pfl.ranges import between, takes, whole

PRECISIONS = ("bfloat16", "float16")
# Of the seed of a message, the numbers that it is turned by, and those that it is rounded by.
_ROTATION, _ROUNDING = 0, 1


@COMPRESSORS.register("half")
def half(*, precision: str = "bfloat16") -> Compressor:
    """Numbers of 16 bits: half of the bytes.

    Args:
        precision: "bfloat16", with 8 significant bits and the range of float32; or "float16", with
            11 bits and numbers up to 65504: a client that sends a larger one is left out.
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
        indices: int32 `[k]`, where they are; all others are 0.
    """

    values: tf.Tensor
    indices: tf.Tensor


@COMPRESSORS.register("top_k")
@takes(share=between(0, 1))
def top_k(*, share: float = 0.1) -> Compressor:
    """The entries with the largest magnitudes of the whole upload: 8 bytes each.

    (Aji and Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017; Stich et
    al., "Sparsified SGD with memory", NeurIPS 2018.) What is left out is lost, unless there is
    error feedback.

    Args:
        share: Of all entries, rounded up, but one at least; 1 loses nothing, and takes twice the
            bytes.
    """

    def encode(vector, seed):
        del seed
        # Of 0.07 * 100, which is more than 7 in floating point, 7.
        number = max(1, math.ceil(share * vector.shape.num_elements() - 1e-9))
        indices = tf.math.top_k(tf.abs(vector), number).indices
        return Sparse(tf.gather(vector, indices), indices)

    def decode(message, size):
        return tf.scatter_nd(message.indices[:, tf.newaxis], message.values, [size])

    return Compressor(encode, decode, is_contraction=True)


class Quantized(NamedTuple):
    """A vector of whole numbers, and the line that they are on.

    Attributes:
        words: int32 `[m]`, of which each has as many whole numbers as fit.
        lowest: float32 scalar, what 0 stands for.
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
    """Stochastic uniform quantization, of a vector that is turned at random before.

    An entry becomes one of the `2^bits` numbers in equal steps from the lowest to the highest
    entry: one of its two neighbours, the nearer one more often, so that its expectation is the
    entry itself. The error of each is less than a step. (Suresh et al., "Distributed mean
    estimation with limited communication", ICML 2017.) A word of 32 bits has `32 // bits` entries;
    8 bytes more are the lowest number and the step, 8 the seed of the rotation, where there is one.

    Args:
        bits: An entry.
        rotation: Whether the vector is turned, see `rotated`: entries then have much the same
            magnitude, whatever layer they are from. Else a few large entries make all steps large.
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


def _derived(seed, number):
    return tf.random.experimental.stateless_fold_in(seed, number)
