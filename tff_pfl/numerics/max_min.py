"""Finds the point of a ball whose least product with columns is largest, from inner products.

With `P = Q^T Q` for columns `q_1 .. q_k`, and a ball of radius `r` around `c = Q a`:

    d* = argmax min_j q_j . d     with ||d - c|| <= r

By duality, `d* = c + r Q w* / ||Q w*||` with

    w* = argmin c . Q w + r ||Q w||     with w >= 0, sum w = 1

As `2 ||Q w|| = min_t ||Q w||^2 / t + t`, the best `w` for a given `t` is that of the min-norm point
of the columns `q_j + (t / r) c`, which `min_norm` finds, and `w*` is the one with `||Q w|| = t`.
The quotient `||Q w|| / t` decreases in `t`, so that there is one such `t`. The Illinois method
narrows the bracket of `t^2` by straight lines between its ends, usually in less than ten steps,
because `||Q w||^2` is a straight line in `t^2` as long as the same columns have a weight.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from tff_pfl.numerics.min_norm import min_norm_weights

_LOWEST = 1e-6  # The least `t^2` that is searched, relative to the shortest column that is not 0.
_PRECISION = 1e-10  # relative, of `t^2`
_MOST_STEPS = 60


class _Search(NamedTuple):
    """The state of the search for `t^2`.

    Attributes:
        step: int32 scalar, the number of steps so far.
        low: float64 scalar, the largest `t^2` so far that is too small; 0 before the first.
        high: float64 scalar, the smallest one so far that is not.
        above: float64 scalar, `||Q w||^2 - t^2` at `low`, or less of it.
        below: float64 scalar, the same at `high`.
        side: float64 scalar, 1 if the last step moved `low`, or -1 if it moved `high`.
        point: float64 scalar, the last `t^2`.
        excess: float64 scalar, `||Q w||^2 - t^2` at this point.
        weights: float64 `[k]`, `w` at this point.
    """

    step: Any
    low: Any
    high: Any
    above: Any
    below: Any
    side: Any
    point: Any
    excess: Any
    weights: Any


def max_min_coefficients(gram: tf.Tensor, centre: tf.Tensor, radius: tf.Tensor) -> tf.Tensor:
    """Finds the coefficients of `d*` in the columns, float64 `[k]`.

    If `||Q w*||` is less than 0.001 of the shortest column that is not 0, because columns almost
    cancel out, the result may lie within the ball. Its least product then lacks up to 0.001 of that
    length times the radius.

    Args:
        gram: `[k, k]`, the inner products of the columns, finite; `k` is 1 or more.
        centre: `[k]`, `a`.
        radius: A scalar, `r`, 0 or more.
    """
    gram, centre, radius = (tf.cast(x, tf.float64) for x in (gram, centre, radius))
    inner, squares = tf.linalg.matvec(gram, centre), tf.linalg.diag_part(gram)
    highest = tf.reduce_max(squares)
    lowest = _LOWEST * tf.reduce_min(tf.where(squares > 0.0, squares, highest))

    def squared_norm(weights):
        return tf.maximum(tf.reduce_sum(weights * tf.linalg.matvec(gram, weights)), 0.0)

    def narrow(search):
        step, low, high, above, below, side, *_ = search
        point = (low * below - high * above) / (below - above)
        # The first steps are at the ends.
        point = tf.stack([lowest, highest, point])[tf.minimum(step, 2)]
        shift = tf.math.divide_no_nan(tf.sqrt(point), radius)
        added = shift * (inner + inner[:, tf.newaxis]) + shift**2 * squared_norm(centre)
        weights = min_norm_weights(gram + added)
        excess = squared_norm(weights) - point
        is_low = excess > 0.0
        return _Search(
            step=step + 1,
            low=tf.where(is_low, point, low),
            high=tf.where(is_low, high, point),
            above=tf.where(is_low, excess, tf.where(side < 0.0, above / 2, above)),
            below=tf.where(is_low, tf.where(side > 0.0, below / 2, below), excess),
            side=tf.sign(excess),
            point=point,
            excess=excess,
            weights=weights,
        )

    def is_left(search):
        is_inexact = tf.abs(search.excess) > _PRECISION * search.point
        is_found = (search.step == 0) | (search.low > 0.0)
        return is_inexact & is_found & (search.step < _MOST_STEPS)

    names = ("low", "high", "above", "below", "side", "point")
    start = _Search(
        step=tf.constant(0),
        **dict.fromkeys(names, tf.zeros([], tf.float64)),
        excess=tf.ones([], tf.float64),
        weights=tf.zeros_like(centre),
    )
    (end,) = tf.while_loop(is_left, lambda search: (narrow(search),), (start,))
    return centre + tf.math.divide_no_nan(radius, tf.sqrt(end.point)) * end.weights
