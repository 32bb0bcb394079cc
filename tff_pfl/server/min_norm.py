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
    gram, norms = gram / unit, tf.sqrt(squared_norms / unit)
    shifted = gram + 1.0

    shortest = tf.argmin(tf.where(valid, norms, np.inf), output_type=tf.int32)
    first = _one_hot(shortest, num_columns)
    alone = tf.where(first, tf.cast(valid, tf.float64), 0.0)
    start = _Search(
        step=tf.constant(0),
        done=tf.logical_not(tf.reduce_any(valid)),
        weights=alone,
        chosen=first,
        inverse=tf.where(
            _both(first), 1.0 / _nonzero(shifted), tf.eye(num_columns, dtype=tf.float64)
        ),
        blocked=tf.zeros_like(first),
        best=alone,
        squared_norm=tf.constant(np.inf, tf.float64),
    )

    zero = tf.constant(0.0, tf.float64)

    def step(search: _Search) -> tuple[_Search]:
        target = _affine_minimiser(shifted, search)
        outside = search.chosen & (target <= 0.0)
        is_outside = tf.reduce_any(outside)

        # Towards the target, until the first weight is 0.
        lengths = tf.where(outside, search.weights / _nonzero(search.weights - target), np.inf)
        leaving = tf.argmin(lengths, output_type=tf.int32)
        length = tf.clip_by_value(tf.gather(lengths, leaving), 0.0, 1.0)
        on_face = tf.maximum(search.weights + length * (target - search.weights), zero)
        leaves = is_outside & _one_hot(leaving, num_columns)

        # At the target: which column can improve it most?
        products = tf.linalg.matvec(gram, target)
        squared_norm = tf.reduce_sum(target * products)
        rounding = _ROUNDING * norms * tf.reduce_sum(tf.abs(target) * norms)
        violation = tf.where(
            valid & ~search.chosen & ~search.blocked & (products < squared_norm - rounding),
            (squared_norm - products) / tf.maximum(norms, 1e-300),
            -np.inf,
        )
        entering = tf.argmax(violation, output_type=tf.int32)
        is_best = ~is_outside & (squared_norm < search.squared_norm)
        # Without rounding, each point in the hull is shorter than that of the set before.
        goes_on = is_best | tf.reduce_any(search.blocked)
        done = ~is_outside & ~(goes_on & (tf.gather(violation, entering) > 0.0))

        # The inverse without the one column or with the other: a change of rank one.
        without = tf.gather(search.inverse, leaving)
        column = tf.gather(shifted, entering)
        diagonal = tf.gather(column, entering)
        column = tf.where(search.chosen, column, zero)
        combination = tf.linalg.matvec(search.inverse, column)
        rest = diagonal - tf.reduce_sum(column * combination)
        is_independent = rest > _DEPENDENT * diagonal
        enters = ~is_outside & ~done & is_independent
        enter = _one_hot(entering, num_columns)
        with_it = combination - tf.cast(enter, tf.float64)
        change = tf.where(is_outside, without, with_it)
        factor = tf.where(
            is_outside, -1.0 / _nonzero(tf.gather(without, leaving)), 1.0 / _nonzero(rest)
        )
        factor = tf.where(is_outside | enters, factor, zero)
        # On the diagonal: 1 outside of the set.
        outside_of_set = tf.cast(leaves, tf.float64) - tf.cast(enters & enter, tf.float64)
        inverse = search.inverse + factor * change[:, tf.newaxis] * change
        inverse = tf.linalg.set_diag(inverse, tf.linalg.diag_part(inverse) + outside_of_set)
        return (
            _Search(
                step=search.step + 1,
                done=done,
                weights=tf.where(is_outside, tf.where(leaves, zero, on_face), target),
                chosen=(search.chosen & ~leaves) | (enters & enter),
                inverse=inverse,
                blocked=~(is_outside | enters) & (search.blocked | (~done & enter)),
                best=tf.where(is_best, target, search.best),
                squared_norm=tf.where(is_best, squared_norm, search.squared_norm),
            ),
        )

    bound = _STEPS_PER_COLUMN * (num_columns + 5)
    (end,) = tf.while_loop(lambda search: ~search.done & (search.step < bound), step, (start,))
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


def _affine_minimiser(shifted, search):
    """The weights of the point of the set's affine hull that is nearest to the origin."""
    ones = tf.cast(search.chosen, tf.float64)
    solution = ones * tf.linalg.matvec(search.inverse, ones)
    # Once more for what rounding left, as the inverse has gone through many changes.
    residual = ones * (1.0 - tf.linalg.matvec(shifted, solution))
    solution += ones * tf.linalg.matvec(search.inverse, residual)
    return solution / _nonzero(tf.reduce_sum(solution))


def _both(mask):
    return mask[:, tf.newaxis] & mask


def _one_hot(index, depth):
    return tf.equal(tf.range(depth), index)


def _nonzero(x):
    return tf.where(tf.not_equal(x, 0.0), x, 1.0)
