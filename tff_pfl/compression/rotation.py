"""Rotates vectors of any size randomly, in `n log n` operations.

TFF's rotation (`tff.aggregators.HadamardTransformFactory`) pads vectors to a power of two, which
can double the bytes. In this module, `m` is the largest power of two up to `n`. Random signs and
the Hadamard transform rotate the first `m` entries, and then, with other signs, the last `m`
entries. The two parts overlap, so that every entry is spread over many.
"""

import scipy.linalg
import tensorflow as tf

_LARGEST = 64  # The largest side of a Kronecker factor.


def rotated(vector: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Rotates a vector, without changing its size and norm.

    Args:
        vector: float32 `[n]`.
        seed: int32 `[2]`, the seed of the rotation.
    """
    rest, signs = _places(vector, seed)
    end = vector.shape.num_elements() - rest
    vector = tf.concat([hadamard(signs[0] * vector[:end]), vector[end:]], axis=0)
    return tf.concat([vector[:rest], hadamard(signs[1] * vector[rest:])], axis=0)


def rotated_back(vector: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Rotates a vector back, the inverse of `rotated`."""
    rest, signs = _places(vector, seed)
    end = vector.shape.num_elements() - rest
    vector = tf.concat([vector[:rest], signs[1] * hadamard(vector[rest:])], axis=0)
    return tf.concat([signs[0] * hadamard(vector[:end]), vector[end:]], axis=0)


def hadamard(vector: tf.Tensor) -> tf.Tensor:
    """Multiplies a vector by the orthonormal Hadamard matrix, which is its own inverse.

    The matrix is a Kronecker product of small matrices. Each step multiplies the last axis by a
    small matrix and makes it the first axis.

    Args:
        vector: float32 `[n]`, `n` a power of two.
    """
    rest = vector.shape.num_elements()
    while rest > 1:
        side = min(rest, _LARGEST)
        matrix = tf.constant(scipy.linalg.hadamard(side) / side**0.5, vector.dtype)
        rows = tf.matmul(tf.reshape(vector, [-1, side]), matrix)
        vector = tf.reshape(tf.transpose(rows), [-1])
        rest //= side
    return vector


def _places(vector, seed):
    """Returns the number of entries after the first `m`, and the signs of both turns, `[2, m]`."""
    size = vector.shape.num_elements()
    power = 1 << (size.bit_length() - 1)
    drawn = tf.random.stateless_uniform([2, power], seed)
    return size - power, tf.where(drawn < 0.5, -1.0, 1.0)
