"""Small whole numbers in words of 32 bits."""

import tensorflow as tf

_WORD = 32  # bits


def packed(numbers: tf.Tensor, bits: int) -> tf.Tensor:
    """Whole numbers side by side in words, the first one in the lowest bits.

    Args:
        numbers: int32 `[n]`, from 0 to `2^bits - 1`.
        bits: Of each, 1 to 16.

    Returns:
        int32 `[ceil(n / (32 // bits))]`.
    """
    size, in_a_word = numbers.shape.num_elements(), _WORD // bits
    rows = tf.reshape(tf.pad(numbers, [[0, -size % in_a_word]]), [-1, in_a_word])
    # No two of them have a bit in common: their sum is their union.
    return tf.reduce_sum(tf.bitwise.left_shift(rows, _places(bits)), axis=1)


def unpacked(words: tf.Tensor, bits: int, size: int) -> tf.Tensor:
    """The inverse of `packed`: int32 `[size]`."""
    rows = tf.bitwise.right_shift(words[:, tf.newaxis], _places(bits))
    # A word whose last bit is set is negative, and is filled up with ones from there.
    rows = tf.bitwise.bitwise_and(rows, 2**bits - 1)
    return tf.reshape(rows, [-1])[:size]


def _places(bits):
    return tf.constant([[bits * i for i in range(_WORD // bits)]], tf.int32)
