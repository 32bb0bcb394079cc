"""A number for each pair of clients, kept for those pairs alone that met."""

from typing import NamedTuple

import tensorflow as tf

from tff_pfl.local import trees

_END = tf.int64.max


class Pairs(NamedTuple):
    """Of `p` ordered pairs `(i, j)` of `N` clients a number each; all other pairs have one number.

    Attributes:
        keys: int64 `[p + 1]`, ascending: `N i + j`, and after them the largest int64.
        values: float32 `[p + 1]`: theirs, and after them that of all other pairs.
    """

    keys: tf.Tensor
    values: tf.Tensor


def no_pairs(value: float) -> Pairs:
    """All pairs have the same number."""
    return Pairs(
        tf.concat([trees.no_rows([], tf.int64), [_END]], axis=0),
        tf.concat([trees.no_rows([], tf.float32), [value]], axis=0),
    )


def get_pairs(pairs: Pairs, num_clients: int, i: tf.Tensor, j: tf.Tensor) -> tf.Tensor:
    """The numbers of all `(i, j)`: float32 `[len(i), len(j)]`."""
    keys = _keys(num_clients, i, j)
    at, met = _find(pairs, tf.reshape(keys, [-1]))
    values = tf.gather(pairs.values, tf.where(met, at, tf.size(pairs.keys) - 1))
    return tf.reshape(values, tf.shape(keys))


def put_pairs(
    pairs: Pairs, num_clients: int, i: tf.Tensor, j: tf.Tensor, values: tf.Tensor
) -> Pairs:
    """With other numbers of all `(i, j)`: float32 `[len(i), len(j)]`; ids are not repeated."""
    rows, columns = tf.argsort(i), tf.argsort(j)
    keys = tf.reshape(_keys(num_clients, tf.gather(i, rows), tf.gather(j, columns)), [-1])
    values = tf.reshape(tf.gather(tf.gather(values, rows), columns, axis=1), [-1])
    at, met = _find(pairs, keys)
    known = tf.tensor_scatter_nd_update(
        pairs.values, tf.boolean_mask(at, met)[:, tf.newaxis], tf.boolean_mask(values, met)
    )
    # New ones go before those that they were found at, which all of them move back.
    new, at = ~met, tf.boolean_mask(at, ~met)
    before = tf.cumsum(tf.math.unsorted_segment_sum(tf.ones_like(at), at, tf.size(pairs.keys)))
    places = [tf.range(tf.size(before)) + before, at + tf.range(tf.size(at))]
    return Pairs(
        tf.dynamic_stitch(places, [pairs.keys, tf.boolean_mask(keys, new)]),
        tf.dynamic_stitch(places, [known, tf.boolean_mask(values, new)]),
    )


def matrix_of_pairs(pairs: Pairs, num_clients: int) -> tf.Tensor:
    """All numbers: float32 `[num_clients, num_clients]`."""
    others = tf.fill([num_clients**2], pairs.values[-1])
    matrix = tf.tensor_scatter_nd_update(others, pairs.keys[:-1, tf.newaxis], pairs.values[:-1])
    return tf.reshape(matrix, [num_clients, num_clients])


def _keys(num_clients, i, j):
    return num_clients * tf.cast(i, tf.int64)[:, tf.newaxis] + tf.cast(j, tf.int64)


def _find(pairs, keys):
    """Where keys are, or would be; and whether they are there."""
    at = tf.searchsorted(pairs.keys, keys)
    return at, tf.equal(tf.gather(pairs.keys, at), keys)
