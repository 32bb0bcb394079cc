"""The point of a convex hull that is nearest to the origin, from inner products alone.

With `P = Q^T Q` for columns `q_1 .. q_k`:

    lambda* = argmin 1/2 lambda^T P lambda     with lambda >= 0, sum lambda = 1

`x = Q lambda*` is the only point with `q_j . x >= ||x||^2` for every column, equal where
`lambda*_j > 0`: if it is not 0, `-x` descends along every column.

The method is that of Wolfe, "Finding the nearest point in a polytope", Mathematical Programming,
1976. It keeps a set of columns, moves to the minimiser of its affine hull or, where that lies
outside of the convex hull, to the first face on the way there, which drops a column; and takes in a
column that the point can be improved by, until there is none. The minimiser of an affine hull is
`M^-1 1 / (1^T M^-1 1)` with `M = P + 1 1^T`, restricted to the set. Its inverse is changed by a
matrix of rank one when a column comes or goes: k^2 operations a step, all of a fixed shape.
"""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

_ROUNDING = 1e-13  # of inner products, relative to the norms of their factors
_DEPENDENT = 1e-14  # squared distance from the span of the others, relative to the squared norm
_STEPS_PER_COLUMN = 20  # far above what is needed; the bound that a loop needs to end


class _Search(NamedTuple):
    """The state of the search.

    Attributes:
        step: int32 scalar, of steps done.
        done: bool scalar.
        weights: float64 `[k]`, the convex combination so far, 0 outside of the set.
        chosen: bool `[k]`, the set of columns.
        inverse: float64 `[k, k]`, that of `M` on the set, of the unit matrix outside of it.
        blocked: bool `[k]`, columns which cannot be told from combinations of the set's.
        squared_norm: float64 scalar, of the last minimiser in the convex hull.
    """

    step: Any
    done: Any
    weights: Any
    chosen: Any
    inverse: Any
    blocked: Any
    squared_norm: Any


def min_norm_weights(gram: tf.Tensor, valid: tf.Tensor | None = None) -> tf.Tensor:
    """The weights of the min-norm point of the convex hull of columns.

    Columns may be zero, equal, dependent, opposite, and of very different norms; there may be more
    of them than dimensions. The result is a convex combination in any case. It can be vectorized,
    and compiled for a fixed `k`.

    Args:
        gram: `[k, k]`, the inner products of the columns, finite; symmetric up to rounding.
        valid: bool `[k]`, which columns there are; default all. The others get weight 0.

    Returns:
        float64 `[k]`, not negative, with the sum 1; 0 if no column is valid.
    """
    gram = tf.cast(gram, tf.float64)
    num_columns = tf.shape(gram)[0]
    valid = tf.ones([num_columns], tf.bool) if valid is None else valid
    gram = tf.where(_both(valid), 0.5 * (gram + tf.transpose(gram)), 0.0)
    squared_norms = tf.maximum(tf.linalg.diag_part(gram), 0.0)
    # All is measured in the smallest column, whose norm no solution exceeds.
    least = tf.reduce_min(tf.where(valid & (squared_norms > 0.0), squared_norms, np.inf))
    unit = tf.where(tf.math.is_finite(least), least, 1.0)
    gram, norms = gram / unit, tf.sqrt(squared_norms / unit)
    shifted = gram + 1.0

    first = _one_hot(tf.argmin(tf.where(valid, norms, np.inf)), num_columns)
    start = _Search(
        step=tf.constant(0),
        done=tf.logical_not(tf.reduce_any(valid)),
        weights=tf.where(first, tf.cast(valid, tf.float64), 0.0),
        chosen=first,
        inverse=tf.where(
            _both(first), 1.0 / _nonzero(shifted), tf.eye(num_columns, dtype=tf.float64)
        ),
        blocked=tf.zeros_like(first),
        squared_norm=tf.constant(np.inf, tf.float64),
    )

    zero = tf.constant(0.0, tf.float64)

    def step(search: _Search) -> tuple[_Search]:
        target = _affine_minimiser(shifted, search)
        outside = search.chosen & (target <= 0.0)
        is_outside = tf.reduce_any(outside)

        # Towards the target, until the first weight is 0.
        lengths = tf.where(outside, search.weights / _nonzero(search.weights - target), np.inf)
        length = tf.clip_by_value(tf.reduce_min(lengths), 0.0, 1.0)
        on_face = search.weights + length * (target - search.weights)
        leaving = _one_hot(tf.argmin(lengths), num_columns)

        # At the target: which column can improve it most?
        products = tf.linalg.matvec(gram, target)
        squared_norm = tf.reduce_sum(target * products)
        rounding = _ROUNDING * norms * tf.reduce_sum(tf.abs(target) * norms)
        violation = tf.where(
            valid & ~search.chosen & ~search.blocked & (products < squared_norm - rounding),
            (squared_norm - products) / tf.maximum(norms, 1e-300),
            -np.inf,
        )
        entering = _one_hot(tf.argmax(violation), num_columns)
        improves = squared_norm < search.squared_norm  # always, without rounding
        done = ~is_outside & ~(improves & tf.reduce_any(violation > 0.0))
        grown, is_independent = _grow(search.inverse, shifted, search.chosen, entering)
        enters = ~is_outside & ~done & is_independent

        weights = tf.where(is_outside, tf.where(leaving, zero, tf.maximum(on_face, zero)), target)
        inverse = tf.where(is_outside, _shrink(search.inverse, leaving), search.inverse)
        return (
            _Search(
                step=search.step + 1,
                done=done,
                weights=weights,
                chosen=(search.chosen & ~(is_outside & leaving)) | (enters & entering),
                inverse=tf.where(enters, grown, inverse),
                blocked=tf.where(
                    is_outside | enters, tf.zeros_like(first), search.blocked | (~done & entering)
                ),
                squared_norm=tf.where(is_outside | ~enters, search.squared_norm, squared_norm),
            ),
        )

    bound = _STEPS_PER_COLUMN * (num_columns + 5)
    (end,) = tf.while_loop(lambda search: ~search.done & (search.step < bound), step, (start,))
    weights = tf.maximum(end.weights, 0.0)
    return weights / tf.maximum(tf.reduce_sum(weights), 1e-300)


def min_norm_computation(num_columns: int | None = None) -> tff.Computation:
    """`min_norm_weights` as a TFF computation `(float64[k,k] -> float64[k])`.

    Args:
        num_columns: `k`, or `None` where it is open.
    """
    return tff.tensorflow.computation(
        min_norm_weights, tff.types.TensorType(np.float64, [num_columns, num_columns])
    )


def _affine_minimiser(shifted, search):
    """The weights of the point of the set's affine hull that is nearest to the origin."""
    ones = tf.cast(search.chosen, tf.float64)
    solution = tf.linalg.matvec(search.inverse, ones)
    # Once more for what rounding left, as the inverse has gone through many changes.
    residual = ones * (1.0 - tf.linalg.matvec(shifted, solution))
    solution += tf.linalg.matvec(search.inverse, residual)
    return solution / tf.reduce_sum(solution)


def _grow(inverse, matrix, chosen, entering):
    """The inverse on the set and one column more; and whether that column is independent of it."""
    column = _column(matrix, entering)
    among_chosen = tf.where(chosen, column, 0.0)
    combination = tf.linalg.matvec(inverse, among_chosen)
    diagonal = tf.reduce_sum(tf.where(entering, column, 0.0))
    rest = diagonal - tf.reduce_sum(among_chosen * combination)
    is_independent = rest > _DEPENDENT * diagonal
    change = combination - tf.cast(entering, tf.float64)
    grown = inverse + _outer(change) / tf.where(is_independent, rest, 1.0)
    return grown - tf.linalg.diag(tf.cast(entering, tf.float64)), is_independent


def _shrink(inverse, leaving):
    """The inverse on the set without one of its columns."""
    column = _column(inverse, leaving)
    pivot = tf.reduce_sum(tf.where(leaving, column, 0.0))
    shrunk = inverse - _outer(column) / _nonzero(pivot)
    return tf.where(_either(leaving), tf.zeros_like(shrunk), shrunk) + tf.linalg.diag(
        tf.cast(leaving, tf.float64)
    )


def _column(matrix, one_hot):
    return tf.linalg.matvec(matrix, tf.cast(one_hot, tf.float64))


def _outer(vector):
    return vector[:, tf.newaxis] * vector


def _both(mask):
    return mask[:, tf.newaxis] & mask


def _either(mask):
    return mask[:, tf.newaxis] | mask


def _one_hot(index, depth):
    return tf.equal(tf.range(depth, dtype=index.dtype), index)


def _nonzero(x):
    return tf.where(tf.not_equal(x, 0.0), x, 1.0)
