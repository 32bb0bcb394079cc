"""Computes distances between rows."""

import tensorflow as tf


def squared_distances(rows: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    """Computes `||a||^2 + ||b||^2 - 2 a b`, the squared distances between rows, `[n, m]`.

    It needs no memory for all differences, but cancellation leaves an error of about
    `1e-7 ||a||^2`. Results are not negative.

    Args:
        rows: float32 `[n, d]`.
        others: float32 `[m, d]`.
    """
    lengths, other_lengths = (tf.reduce_sum(tf.square(of), axis=-1) for of in (rows, others))
    products = tf.matmul(rows, others, transpose_b=True)
    return tf.nn.relu(lengths[:, tf.newaxis] + other_lengths - 2.0 * products)
