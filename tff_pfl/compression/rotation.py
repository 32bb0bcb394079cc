"""Random rotations of vectors of any size, in `n log n` operations.

TFF's (`tff.aggregators.HadamardTransformFactory`) pad vectors to a power of two, which could take
twice the bytes. Here, with `m` the largest power of two up to `n`, random signs and the Hadamard
transform rotate the first `m` entries, and then, with other signs, the last `m`. These overlap, so
that every entry is spread over many.
"""

import scipy.linalg
import tensorflow as tf

_LARGEST = 64  # of the small matrices


def rotated(vector: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Rotates a vector, which keeps its size and length.

    Args:
        vector: float32 `[n]`.
        seed: int32 `[2]`, which determines the rotation.
    """
    rest, signs = _places(vector, seed)
    end = vector.shape.num_elements() - rest
    vector = tf.concat([hadamard(signs[0] * vector[:end]), vector[end:]], axis=0)
    return tf.concat([vector[:rest], hadamard(signs[1] * vector[rest:])], axis=0)


def rotated_back(vector: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Inverts `rotated`."""
    rest, signs = _places(vector, seed)
    end = vector.shape.num_elements() - rest
    vector = tf.concat([vector[:rest], signs[1] * hadamard(vector[rest:])], axis=0)
    return tf.concat([signs[0] * hadamard(vector[:end]), vector[end:]], axis=0)


def hadamard(vector: tf.Tensor) -> tf.Tensor:
    """Multiplies by the orthonormal Hadamard matrix, which is its own inverse.

    That matrix is the Kronecker product of small ones. Each is multiplied with the last axis of the
    rest, which then becomes the first.

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
    """Returns how many entries come after the first `m`, and the signs of both turns, `[2, m]`."""
    size = vector.shape.num_elements()
    power = 1 << (size.bit_length() - 1)
    drawn = tf.random.stateless_uniform([2, power], seed)
    return size - power, tf.where(drawn < 0.5, -1.0, 1.0)
