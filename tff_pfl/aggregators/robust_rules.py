"""Robust aggregates of a cohort, which a minority of attackers moves only a little.

Each is a function, in plain TensorFlow, of the uploads `v_i` of `m` clients and their weights
`w_i`, for a `StackRuleFactory`. Clients state their weights themselves, so that an attacker may
claim any; with uniform weights, each client counts once.
"""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tff_pfl.aggregators.stack import Stack
from tff_pfl.local import trees


def weighted_mean(stack: Stack) -> Any:
    """Computes `sum_i w_i v_i / sum_i w_i`, which is not robust."""
    return trees.combine(stack.weight / tf.reduce_sum(stack.weight), stack.value)


def trimmed_mean(stack: Stack, fraction: float) -> Any:
    """Computes the mean of each coordinate without its lowest and its highest values.

    `floor(fraction m)` of the `m` values are cut at either end, whatever they weigh; the mean of
    the others is weighted. A `fraction` of 0 is the weighted mean. (Yin et al., "Byzantine-robust
    distributed learning", ICML 2018, where weights are uniform.)

    Args:
        stack: Of one client or more.
        fraction: In [0, 0.5).
    """
    number = tf.size(stack.weight)
    # 0.29 * 100 is 29, but less in floating point.
    cut = tf.cast(tf.floor(fraction * tf.cast(number, tf.float64) + 1e-9), tf.int32)
    cut = tf.minimum(cut, (number - 1) // 2)

    def mean_of_middle(values, weights):
        values, weights = values[:, cut : number - cut], weights[:, cut : number - cut]
        weights = tf.cast(weights / tf.reduce_sum(weights, axis=1, keepdims=True), values.dtype)
        return tf.reduce_sum(weights * values, axis=1)

    return _by_coordinate(mean_of_middle, stack)


def median(stack: Stack) -> Any:
    """Computes the weighted median of each coordinate: it minimises `sum_i w_i |v_i - z|`.

    In ascending order, it is the value with which the weights reach half of their sum; where they
    reach exactly half, it is the mean of this and the next value, as usual for an even number of
    equal weights. (Yin et al., ICML 2018, where weights are uniform.)

    Args:
        stack: Of one client or more.
    """

    def middle(values, weights):
        with_own = tf.cumsum(tf.cast(weights, tf.float64), axis=1)  # of equal ones, exact
        before = tf.pad(with_own, [[0, 0], [1, 0]])[:, :-1]
        half = with_own[:, -1:] / 2.0
        is_middle = (before <= half) & (half <= with_own)
        count = tf.math.count_nonzero(is_middle, axis=1, dtype=values.dtype)
        return tf.reduce_sum(tf.where(is_middle, values, 0.0), axis=1) / count

    return _by_coordinate(middle, stack)


def geometric_median(
    stack: Stack, iterations: int, tolerance: float, smoothing: float
) -> tuple[Any, Mapping[str, tf.Tensor]]:
    """Finds the `z` with the least `sum_i w_i ||v_i - z||` by the smoothed algorithm of Weiszfeld.

    Starting from the `median` of each coordinate, it repeats

        b_i = w_i / max(nu, ||v_i - z||)        z <- sum_i b_i v_i / sum_i b_i

    until the residual, `||sum_i b_i (v_i - z)|| / sum_i w_i`, is at most `tolerance`. Each client
    pulls with a unit vector; the residual is the length of their weighted mean, 0 at the optimum.

    The source is Algorithm 2 of Pillutla, Kakade, Harchaoui, "Robust aggregation for federated
    learning", IEEE TSP 2022. It starts from the mean: if 10 of 21 clients are a million times as
    far off as the others are apart, 100 iterations from there do not come back. There, each
    iteration is a secure sum, and one more exchange with the clients. Here the server has the
    uploads: it keeps `z` as the shares of the clients in it, and finds distances from inner
    products of uploads, so that an iteration costs `m^2`. Most of the time goes to the median,
    which sorts.

    Args:
        stack: Of one client or more. An upload is one vector, however many tensors it has.
        iterations: Their largest number; 0 returns the median of each coordinate.
        tolerance: The residual at which it stops; with 0, it stops after all iterations, or at the
            optimum.
        smoothing: `nu`, above 0, the distance below which clients pull no more.

    Returns:
        `(z, measurements)`; the measurements are the `residual` at `z` and the number of
        `iterations`, float32 scalars.
    """
    centre = median(stack)  # inner products are relative to it, so that far uploads cancel nothing
    apart = tf.nest.map_structure(lambda rows, middle: rows - middle, stack.value, centre)
    gram = trees.gram(apart)
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
    return trees.add(centre, trees.combine(shares, apart)), {
        name: tf.cast(value, tf.float32) for name, value in measured.items()
    }


def krum(stack: Stack, num_attackers: int, num_selected: int | None = 1) -> Any:
    """Averages the uploads that are closest to their neighbours: Krum and Multi-Krum.

    With `f` attackers tolerated, a client's score is the sum of the squared distances of its upload
    to the `m - f - 2` closest others. The result is the weighted mean of the uploads with the
    lowest scores; ties go to the first of the cohort. (Blanchard et al., "Machine learning with
    adversaries", NeurIPS 2017, which needs `m >= 2 f + 3`.)

    Args:
        stack: Of `2 num_attackers + 3` clients or more. Weights do not change scores.
        num_attackers: `f`.
        num_selected: How many uploads are averaged, `m - f` at most, however few have reported; 1
            is Krum, `None` means `m - f`.
    """
    gram = trees.gram(stack.value)
    norms = tf.linalg.diag_part(gram)
    distances = tf.maximum(norms[:, tf.newaxis] + norms - 2.0 * gram, 0.0)
    number = tf.size(stack.weight)
    nearest = number - num_attackers - 2 + 1  # and the upload itself, at the distance 0
    scores = tf.reduce_sum(tf.sort(distances, axis=1)[:, :nearest], axis=1)
    most = number - num_attackers
    num_selected = most if num_selected is None else tf.minimum(num_selected, most)
    selected = tf.argsort(scores, stable=True)[:num_selected]
    return weighted_mean(Stack(trees.row(stack.value, selected), tf.gather(stack.weight, selected)))


def _by_coordinate(
    statistic: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    stack: Stack,
) -> Any:
    """Computes a `statistic` of each number of an upload over the clients.

    Args:
        statistic: From values `[n, m]`, in ascending order of each row, and their float32 weights,
            likewise, to `[n]`.
        stack: Of `m` clients.
    """

    def of_leaf(leaf):
        shape = leaf.shape[1:]
        values = tf.transpose(tf.reshape(leaf, [tf.size(stack.weight), shape.num_elements()]))
        order = tf.argsort(values, axis=1, stable=True)
        weights = tf.gather(stack.weight, order)
        return tf.reshape(statistic(tf.gather(values, order, batch_dims=1), weights), shape)

    return tf.nest.map_structure(of_leaf, stack.value)
