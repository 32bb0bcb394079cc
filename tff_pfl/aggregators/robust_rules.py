"""Robust aggregates of a cohort, which a minority of attackers can change only a little.

Each rule is a plain TensorFlow function of the uploads `v_i` of `m` clients and their weights
`w_i`, for a `StackRuleFactory`. Clients report their own weights, so an attacker can claim any
weight. With uniform weights, each client counts once.
"""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tff_pfl.aggregators.stack import Stack
from tff_pfl.local import trees


def weighted_mean(stack: Stack) -> Any:
    """Computes the mean `sum_i w_i v_i / sum_i w_i`, which is not robust; 0 without weights."""
    shares = tf.math.divide_no_nan(stack.weight, tf.reduce_sum(stack.weight))
    return trees.combine(shares, stack.value)


def trimmed_mean(stack: Stack, fraction: float) -> Any:
    """Computes the mean of each coordinate without its lowest and its highest values.

    `floor(fraction m)` of the `m` values are cut at each end, regardless of their weights. The mean
    of the others is weighted. A `fraction` of 0 gives the weighted mean. (Yin et al.,
    "Byzantine-robust distributed learning", ICML 2018, with uniform weights.)

    Args:
        stack: The uploads of one client or more.
        fraction: The fraction to cut at each end, in [0, 0.5).
    """
    number = tf.size(stack.weight)
    # In floating point, 0.29 * 100 is less than 29.
    cut = tf.cast(tf.floor(fraction * tf.cast(number, tf.float64) + 1e-9), tf.int32)
    cut = tf.minimum(cut, (number - 1) // 2)

    def mean_of_middle(values, weights):
        values, weights = values[:, cut : number - cut], weights[:, cut : number - cut]
        weights = tf.cast(weights / tf.reduce_sum(weights, axis=1, keepdims=True), values.dtype)
        return tf.reduce_sum(weights * values, axis=1)

    return _by_coordinate(mean_of_middle, stack)


def median(stack: Stack) -> Any:
    """Computes the weighted median of each coordinate, which minimises `sum_i w_i |v_i - z|`.

    In ascending order, the median is the value at which the weights reach half of their sum. If
    they reach exactly half, it is the mean of this and the next value, as usual for an even number
    of equal weights. (Yin et al., ICML 2018, with uniform weights.)

    Args:
        stack: The uploads of one client or more.
    """

    def middle(values, weights):
        with_own = tf.cumsum(tf.cast(weights, tf.float64), axis=1)  # Exact for equal weights.
        before = tf.pad(with_own, [[0, 0], [1, 0]])[:, :-1]
        half = with_own[:, -1:] / 2.0
        is_middle = (before <= half) & (half <= with_own)
        count = tf.math.count_nonzero(is_middle, axis=1, dtype=values.dtype)
        return tf.reduce_sum(tf.where(is_middle, values, 0.0), axis=1) / count

    return _by_coordinate(middle, stack)


def geometric_median(
    stack: Stack, iterations: int, tolerance: float, smoothing: float
) -> tuple[Any, Mapping[str, tf.Tensor]]:
    """Finds the `z` with the least `sum_i w_i ||v_i - z||` by Weiszfeld's smoothed algorithm.

    Starting from the `median` of each coordinate, it repeats

        b_i = w_i / max(nu, ||v_i - z||)        z <- sum_i b_i v_i / sum_i b_i

    until the residual, `||sum_i b_i (v_i - z)|| / sum_i w_i`, is at most `tolerance`. Each client
    pulls with a unit vector, and the residual is the length of their weighted mean, 0 at the
    optimum.

    The source is Algorithm 2 of Pillutla, Kakade, Harchaoui, "Robust aggregation for federated
    learning", IEEE TSP 2022. The paper starts from the mean, from which 100 iterations do not reach
    the optimum if 10 of 21 clients are a million times as far away as the others are apart. In the
    paper, each iteration is a secure sum and another exchange with the clients. Here the server
    has the uploads. It represents `z` by the clients' shares in it, and computes distances from
    inner products of uploads, so an iteration costs `m^2` operations. Most of the time is spent on
    sorting for the median.

    Args:
        stack: The uploads of one client or more. All tensors of an upload form one vector.
        iterations: The maximum number of iterations. 0 returns the median of each coordinate.
        tolerance: The residual at which the iteration stops. With 0, it stops after all iterations
            or at the optimum.
        smoothing: `nu`, above 0, the distance below which clients pull with less than a unit
            vector.

    Returns:
        `(z, measurements)`. The measurements are the `residual` at `z` and the number of
        `iterations`, float32 scalars.
    """
    # Inner products are relative to the centre, so that far uploads do not cause cancellation.
    centre = median(stack)
    centred = tf.nest.map_structure(lambda rows, middle: rows - middle, stack.value, centre)
    gram = trees.gram(centred)
    weights = tf.cast(stack.weight, gram.dtype)
    weights /= tf.reduce_sum(weights)

    def following(shares):
        """Returns the shares after an iteration, and the residual before it."""
        inner = tf.linalg.matvec(gram, shares)
        squared = tf.linalg.diag_part(gram) - 2.0 * inner + tf.reduce_sum(shares * inner)
        pulls = weights / tf.sqrt(tf.maximum(squared, smoothing**2))
        total = tf.reduce_sum(pulls)
        step = pulls / total - shares
        length = tf.sqrt(tf.maximum(tf.reduce_sum(step * tf.linalg.matvec(gram, step)), 0.0))
        return pulls / total, total * length

    def iterate(index, shares, after, residual):
        del shares, residual
        return index + 1, after, *following(after)

    nothing = tf.zeros_like(weights)
    index, shares, _, residual = tf.while_loop(
        lambda index, shares, after, residual: (index < iterations) & (residual > tolerance),
        iterate,
        (tf.constant(0), nothing, *following(nothing)),
    )
    measured = {"residual": residual, "iterations": index}
    return trees.add(centre, trees.combine(shares, centred)), {
        name: tf.cast(value, tf.float32) for name, value in measured.items()
    }


def krum(stack: Stack, num_attackers: int, num_selected: int | None = 1) -> Any:
    """Averages the uploads that are closest to their neighbours: Krum and Multi-Krum.

    With `f` tolerated attackers, a client's score is the sum of the squared distances of its upload
    to the `m - f - 2` closest other uploads. The result is the weighted mean of the uploads with
    the lowest scores; ties go to the first of the cohort. (Blanchard et al., "Machine learning with
    adversaries", NeurIPS 2017, which needs `m >= 2 f + 3`.)

    Args:
        stack: The uploads of `2 num_attackers + 3` clients or more. Weights do not change scores.
        num_attackers: `f`.
        num_selected: The number of averaged uploads, reduced to `m - f` if it is larger. 1 is Krum,
            `None` means `m - f`.
    """
    gram = trees.gram(stack.value)
    norms = tf.linalg.diag_part(gram)
    distances = tf.maximum(norms[:, tf.newaxis] + norms - 2.0 * gram, 0.0)
    number = tf.size(stack.weight)
    nearest = number - num_attackers - 2 + 1  # Includes the upload itself, at distance 0.
    scores = tf.reduce_sum(tf.sort(distances, axis=1)[:, :nearest], axis=1)
    most = number - num_attackers
    num_selected = most if num_selected is None else tf.minimum(num_selected, most)
    selected = tf.argsort(scores, stable=True)[:num_selected]
    return weighted_mean(Stack(trees.row(stack.value, selected), tf.gather(stack.weight, selected)))


def _by_coordinate(
    statistic: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    stack: Stack,
) -> Any:
    """Computes a `statistic` of each coordinate of an upload over the clients.

    Args:
        statistic: A function from values `[n, m]`, ascending in each row, and their float32 weights
            `[n, m]`, to `[n]`.
        stack: The uploads of `m` clients.
    """

    def leaf_statistic(leaf):
        shape = leaf.shape[1:]
        values = tf.transpose(tf.reshape(leaf, [tf.size(stack.weight), shape.num_elements()]))
        order = tf.argsort(values, axis=1, stable=True)
        weights = tf.gather(stack.weight, order)
        return tf.reshape(statistic(tf.gather(values, order, batch_dims=1), weights), shape)

    return tf.nest.map_structure(leaf_statistic, stack.value)
