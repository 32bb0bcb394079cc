"""Computes the area under the receiver operating characteristic, of sums that add up.

Scores are counted in ordered bins, which are narrow for small scores and of equal width relative to
large ones. A positive and a negative in different bins are ordered by the bins. In one bin, the
share of ordered pairs is that of normal distributions with the means and variances of its positives
and negatives, so a bin with one score of each is exact.
"""

from typing import Any

import tensorflow as tf

# Bins are of equal width below 1 / _FINEST. Scores beyond _LARGEST share the outermost ones.
_FINEST, _LARGEST = 131_072.0, 8192.0
_TIE = 1e-9  # squared widths of a bin; scores that differ by less count as equal


def area_sums(positive: Any, scores: Any, weight: Any, size: int) -> Any:
    """Returns the sums of a batch for `area`.

    Args:
        positive: bool `[batch, labels]`.
        scores: float32 `[batch, labels]`; larger scores are more likely to be positive.
        weight: float32 `[batch]`, 0 for padding.
        size: The number of bins of each label.

    Returns:
        For positives and for negatives, float32 `[labels, size, 3]`: the weight in each bin, and
        the weighted sums of the scores' places in their bin, from -0.5 to 0.5, and of the squares.
    """
    is_row = weight[:, tf.newaxis] > 0.0
    scores = tf.where(tf.logical_and(is_row, ~tf.math.is_nan(scores)), scores, 0.0)
    share = tf.asinh(_FINEST * tf.clip_by_value(scores, -_LARGEST, _LARGEST))
    places = (share / tf.asinh(_FINEST * _LARGEST) + 1) / 2 * (size - 1)
    bins = tf.round(places)
    powers = tf.stack([tf.ones_like(places), places - bins, tf.square(places - bins)], axis=-1)
    labels = scores.shape[-1]
    cells = tf.cast(bins, tf.int32) + size * tf.range(labels)

    def added(condition):
        own = tf.where(condition, weight[:, tf.newaxis], 0.0)[..., tf.newaxis] * powers
        found = tf.math.unsorted_segment_sum(own, cells, size * labels)
        return tf.reshape(found, [labels, size, 3])

    return added(positive), added(~positive)


def area(sums: Any) -> tuple[Any, Any]:
    """Returns the area of each label, float32 `[labels]`, and whether it is defined."""
    (positives, mean, variance), (negatives, other_mean, other_variance) = map(_moments, sums)
    distance = (mean - other_mean) / tf.sqrt(variance + other_variance + _TIE)
    share = (1 + tf.math.erf(distance / tf.sqrt(2.0))) / 2
    above = tf.cumsum(positives, axis=-1, exclusive=True, reverse=True)
    ordered = tf.reduce_sum(negatives * (above + positives * share), axis=-1)
    pairs = tf.reduce_sum(positives, axis=-1) * tf.reduce_sum(negatives, axis=-1)
    return tf.math.divide_no_nan(ordered, pairs), pairs > 0.0


def _moments(sums):
    """Returns the weights in bins, and the means and variances of the places there."""
    weight, total, squares = tf.unstack(sums, axis=-1)
    mean = tf.math.divide_no_nan(total, weight)
    return weight, mean, tf.nn.relu(tf.math.divide_no_nan(squares, weight) - tf.square(mean))
