"""Computes the area under the receiver operating characteristic, of sums that add up.

Scores are counted in ordered bins, which are narrow for small scores and of equal width relative to
large ones, up to 8,192. An eighth as many bins on each side are for scores beyond, and grow wider,
up to the largest float32. A positive and a negative in different bins are ordered by the bins. In
one bin, the share of ordered pairs is that of normal distributions with the means and variances of
its positives and negatives, so a bin with one score of each is exact.
"""

import math
from typing import Any

import tensorflow as tf

# Bins are of equal width below 1 / _FINEST. Scores beyond _LARGEST are in the outer bins.
_FINEST, _LARGEST = 131_072.0, 8192.0
_GROWTH = 5.0  # in nats; the first outer bins are as wide as the last inner ones
_TIE = 1e-9  # squared widths of a bin; scores that differ by less count as equal


def area_sums(positive: Any, scores: Any, weight: Any, size: int) -> Any:
    """Returns the sums of a batch for `area`.

    Args:
        positive: bool `[batch, labels]`.
        scores: float32 `[batch, labels]`; larger scores are more likely to be positive.
        weight: float32 `[batch]`, 0 for padding.
        size: The number of bins of each label.

    Returns:
        For positives and for negatives, float32 `[labels, bins, 3]`: the weight in each bin, and
        the weighted sums of the scores' places in their bin, from -0.5 to 0.5, and of the squares.
        Beside the `size` bins there are the outer ones.
    """
    is_row = weight[:, tf.newaxis] > 0.0
    scores = tf.where(tf.logical_and(is_row, ~tf.math.is_nan(scores)), scores, 0.0)
    # In float32, places could not tell scores of 60 that differ by less than 1e-4 apart.
    precise = tf.cast(tf.clip_by_value(scores, -_LARGEST, _LARGEST), tf.float64)
    share = tf.asinh(_FINEST * precise) / math.asinh(_FINEST * _LARGEST)
    places = (share + 1) / 2 * (size - 1)
    nearest = tf.round(places)
    bins, within = (tf.cast(it, tf.float32) for it in (nearest, places - nearest))
    outer = _num_outer(size)
    beyond, side = _outer_places(tf.abs(scores), outer), tf.sign(scores)
    outer_bins = tf.minimum(tf.floor(beyond), outer - 1.0)
    is_beyond = tf.abs(scores) > _LARGEST
    within = tf.where(is_beyond, side * (beyond - outer_bins - 0.5), within)
    bins = tf.where(is_beyond, bins + side * (outer_bins + 1.0), bins) + float(outer)
    powers = tf.stack([tf.ones_like(within), within, tf.square(within)], axis=-1)
    labels, number = scores.shape[-1], size + 2 * outer
    cells = tf.cast(bins, tf.int32) + number * tf.range(labels)

    def added(condition):
        own = tf.where(condition, weight[:, tf.newaxis], 0.0)[..., tf.newaxis] * powers
        found = tf.math.unsorted_segment_sum(own, cells, number * labels)
        return tf.reshape(found, [labels, number, 3])

    return added(positive), added(~positive)


def _num_outer(size: int) -> int:
    return max(1, size // 8)


def _outer_places(size, number):
    """Returns the places of absolute scores among the outer bins, from 0 to `number`."""
    nats = tf.math.log(tf.clip_by_value(size, _LARGEST, tf.float32.max) / _LARGEST)
    most = math.log(tf.float32.max / _LARGEST)
    return number * nats / (nats + _GROWTH) * ((most + _GROWTH) / most)


def area(sums: Any, size: int) -> tuple[Any, Any]:
    """Returns the area of each label, float32 `[labels]`, and whether it is defined.

    Args:
        sums: The sums of `area_sums`.
        size: The number of bins of each label there.
    """
    ordered, positives, negatives = 0.0, 0.0, 0.0
    outer = _num_outer(size)
    for part in zip(*(tf.split(leaf, [outer, size, outer], axis=1) for leaf in sums), strict=True):
        own, more_positives, more_negatives = _ordered(part)
        ordered += own + negatives * more_positives
        positives, negatives = positives + more_positives, negatives + more_negatives
    pairs = positives * negatives
    return tf.math.divide_no_nan(ordered, pairs), pairs > 0.0


def _ordered(sums):
    """Returns the weights of the ordered pairs in some bins, of the positives and negatives."""
    (positives, mean, variance), (negatives, other_mean, other_variance) = map(_moments, sums)
    distance = (mean - other_mean) / tf.sqrt(variance + other_variance + _TIE)
    share = (1 + tf.math.erf(distance / tf.sqrt(2.0))) / 2
    above = tf.cumsum(positives, axis=-1, exclusive=True, reverse=True)
    ordered = tf.reduce_sum(negatives * (above + positives * share), axis=-1)
    return ordered, tf.reduce_sum(positives, axis=-1), tf.reduce_sum(negatives, axis=-1)


def _moments(sums):
    """Returns the weights in bins, and the means and variances of the places there."""
    weight, total, squares = tf.unstack(sums, axis=-1)
    mean = tf.math.divide_no_nan(total, weight)
    return weight, mean, tf.nn.relu(tf.math.divide_no_nan(squares, weight) - tf.square(mean))
