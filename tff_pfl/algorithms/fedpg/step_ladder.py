"""A backtracking search for a step size, with all trials evaluated in one exchange.

The steps are `2^s rate, 2^(s-1) rate, ...`, down to `rate / (2^s sigma)`. The server chooses the
same step as a search that halves the step until it is accepted. Source: S-FedPG; the lower bound
and the fallback if no step is accepted follow FedMDFG's published code, by the same authors.
"""

import math
from typing import NamedTuple

import tensorflow as tf

from tff_pfl.algorithms.fedpg.common_descent import fairness

_ROUNDING = 1e-12  # tolerance of the fairness, which is in [-1, 0]
FAILED = 1e30  # the loss of a trial that is not finite


class Ladder(NamedTuple):
    """Step sizes to try.

    Attributes:
        steps: float32 `[max_trials]`, each half of the one before.
        count: int32 scalar, the number of admissible steps, at least 1.
    """

    steps: tf.Tensor
    count: tf.Tensor


def make_ladder(rate, sigma, *, doublings: int, max_trials: int) -> Ladder:
    """Makes the ladder of steps: at most `2 doublings + 1 + ceil(log2 sigma)` are admissible.

    Args:
        rate: float32 scalar, the learning rate.
        sigma: float64 scalar, the factor by which the direction was scaled.
        doublings: `s`.
        max_trials: The largest number of steps; a longer ladder is cut.
    """
    steps = rate * 2.0**doublings * 0.5 ** tf.range(max_trials, dtype=tf.float32)
    halvings = 2 * doublings + tf.math.log(tf.maximum(sigma, 1.0)) / math.log(2.0)
    count = 1 + tf.cast(tf.floor(halvings + 1e-9), tf.int32)
    return Ladder(steps, tf.minimum(count, max_trials))


def choose_step(
    ladder: Ladder,
    losses,
    slopes,
    live,
    fairness_gradient,
    trial_losses,
    *,
    sufficient_decrease: float,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Chooses the largest step that is accepted.

    A step `eta` is accepted if for every live client, and for `F` with gradient `sum h_i g_i`,

        L_i(w + eta d) <= L_i(w) + beta eta g_i . d
        F(w + eta d)   <= F(w)   + beta eta grad F . d          (grad F . d at most 0)

    If no step is accepted, the largest step that lowers the sum of losses is chosen. If no step
    lowers it, the step with the smallest sum is.

    Args:
        ladder: The steps.
        losses: float32 `[k]`, `L_i(w)`.
        slopes: float64 `[k]`, `g_i . d`.
        live: bool `[k]`.
        fairness_gradient: float64 `[k]`, `h`.
        trial_losses: float32 `[k, max_trials]`, `L_i(w + eta d)`.
        sufficient_decrease: `beta`.

    Returns:
        `(index, accepted)`: the index of the step, and whether it was accepted.
    """
    tried = tf.range(tf.shape(ladder.steps)[0]) < ladder.count
    steps = sufficient_decrease * tf.cast(ladder.steps, tf.float64)
    losses = tf.where(live, tf.cast(losses, tf.float64), 0.0)
    trial_losses = tf.where(live[:, tf.newaxis], tf.cast(trial_losses, tf.float64), 0.0)
    bounds = losses[:, tf.newaxis] + steps * slopes[:, tf.newaxis]
    all_descend = tf.reduce_all((trial_losses <= bounds) | ~live[:, tf.newaxis], axis=0)
    fairness_slope = tf.minimum(tf.reduce_sum(fairness_gradient * slopes), 0.0)
    fairness_bounds = fairness(losses, live) + steps * fairness_slope
    is_fair = fairness(trial_losses, live) <= fairness_bounds + _ROUNDING
    accepted = tried & all_descend & is_fair

    sums = tf.reduce_sum(trial_losses, axis=0)
    lower = tried & (sums < tf.reduce_sum(losses))
    fallback = tf.where(
        tf.reduce_any(lower), _first(lower), tf.argmin(tf.where(tried, sums, sums.dtype.max))
    )
    is_accepted = tf.reduce_any(accepted)
    return tf.where(is_accepted, _first(accepted), fallback), is_accepted


def _first(condition):
    return tf.argmax(tf.cast(condition, tf.int32))
