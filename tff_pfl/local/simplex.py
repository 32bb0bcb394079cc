"""Projects onto the unit simplex: non-negative numbers that add up to 1."""

import tensorflow as tf


def project_to_simplex(rows: tf.Tensor) -> tf.Tensor:
    """Projects each row onto the unit simplex.

    The result is `max(row - t, 0)`, where `t` makes the sum 1 (Held, Wolfe and Crowder, "Validation
    of subgradient optimization", Mathematical Programming, 1974).

    Args:
        rows: `[k, B]`.
    """
    rows -= tf.reduce_max(rows, axis=-1, keepdims=True)  # Only shifts t, for more precise sums.
    descending = tf.math.top_k(rows, k=rows.shape[-1]).values
    counts = tf.range(1, rows.shape[-1] + 1, dtype=rows.dtype)
    # thresholds[count - 1] is t if exactly the `count` largest entries stay positive. The right
    # count is the one with the largest threshold.
    thresholds = (tf.cumsum(descending, axis=-1) - 1) / counts
    return tf.nn.relu(rows - tf.reduce_max(thresholds, axis=-1, keepdims=True))
