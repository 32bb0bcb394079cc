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
_DEPENDENT = 1e-11  # squared distance from the span of the others, relative to the squared norm
_STEPS_PER_COLUMN = 20  # far above what is needed; the bound that a loop needs to end


class _Hull(NamedTuple):
    """The columns, in units of the shortest.

    Attributes:
        gram: float64 `[k, k]`, `P`.
        shifted: float64 `[k, k]`, `M`.
        norms: float64 `[k]`.
        valid: bool `[k]`.
    """

    gram: Any
    shifted: Any
    norms: Any
    valid: Any


class _Search(NamedTuple):
    """The state of the search.

    Attributes:
        step: int32 scalar, of steps done.
        done: bool scalar.
        weights: float64 `[k]`, the convex combination so far, 0 outside of the set.
        chosen: bool `[k]`, the set of columns.
        inverse: float64 `[k, k]`, that of `M` on the set, of the unit matrix outside of it.
        blocked: bool `[k]`, columns which cannot be told from combinations of the set's.
        best: float64 `[k]`, the weights of the shortest point so far.
        squared_norm: float64 scalar, of that point.
    """

    step: Any
    done: Any
    weights: Any
    chosen: Any
    inverse: Any
    blocked: Any
    best: Any
    squared_norm: Any


def min_norm_weights(gram: tf.Tensor, valid: tf.Tensor | None = None) -> tf.Tensor:
    """The weights of the min-norm point of the convex hull of columns.

    Columns may be zero, equal, dependent, opposite, and of very different norms; there may be more
    of them than dimensions. The result is a convex combination, and its point is no longer than the
    shortest column, in any case; it is the shortest up to what inner products tell in float64,
    some 1e-8 of the longest column of its set. It can be vectorized, and compiled for a fixed `k`.

    Args:
        gram: `[k, k]`, the inner products of the columns, finite; symmetric up to rounding.
        valid: bool `[k]`, which columns there are; default all. The others get weight 0.

    Returns:
        float64 `[k]`, not negative, with the sum 1; 0 if no column is valid.
    """
    gram = tf.cast(gram, tf.float64)
    num_columns = tf.shape(gram)[0] if gram.shape[0] is None else gram.shape[0]
    valid = tf.ones([num_columns], tf.bool) if valid is None else valid
    gram = tf.where(_both(valid), 0.5 * (gram + tf.transpose(gram)), 0.0)
    squared_norms = tf.maximum(tf.linalg.diag_part(gram), 0.0)
    # All is measured in the smallest column, whose norm no solution exceeds.
    least = tf.reduce_min(tf.where(valid & (squared_norms > 0.0), squared_norms, np.inf))
    unit = tf.where(tf.math.is_finite(least), least, 1.0)
    gram /= unit
    hull = _Hull(gram, gram + 1.0, tf.sqrt(squared_norms / unit), valid)

    shortest = tf.argmin(tf.where(valid, hull.norms, np.inf), output_type=tf.int32)
    first = _one_hot(shortest, valid)
    alone = tf.where(first, tf.cast(valid, tf.float64), 0.0)
    start = _Search(
        step=tf.constant(0),
        done=tf.logical_not(tf.reduce_any(valid)),
        weights=alone,
        chosen=first,
        inverse=tf.where(
            _both(first), 1.0 / _nonzero(hull.shifted), tf.eye(num_columns, dtype=tf.float64)
        ),
        blocked=tf.zeros_like(first),
        best=alone,
        squared_norm=tf.constant(np.inf, tf.float64),
    )

    bound = _STEPS_PER_COLUMN * (num_columns + 5)
    (end,) = tf.while_loop(
        lambda search: ~search.done & (search.step < bound),
        lambda search: (_step(hull, search),),
        (start,),
    )
    weights = tf.maximum(end.best, 0.0)
    return weights / tf.maximum(tf.reduce_sum(weights), 1e-300)


def min_norm_computation(num_columns: int | None = None) -> tff.Computation:
    """`min_norm_weights` as a TFF computation `(float64[k,k] -> float64[k])`.

    Args:
        num_columns: `k`, or `None` where it is open.
    """
    return tff.tensorflow.computation(
        lambda gram: min_norm_weights(gram),
        tff.types.TensorType(np.float64, [num_columns, num_columns]),
    )


def _step(hull: _Hull, search: _Search) -> _Search:
    """A column leaves the set, or one comes, or the search is done."""
    zero = tf.constant(0.0, tf.float64)
    target = _affine_minimiser(hull, search)
    outside = search.chosen & (target <= 0.0)
    is_outside = tf.reduce_any(outside)

    # Towards the target, until the first weight is 0.
    lengths = tf.where(outside, search.weights / _nonzero(search.weights - target), np.inf)
    leaving = tf.argmin(lengths, output_type=tf.int32)
    length = tf.clip_by_value(tf.gather(lengths, leaving), 0.0, 1.0)
    on_face = tf.maximum(search.weights + length * (target - search.weights), zero)
    leaves = is_outside & _one_hot(leaving, search.chosen)

    # At the target: which column can improve it most?
    violation, squared_norm = _violation(hull, search, target)
    entering = tf.argmax(violation, output_type=tf.int32)
    is_best = ~is_outside & (squared_norm < search.squared_norm)
    # Without rounding, each point in the hull is shorter than that of the set before.
    goes_on = is_best | tf.reduce_any(search.blocked)
    done = ~is_outside & ~(goes_on & (tf.gather(violation, entering) > 0.0))

    # The inverse without the one column or with the other: a change of rank one.
    without = tf.gather(search.inverse, leaving)
    with_it, rest, is_independent = _bordering(hull, search, entering)
    enters = ~is_outside & ~done & is_independent
    enter = _one_hot(entering, search.chosen)
    change = tf.where(is_outside, without, with_it - tf.cast(enter, tf.float64))
    factor = tf.where(
        is_outside, -1.0 / _nonzero(tf.gather(without, leaving)), 1.0 / _nonzero(rest)
    )
    factor = tf.where(is_outside | enters, factor, zero)
    # On the diagonal: 1 outside of the set.
    outside_of_set = tf.cast(leaves, tf.float64) - tf.cast(enters & enter, tf.float64)
    inverse = search.inverse + factor * change[:, tf.newaxis] * change
    inverse = tf.linalg.set_diag(inverse, tf.linalg.diag_part(inverse) + outside_of_set)
    return _Search(
        step=search.step + 1,
        done=done,
        weights=tf.where(is_outside, tf.where(leaves, zero, on_face), target),
        chosen=(search.chosen & ~leaves) | (enters & enter),
        inverse=inverse,
        blocked=~(is_outside | enters) & (search.blocked | (~done & enter)),
        best=tf.where(is_best, target, search.best),
        squared_norm=tf.where(is_best, squared_norm, search.squared_norm),
    )


def _violation(hull, search, target):
    """How much each column could improve the target, -inf if not at all; its squared norm."""
    products = tf.linalg.matvec(hull.gram, target)
    squared_norm = tf.reduce_sum(target * products)
    rounding = _ROUNDING * hull.norms * tf.reduce_sum(tf.abs(target) * hull.norms)
    improves = hull.valid & (products < squared_norm - rounding)
    violation = tf.where(
        improves & ~search.chosen & ~search.blocked,
        (squared_norm - products) / tf.maximum(hull.norms, 1e-300),
        -np.inf,
    )
    return violation, squared_norm


def _bordering(hull, search, entering):
    """A column as the combination of the set's, its squared distance from them, whether it has one.

    The column is one of `M`.
    """
    column = tf.gather(hull.shifted, entering)
    diagonal = tf.gather(column, entering)
    column = tf.where(search.chosen, column, tf.zeros_like(column))
    combination = tf.linalg.matvec(search.inverse, column)
    rest = diagonal - tf.reduce_sum(column * combination)
    return combination, rest, rest > _DEPENDENT * diagonal


def _affine_minimiser(hull, search):
    """The weights of the point of the set's affine hull that is nearest to the origin."""
    ones = tf.cast(search.chosen, tf.float64)
    solution = ones * tf.linalg.matvec(search.inverse, ones)
    # Once more for what rounding left, as the inverse has gone through many changes.
    residual = ones * (1.0 - tf.linalg.matvec(hull.shifted, solution))
    solution += ones * tf.linalg.matvec(search.inverse, residual)
    return solution / _nonzero(tf.reduce_sum(solution))


def _both(mask):
    return mask[:, tf.newaxis] & mask


def _one_hot(index, like):
    size = tf.size(like) if like.shape[0] is None else like.shape[0]
    return tf.equal(tf.range(size), index)


def _nonzero(x):
    return tf.where(tf.not_equal(x, 0.0), x, 1.0)
