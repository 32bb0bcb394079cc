"""The unit simplex: numbers that are not negative and add up to 1."""

import tensorflow as tf


def project_to_simplex(rows: tf.Tensor) -> tf.Tensor:
    """Projects each row onto the unit simplex.

    The result is `max(row - t, 0)` with the `t` that makes it add up to 1 (Held, Wolfe and Crowder,
    "Validation of subgradient optimization", Mathematical Programming, 1974).

    Args:
        rows: `[k, B]`.
    """
    rows -= tf.reduce_max(rows, axis=-1, keepdims=True)  # changes t alone, and sums keep digits
    descending = tf.math.top_k(rows, k=rows.shape[-1]).values
    counts = tf.range(1, rows.shape[-1] + 1, dtype=rows.dtype)
    # t if the `count` largest entries are those that stay positive; it is the largest of these.
    thresholds = (tf.cumsum(descending, axis=-1) - 1) / counts
    return tf.nn.relu(rows - tf.reduce_max(thresholds, axis=-1, keepdims=True))
