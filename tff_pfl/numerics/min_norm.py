"""Finds the point of a convex hull that is nearest to the origin, only from inner products.

With `P = Q^T Q` for columns `q_1 .. q_k`:

    lambda* = argmin 1/2 lambda^T P lambda     with lambda >= 0, sum lambda = 1

`x = Q lambda*` is the only point with `q_j . x >= ||x||^2` for every column, with equality where
`lambda*_j > 0`. If `x` is not 0, `-x` is a descent direction for every column.

The method is Wolfe's, "Finding the nearest point in a polytope", Mathematical Programming, 1976. It
keeps a set of columns and moves to the minimiser of the set's affine hull. If the minimiser lies
outside of the convex hull, it moves to the first face on the way and drops a column. Then it adds a
column that improves the point, until no column does. The minimiser of an affine hull is
`M^-1 1 / (1^T M^-1 1)` with `M = P + 1 1^T`, restricted to the set. When a column is added or
dropped, a rank-one update changes the inverse, with k^2 operations a step, all of a fixed shape.

If columns are nearly dependent, rounding may end the search too early. The search is then repeated
with newly computed inverses, k^3 operations a step, and a column that is numerically a combination
of the set's columns replaces one of them.
"""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

_ROUNDING = 1e-13  # The rounding of inner products, relative to the norms of their factors.
_DEPENDENT = 1e-11  # The squared distance from the span of others, relative to the squared norm.
_NO_PART = 1e-6  # A column can be replaced in a combination if its part is larger than this.
_STEPS_PER_COLUMN = 20  # A bound that guarantees the end of the loop, far above actual numbers.


class _Hull(NamedTuple):
    """The columns, in units of the shortest non-zero column.

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


class _Move(NamedTuple):
    """A step of the search, which drops a column, adds a column, or does neither.

    Attributes:
        target: float64 `[k]`, the minimiser of the set's affine hull.
        on_face: float64 `[k]`, the point on the way to the target at which a weight first becomes
            0.
        leaving: int32 scalar, the column of this weight.
        entering: int32 scalar, the column that improves the target most.
        is_outside: bool scalar, whether the target lies outside of the hull.
        done: bool scalar, whether the target lies in the hull and no column improves it.
    """

    target: Any
    on_face: Any
    leaving: Any
    entering: Any
    is_outside: Any
    done: Any


class _Search(NamedTuple):
    """The state of the search.

    Attributes:
        step: int32 scalar, the number of steps so far.
        done: bool scalar.
        weights: float64 `[k]`, the convex combination so far, 0 outside of the set.
        chosen: bool `[k]`, the set of columns.
        inverse: float64 `[k, k]`, the inverse of `M` on the set, and the unit matrix outside of it.
        blocked: bool `[k]`, the columns that are numerically combinations of the set's columns.
        best: float64 `[k]`, the weights of the shortest point so far.
        squared_norm: float64 scalar, the squared norm of this point.
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
    """Finds the weights of the min-norm point of the convex hull of columns.

    Columns may be zero, equal, dependent, opposite, and of very different norms, and there may be
    more columns than dimensions. The result is a convex combination, and its point is never longer
    than the shortest column. The point's length is minimal up to 1e-8 of the longest column of its
    set, or up to 1e-5 if the minimal length is below 1e-4 of this column. Inner products in
    float64, which square lengths, allow no higher precision. The function can be vectorized, and
    compiled for a fixed `k`.

    Args:
        gram: `[k, k]`, the inner products of the columns, finite and symmetric up to rounding.
        valid: bool `[k]`, the columns that exist. Others get weight 0. Default: all columns.

    Returns:
        float64 `[k]`, not negative, with sum 1, or all 0 if no column is valid.
    """
    gram = tf.cast(gram, tf.float64)
    num_columns = tf.shape(gram)[0] if gram.shape[0] is None else gram.shape[0]
    valid = tf.ones([num_columns], tf.bool) if valid is None else valid
    gram = tf.where(_both(valid), 0.5 * (gram + tf.transpose(gram)), 0.0)
    squared_norms = tf.maximum(tf.linalg.diag_part(gram), 0.0)
    # The unit is the shortest non-zero column, whose norm no solution exceeds.
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

    fast = _search(hull, start, _change)
    best = tf.cond(
        _is_improvable(hull, fast.best),
        lambda: _search(hull, start, _careful_change).best,
        lambda: fast.best,
    )
    weights = tf.maximum(best, 0.0)
    return weights / tf.maximum(tf.reduce_sum(weights), 1e-300)


def _search(hull: _Hull, start: _Search, change) -> _Search:
    """Runs the search with steps that use `change` to update the set and its inverse."""
    bound = _STEPS_PER_COLUMN * (tf.size(start.weights) + 5)
    (end,) = tf.while_loop(
        lambda search: ~search.done & (search.step < bound),
        lambda search: (_step(hull, search, change),),
        (start,),
    )
    return end


def _step(hull: _Hull, search: _Search, change) -> _Search:
    """Makes a step, in which a column leaves or enters the set, or the search ends."""
    zero = tf.constant(0.0, tf.float64)
    target = _affine_minimiser(hull, search)
    outside = search.chosen & (target <= 0.0)
    is_outside = tf.reduce_any(outside)

    # Moves towards the target until the first weight is 0.
    lengths = tf.where(outside, search.weights / _nonzero(search.weights - target), np.inf)
    leaving = tf.argmin(lengths, output_type=tf.int32)
    length = tf.clip_by_value(tf.gather(lengths, leaving), 0.0, 1.0)
    on_face = tf.maximum(search.weights + length * (target - search.weights), zero)

    # Finds the column that can improve the target most.
    violation, squared_norm = _violation(hull, search, target)
    entering = tf.argmax(violation, output_type=tf.int32)
    is_best = ~is_outside & (squared_norm < search.squared_norm)
    # Without rounding errors, each new point in the hull is shorter than the last.
    continues = is_best | tf.reduce_any(search.blocked)
    done = ~is_outside & ~(continues & (tf.gather(violation, entering) > 0.0))

    move = _Move(target, on_face, leaving, entering, is_outside, done)
    weights, chosen, inverse, blocked = change(hull, search, move)
    return _Search(
        step=search.step + 1,
        done=done,
        weights=weights,
        chosen=chosen,
        inverse=inverse,
        blocked=blocked,
        best=tf.where(is_best, target, search.best),
        squared_norm=tf.where(is_best, squared_norm, search.squared_norm),
    )


def _change(hull, search, move):
    """Returns weights, set, inverse and blocked columns after a move, by a rank-one update."""
    zero = tf.constant(0.0, tf.float64)
    leaves = move.is_outside & _one_hot(move.leaving, search.chosen)
    leaving_row = tf.gather(search.inverse, move.leaving)
    combination, rest, is_independent = _bordering(hull, search, move.entering)
    enters = ~move.is_outside & ~move.done & is_independent
    enter = _one_hot(move.entering, search.chosen)
    change = tf.where(move.is_outside, leaving_row, combination - tf.cast(enter, tf.float64))
    factor = tf.where(
        move.is_outside, -1.0 / _nonzero(tf.gather(leaving_row, move.leaving)), 1.0 / _nonzero(rest)
    )
    factor = tf.where(move.is_outside | enters, factor, zero)
    # The diagonal is 1 outside of the set.
    outside_of_set = tf.cast(leaves, tf.float64) - tf.cast(enters & enter, tf.float64)
    inverse = search.inverse + factor * change[:, tf.newaxis] * change
    inverse = tf.linalg.set_diag(inverse, tf.linalg.diag_part(inverse) + outside_of_set)
    weights = tf.where(move.is_outside, tf.where(leaves, zero, move.on_face), move.target)
    chosen = (search.chosen & ~leaves) | (enters & enter)
    blocked = ~(move.is_outside | enters) & (search.blocked | (~move.done & enter))
    return weights, chosen, inverse, blocked


def _careful_change(hull, search, move):
    """Does the same with a newly computed inverse, and may replace a column by another one."""
    zero = tf.constant(0.0, tf.float64)
    enter = _one_hot(move.entering, search.chosen)
    combination, _, is_independent = _bordering(hull, search, move.entering, corrections=2)
    is_part = search.chosen & (combination > _NO_PART)
    lengths = tf.where(is_part, move.target / _nonzero(combination), np.inf)
    replaced = tf.argmin(lengths, output_type=tf.int32)
    replaces = ~move.is_outside & ~move.done & ~is_independent
    length = tf.where(replaces, tf.gather(lengths, replaced), 0.0)
    replacement = tf.where(enter, length, tf.maximum(move.target - length * combination, zero))

    leaving = tf.where(move.is_outside, move.leaving, replaced)
    leaves = (move.is_outside | replaces) & _one_hot(leaving, search.chosen)
    rest = search._replace(chosen=search.chosen & ~leaves)
    rest = rest._replace(inverse=_inverse(hull, rest.chosen))
    *_, is_independent = _bordering(hull, rest, move.entering, corrections=2)
    enters = ~move.is_outside & ~move.done & is_independent
    is_blocked = ~move.is_outside & ~move.done & ~is_independent
    weights = tf.where(move.is_outside, move.on_face, tf.where(replaces, replacement, move.target))
    weights = tf.where(is_blocked, move.target, tf.where(leaves, zero, weights))
    chosen = tf.where(is_blocked, search.chosen, rest.chosen | (enters & enter))
    blocked = ~(move.is_outside | enters) & (search.blocked | (is_blocked & enter))
    return weights, chosen, _inverse(hull, chosen), blocked


def _inverse(hull, chosen):
    identity = tf.eye(tf.shape(hull.shifted)[0], dtype=tf.float64)
    return tf.linalg.inv(tf.where(_both(chosen), hull.shifted, identity))


def _is_improvable(hull, weights):
    """Returns whether a column improves the point."""
    return tf.reduce_any(_improves(hull, weights)[0])


def _improves(hull, weights):
    """Returns which columns improve the point, its products with columns, and its squared norm."""
    products = tf.linalg.matvec(hull.gram, weights)
    squared_norm = tf.reduce_sum(weights * products)
    rounding = _ROUNDING * hull.norms * tf.reduce_sum(tf.abs(weights) * hull.norms)
    return hull.valid & (products < squared_norm - rounding), products, squared_norm


def _violation(hull, search, target):
    """Returns by how much each column can improve the target (or -inf), and its squared norm."""
    improves, products, squared_norm = _improves(hull, target)
    violation = tf.where(
        improves & ~search.chosen & ~search.blocked,
        (squared_norm - products) / tf.maximum(hull.norms, 1e-300),
        -np.inf,
    )
    return violation, squared_norm


def _bordering(hull, search, entering, corrections=0):
    """Returns `(combination, distance, is_independent)` for a column of `M`.

    The combination of the set's columns is closest to the column. The distance is the squared
    distance of the column from the span of the set's columns.
    """
    column = tf.gather(hull.shifted, entering)
    diagonal = tf.gather(column, entering)
    column = tf.where(search.chosen, column, tf.zeros_like(column))
    combination = tf.linalg.matvec(search.inverse, column)
    for _ in range(corrections):
        residual = column - tf.linalg.matvec(hull.shifted, combination)
        residual = tf.where(search.chosen, residual, tf.zeros_like(residual))
        combination += tf.linalg.matvec(search.inverse, residual)
    rest = diagonal - tf.reduce_sum(column * combination)
    return combination, rest, rest > _DEPENDENT * diagonal


def _affine_minimiser(hull, search):
    """Finds the weights of the point in the set's affine hull that is nearest to the origin."""
    ones = tf.cast(search.chosen, tf.float64)
    solution = ones * tf.linalg.matvec(search.inverse, ones)
    # Corrects the solution, because many updates have made the inverse inexact.
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
