"""A matrix over pairs of clients in which most entries have one common value."""

from typing import NamedTuple

import tensorflow as tf

from tff_pfl.local import trees
from tff_pfl.numerics.host import on_host

_END = tf.int64.max


class SparseMatrix(NamedTuple):
    """An `[N, N]` matrix in which `p` entries `(i, j)` were set; all others share one value.

    Attributes:
        keys: int64 `[p + 1]`, ascending: `N i + j` of the set entries, then the largest int64.
        values: float32 `[p + 1]`: the set entries, then the value of all others.
    """

    keys: tf.Tensor
    values: tf.Tensor


def constant(value: float) -> SparseMatrix:
    """Makes a matrix whose entries all have one value."""
    return SparseMatrix(
        tf.concat([trees.no_rows([], tf.int64), [_END]], axis=0),
        tf.concat([trees.no_rows([], tf.float32), [value]], axis=0),
    )


def get_entries(matrix: SparseMatrix, num_clients: int, i: tf.Tensor, j: tf.Tensor) -> tf.Tensor:
    """Returns the entries of all `(i, j)`: float32 `[len(i), len(j)]`."""
    keys = _keys(num_clients, i, j)
    at, exists = _find(matrix, tf.reshape(keys, [-1]))
    values = tf.gather(matrix.values, tf.where(exists, at, tf.size(matrix.keys) - 1))
    return tf.reshape(values, tf.shape(keys))


@on_host()
def put_entries(
    matrix: SparseMatrix, num_clients: int, i: tf.Tensor, j: tf.Tensor, values: tf.Tensor
) -> SparseMatrix:
    """Sets the entries of all `(i, j)` to float32 `[len(i), len(j)]`; ids must be distinct."""
    rows, columns = tf.argsort(i), tf.argsort(j)
    keys = tf.reshape(_keys(num_clients, tf.gather(i, rows), tf.gather(j, columns)), [-1])
    values = tf.reshape(tf.gather(tf.gather(values, rows), columns, axis=1), [-1])
    at, exists = _find(matrix, keys)
    known = tf.tensor_scatter_nd_update(
        matrix.values, tf.boolean_mask(at, exists)[:, tf.newaxis], tf.boolean_mask(values, exists)
    )
    # New keys are inserted before the keys at which they were found, which move back.
    new, at = ~exists, tf.boolean_mask(at, ~exists)
    before = tf.cumsum(tf.math.unsorted_segment_sum(tf.ones_like(at), at, tf.size(matrix.keys)))
    places = [tf.range(tf.size(before)) + before, at + tf.range(tf.size(at))]
    return SparseMatrix(
        tf.dynamic_stitch(places, [matrix.keys, tf.boolean_mask(keys, new)]),
        tf.dynamic_stitch(places, [known, tf.boolean_mask(values, new)]),
    )


def dense(matrix: SparseMatrix, num_clients: int) -> tf.Tensor:
    """Returns all entries: float32 `[num_clients, num_clients]`."""
    others = tf.fill([num_clients**2], matrix.values[-1])
    entries = tf.tensor_scatter_nd_update(others, matrix.keys[:-1, tf.newaxis], matrix.values[:-1])
    return tf.reshape(entries, [num_clients, num_clients])


def _keys(num_clients, i, j):
    return num_clients * tf.cast(i, tf.int64)[:, tf.newaxis] + tf.cast(j, tf.int64)


def _find(matrix, keys):
    """Returns the positions of keys, or those at which to insert them, and which keys exist."""
    at = tf.searchsorted(matrix.keys, keys)
    return at, tf.equal(tf.gather(matrix.keys, at), keys)
