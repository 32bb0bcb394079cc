"""Computes a direction along which all objectives descend, and how far clients may leave it.

Everything is computed from inner products of gradients, which costs `k^2` instead of `k n`. The `k`
columns are the objectives: online clients, absent clients, and fairness, each scaled to the same
norm. Sources: FedPG, Algorithm 1; absent and fairness columns are scaled as in the authors'
published code.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tff_pfl.numerics.min_norm import min_norm_weights

# The least norm of a direction, relative to the norm of the columns. Slopes are the square of this
# norm; rounding the direction to float32 may change them by 1e-7 of the norm.
STATIONARY = 1e-6
_NO_FAIRNESS = 1e-12  # the least relative norm of the fairness gradient


class CommonDescent(NamedTuple):
    """A direction `d = -(online . g + absent . g_absent)`.

    Attributes:
        online: float64 `[k]`, coefficients of the raw gradients of the cohort.
        absent: float64 `[size]`, coefficients of the remembered gradients.
        weights: float64 `[k + size + 1]`, lambda of the min-norm point: cohort, absent, fairness.
        sigma: float64 scalar, the factor that gives `d` the length of the mean gradient; 0 if
            no common direction exists.
        slopes: float64 `[k]`, `g_i . d` for the cohort.
        absent_slopes: float64 `[size]`, `g_j . d` for the remembered gradients.
    """

    online: tf.Tensor
    absent: tf.Tensor
    weights: tf.Tensor
    sigma: tf.Tensor
    slopes: tf.Tensor
    absent_slopes: tf.Tensor


class Grams(NamedTuple):
    """Inner products of raw gradients.

    Attributes:
        online: float64 `[k, k]`, among the cohort's gradients.
        cross: float64 `[k, size]`, between the cohort's and the remembered gradients.
        absent: float64 `[size, size]`, among the remembered gradients.
    """

    online: tf.Tensor
    cross: tf.Tensor
    absent: tf.Tensor


def fairness_weights(losses, live) -> tf.Tensor:
    """Computes `h`, the gradient of `F = -(1 . L) / (||1|| ||L||)` with respect to the losses.

        h = (1 / ||L||) ( (1 . L) L / (sqrt(m) ||L||^2) - 1 / sqrt(m) )

    `-F` is the cosine between the losses and a vector of ones; `h . L = 0`.

    Args:
        losses: `[k]`.
        live: bool `[k]`, which losses count; `m` of them do.

    Returns:
        float64 `[k]`, 0 where not live, and 0 everywhere if all losses are equal.
    """
    count = tf.cast(live, tf.float64)
    losses = tf.cast(losses, tf.float64)
    least = tf.reduce_min(tf.where(live, losses, np.inf))
    most = tf.reduce_max(tf.where(live, losses, -np.inf))
    losses = tf.where(live, losses, 0.0)
    norm = _positive(tf.norm(losses))
    root = _positive(tf.sqrt(tf.reduce_sum(count)))
    weights = (tf.reduce_sum(losses) * losses / norm**2 - count) / (root * norm)
    # Rounding would make h nonzero for small equal losses, and F is undefined if all are 0.
    return tf.where(least < most, weights, 0.0)


def fairness(losses, live) -> tf.Tensor:
    """Computes the fairness `F = -(1 . L) / (||1|| ||L||)`.

    Args:
        losses: `[k]`, or `[k, trials]`.
        live: bool `[k]`, which clients count.

    Returns:
        float64, scalar or `[trials]`, in [-1, 0]; -1 if all losses are equal.
    """
    losses = tf.cast(losses, tf.float64)
    live = tf.reshape(live, [-1] + [1] * (losses.shape.rank - 1))
    losses = tf.where(live, losses, 0.0)
    root = tf.sqrt(tf.reduce_sum(tf.cast(live, tf.float64)))
    return -tf.reduce_sum(losses, axis=0) / _positive(root * tf.norm(losses, axis=0))


def common_norm(norms, live, outlier_ratio: float | None) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes `mu`, the mean norm of the live gradients without outliers.

    Args:
        norms: float64 `[k]`.
        live: bool `[k]`.
        outlier_ratio: Norms above this many times the median are left out; `None`: no norm is.

    Returns:
        `mu`, and how many norms were left out.
    """
    counted = live
    if outlier_ratio is not None:
        most = tf.constant([norms.dtype.max], norms.dtype)  # a median exists even if none is live
        in_order = tf.sort(tf.concat([tf.where(live, norms, most), most], axis=0))
        last = tf.maximum(tf.reduce_sum(tf.cast(live, tf.int32)) - 1, 0)
        median = 0.5 * (in_order[last // 2] + in_order[(last + 1) // 2])
        counted = live & (norms <= outlier_ratio * median)
    number = tf.reduce_sum(tf.cast(counted, tf.float64))
    mean = tf.reduce_sum(tf.where(counted, norms, 0.0)) / _positive(number)
    return mean, tf.reduce_sum(tf.cast(live & ~counted, tf.int32))


def min_norm_descent(
    grams: Grams,
    live,
    absent,
    fairness_gradient,
    norm,
    *,
    fair_from: str,
    rescale_with: str,
) -> CommonDescent:
    """Computes the min-norm direction over all columns, scaled to the mean gradient's length.

    Args:
        grams: Inner products of the cohort's and the remembered gradients.
        live: bool `[k]`, which clients of the cohort count; their gradients are not 0.
        absent: bool `[size]`, which remembered gradients count.
        fairness_gradient: float64 `[k]`, `h`, or `None` for no fairness column.
        norm: float64 scalar, `mu`, to which columns are scaled.
        fair_from: The gradients whose sum, weighted by `h_i`, is the fairness gradient: "scaled"
            or "raw".
        rescale_with: The gradients whose mean gives `d` its length: "scaled" or "raw".
    """
    norms = tf.sqrt(tf.linalg.diag_part(grams.online))
    absent_norms = tf.sqrt(tf.linalg.diag_part(grams.absent))
    # Everything is measured in units of `norm`: columns have length 1.
    to_unit = tf.concat([_inverse(norms, live), _inverse(absent_norms, absent)], axis=0)
    columns = _bordered(grams.online, grams.cross, grams.absent)
    columns *= to_unit[:, tf.newaxis] * to_unit
    number = _positive(tf.reduce_sum(tf.cast(live, tf.float64)))
    fair = tf.zeros_like(norms) if fairness_gradient is None else fairness_gradient
    if fair_from == "raw":
        fair *= norms / _positive(norm)
    fair = tf.pad(fair, [[0, tf.shape(absent)[0]]])
    with_fair = tf.linalg.matvec(columns, fair)
    fair_norm = tf.sqrt(tf.maximum(tf.reduce_sum(fair * with_fair), 0.0))
    has_fairness = (number >= 2.0) & (fair_norm > _NO_FAIRNESS)
    fair, with_fair = fair / _positive(fair_norm), with_fair / _positive(fair_norm)

    gram_of_columns = _bordered(columns, with_fair[:, tf.newaxis], tf.ones([1, 1], tf.float64))
    valid = tf.concat([live, absent, has_fairness[tf.newaxis]], axis=0)
    weights = min_norm_weights(gram_of_columns, valid)
    least = tf.sqrt(
        tf.maximum(tf.reduce_sum(weights * tf.linalg.matvec(gram_of_columns, weights)), 0.0)
    )
    mean = tf.cast(live, tf.float64) / number
    if rescale_with == "raw":
        mean *= norms / _positive(norm)
    k = tf.shape(norms)[0]
    length = tf.sqrt(tf.reduce_sum(mean * tf.linalg.matvec(columns[:k, :k], mean)))
    sigma = tf.where(least > STATIONARY, length / _positive(least), 0.0)
    coefficients = sigma * norm * to_unit * (weights[:-1] + weights[-1] * fair)
    return _descent(grams, coefficients[:k], coefficients[k:], weights, sigma)


def mean_descent(grams: Grams) -> CommonDescent:
    """Returns minus the mean of the raw gradients as `d`: descent on the cohort's mean loss."""
    ones = tf.ones_like(tf.linalg.diag_part(grams.online))
    coefficients = ones / _positive(tf.reduce_sum(ones))
    zeros = tf.zeros_like(tf.linalg.diag_part(grams.absent))
    weights = tf.concat([coefficients, zeros, tf.zeros([1], tf.float64)], axis=0)
    return _descent(grams, coefficients, zeros, weights, tf.constant(1.0, tf.float64))


def _descent(grams, online, absent, weights, sigma):
    slopes = tf.linalg.matvec(grams.online, online) + tf.linalg.matvec(grams.cross, absent)
    absent_slopes = tf.linalg.matvec(grams.cross, online, transpose_a=True)
    absent_slopes += tf.linalg.matvec(grams.absent, absent)
    return CommonDescent(online, absent, weights, sigma, -slopes, -absent_slopes)


def personal_shares(grams: Grams, descent: CommonDescent, live, protected) -> tf.Tensor:
    """Computes `gamma_i`: how far client `i` may turn to its own `-g_i` without hurting others.

        gamma_i = min(1, min |g_j . d| / (|g_j . d| + |g_j . g_i|) over j != i with g_j . g_i < 0)

    Args:
        grams: Inner products of the raw gradients.
        descent: The direction. Positive slopes count as 0.
        live: bool `[k]`; the gamma of all other clients is 0.
        protected: bool `[size]`, which remembered clients must not be hurt either.

    Returns:
        float64 `[k]`, in [0, 1].
    """
    others = live & ~tf.eye(tf.shape(grams.online)[0], dtype=tf.bool)
    inner = tf.concat([grams.online, grams.cross], axis=1)
    slopes = tf.concat([descent.slopes, descent.absent_slopes], axis=0)
    protected = tf.broadcast_to(protected, tf.shape(grams.cross))
    conflicts = tf.concat([others, protected], axis=1) & (inner < 0.0)
    descents = -tf.minimum(slopes, 0.0)
    shares = tf.where(conflicts, descents / _positive(descents - inner), 1.0)
    return tf.where(live, tf.minimum(tf.reduce_min(shares, axis=1), 1.0), 0.0)


def _bordered(corner, border, other_corner):
    """Returns the symmetric matrix of two diagonal blocks and one block beside them."""
    top = tf.concat([corner, border], axis=1)
    return tf.concat([top, tf.concat([tf.transpose(border), other_corner], axis=1)], axis=0)


def _inverse(norms, counts):
    return tf.where(counts, 1.0 / _positive(norms), tf.zeros_like(norms))


def _positive(x):
    """Returns `x` with 0 replaced by 1: a divisor for numerators that are 0 there."""
    return tf.where(x > 0.0, x, 1.0)
