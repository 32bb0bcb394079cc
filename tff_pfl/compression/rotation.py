"""Random rotations that take `n log n` operations, of vectors of any size.

TFF's (`tff.aggregators.HadamardTransformFactory`) fill vectors up to a power of two, which could
take twice the bytes. Here, with `m` the largest power of two that is at most `n`, random signs are
followed by the Hadamard transform of the first `m` entries, and by that of the last `m`: each is a
rotation, and they overlap.
"""

import tensorflow as tf


def rotated(vector: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """A vector of the same size and length, turned.

    Args:
        vector: float32 `[n]`.
        seed: int32 `[2]`, which determines the rotation.
    """
    size = vector.shape.num_elements()
    power = _power_of_two(size)
    vector = _signs(size, seed) * vector
    vector = tf.concat([hadamard(vector[:power]), vector[power:]], axis=0)
    if power == size:
        return vector
    return tf.concat([vector[: size - power], hadamard(vector[size - power :])], axis=0)


def rotated_back(vector: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """The inverse of `rotated`."""
    size = vector.shape.num_elements()
    power = _power_of_two(size)
    if power < size:
        last = hadamard(vector[size - power :])
        vector = tf.concat([vector[: size - power], last], axis=0)
    vector = tf.concat([hadamard(vector[:power]), vector[power:]], axis=0)
    return _signs(size, seed) * vector


def hadamard(vector: tf.Tensor) -> tf.Tensor:
    """The product with the orthonormal Hadamard matrix, which is its own inverse.

    Args:
        vector: float32 `[n]`, `n` a power of two.
    """
    size = distance = vector.shape.num_elements()
    while distance > 1:
        distance //= 2
        pairs = tf.reshape(vector, [-1, 2, distance])
        first, second = pairs[:, 0], pairs[:, 1]
        vector = tf.stack([first + second, first - second], axis=1)
    return tf.reshape(vector, [size]) / size**0.5


def _power_of_two(size):
    """The largest one that is at most `size`."""
    return 1 << (size.bit_length() - 1)


def _signs(size, seed):
    return tf.where(tf.random.stateless_uniform([size], seed) < 0.5, -1.0, 1.0)
