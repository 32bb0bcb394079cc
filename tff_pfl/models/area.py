"""Computes the area under the receiver operating characteristic, of sums that add up.

Scores are counted in ordered bins, and again in two tables of cells, where a score falls into the
cell of a hash of its bits. A cell that has only one score tells it; without this score, a cell of
the other table may tell another one. Pairs of examples in different bins are ordered by the bins,
and the share of ordered pairs in one bin is that of the scores that cells tell, or else one half.
So the area of few examples is exact, and that of many has the small error of the bins.
"""

from typing import Any

import tensorflow as tf

# Scores below 1 / _FINEST share a bin, and those beyond _LARGEST share the outermost ones.
_FINEST, _LARGEST = 512.0, 8192.0
_FACTORS, _PRIME = (1_640_531_527, 1_540_483_477, 1_183_186_591), 4_294_967_291
_CHECKS = 1024
_PASSES = (0, 1, 0, 1)  # over the two tables
_DOUBT = 8.0  # pairs of one half that stand for those of untold scores
_ROUNDING = 1e-3  # of codes, which are integers


def area_sums(positive: Any, scores: Any, weight: Any, size: int) -> Any:
    """Returns the sums of a batch for `area`.

    Args:
        positive: bool `[batch, labels]`.
        scores: float32 `[batch, labels]`; larger scores are more likely to be positive.
        weight: float32 `[batch]`, 0 for padding.
        size: The number of bins of each label. There are a quarter as many cells in each table.

    Returns:
        The weights of positives and of negatives in bins, float32 `[labels, size]`; and for each
        table the same in cells, float32 `[labels, size // 4]`, and the sums of the cells' codes,
        float64, which are the scores as integers.
    """
    is_row = weight[:, tf.newaxis] > 0.0
    scores = tf.where(tf.logical_and(is_row, ~tf.math.is_nan(scores)), scores, 0.0)
    keys, places = _keys(scores), _bins(scores, size)
    numbers = [
        tf.where(condition, weight[:, tf.newaxis], 0.0) for condition in (positive, ~positive)
    ]
    binned = [_added(number, places, size) for number in numbers]
    return tuple(binned), tuple(_table(keys, *numbers, size // 4, i) for i in (0, 1))


def area(sums: Any) -> tuple[Any, Any]:
    """Returns the area of each label, float32 `[labels]`, and whether it is defined."""
    (positives, negatives), tables = sums
    size = positives.shape[-1]
    keys, *told = _told(list(tables))
    order = tf.argsort(keys, axis=0)
    keys, *told = (_taken(it, order) for it in (keys, *told))
    bins = _bins(_scores(keys), size)
    ordered = _added(_ordered(*told, bins, size), bins, size)
    pairs = _added(told[0], bins, size) * _added(told[1], bins, size)
    doubt = _DOUBT * (1 - tf.math.divide_no_nan(pairs, positives * negatives))
    share = tf.math.divide_no_nan(ordered + doubt / 2, pairs + doubt)
    above = tf.cumsum(positives, axis=-1, exclusive=True, reverse=True)
    ordered = tf.reduce_sum(negatives * (above + positives * share), axis=-1)
    pairs = tf.reduce_sum(positives, axis=-1) * tf.reduce_sum(negatives, axis=-1)
    return tf.math.divide_no_nan(ordered, pairs), pairs > 0.0


def _told(tables):
    """Returns the scores that cells tell: keys, and weights of positives and of negatives.

    Each is `[scores, labels]`; cells that tell none have weights of 0.
    """
    found = []
    for index in _PASSES:
        own = [tf.transpose(leaf) for leaf in tables[index]]
        keys, *numbers = _single(*own, index)
        found.append((keys, *numbers))
        for i, table in enumerate(tables):
            known = _table(keys, *numbers, table[0].shape[-1], i)
            tables[i] = tuple(a - b for a, b in zip(table, known, strict=True))
    return [tf.concat(leaves, 0) for leaves in zip(*found, strict=True)]


def _single(positives, negatives, total, index):
    """Returns the key of each cell `[cells, labels]`, and its weights, 0 if it has other keys."""
    cells = positives.shape[0]
    mean = tf.math.divide_no_nan(total, tf.cast(positives + negatives, tf.float64))
    keys = tf.math.floordiv(tf.cast(tf.round(mean), tf.int64), _CHECKS)
    # The mean of several codes is hardly the code of a key, and of one that belongs to this cell.
    is_own = tf.equal(_hashed(keys, cells, index), tf.range(cells, dtype=tf.int64)[:, tf.newaxis])
    is_code = tf.abs(mean - tf.cast(_codes(keys), tf.float64)) < _ROUNDING
    is_number = tf.minimum(positives, negatives) >= 0.0
    is_single = tf.reduce_all(tf.stack([is_own, is_code, is_number]), axis=0)
    return tuple(
        tf.where(is_single, it, tf.zeros([], it.dtype)) for it in (keys, positives, negatives)
    )


def _table(keys, positives, negatives, size, index):
    """Returns a table of the keys: weights of positives and of negatives, and sums of codes."""
    cells = tf.cast(_hashed(keys, size, index), tf.int32)
    total = tf.cast(positives + negatives, tf.float64) * tf.cast(_codes(keys), tf.float64)
    return tuple(_added(values, cells, size) for values in (positives, negatives, total))


def _added(values, places, size):
    """Adds values `[rows, labels]` at their places: `[labels, size]`."""
    labels = values.shape[-1]
    places = places + size * tf.range(labels)
    return tf.reshape(tf.math.unsorted_segment_sum(values, places, size * labels), [labels, size])


def _taken(values, order):
    """Returns each column in its own order."""
    return tf.transpose(tf.gather(tf.transpose(values), tf.transpose(order), batch_dims=1))


def _ordered(positives, negatives, bins, size):
    """Returns the pairs of sorted scores with a negative below in the same bin; ties count half."""
    labels = positives.shape[-1]
    places = bins + size * tf.range(labels)
    below = tf.cumsum(negatives, axis=0, exclusive=True)
    before = tf.gather(tf.math.unsorted_segment_min(below, places, size * labels), places)
    return positives * (below - before + negatives / 2)


def _bins(scores, size):
    """Returns the bin of each score, of equal width in the inverse hyperbolic sine."""
    largest = tf.asinh(_FINEST * _LARGEST)
    share = tf.asinh(_FINEST * tf.clip_by_value(scores, -_LARGEST, _LARGEST)) / largest
    return tf.cast((share + 1) / 2 * (size - 1) + 0.5, tf.int32)


def _hashed(keys, size, index):
    """Returns int64 below the size: the cell of each key in a table, or with index 2 its check."""
    return tf.math.floordiv(tf.math.floormod(keys * _FACTORS[index], _PRIME) * size, _PRIME)


def _codes(keys):
    """Returns each key followed by its check, int64."""
    return keys * _CHECKS + _hashed(keys, _CHECKS, 2)


def _keys(scores):
    """Returns int64 in the order of float32 scores, the negative ones below 0."""
    bits = tf.cast(tf.bitcast(tf.abs(scores), tf.int32), tf.int64)
    return tf.where(scores < 0.0, -bits, bits)


def _scores(keys):
    """Returns the float32 scores of `_keys`."""
    bits = tf.bitcast(tf.cast(tf.abs(keys), tf.int32), tf.float32)
    return tf.where(keys < 0, -bits, bits)
