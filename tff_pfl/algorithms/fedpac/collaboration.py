"""Weights for combining the clients' heads, computed from the moments of their features.

`h_i = (1/n_i) sum_(x, y) e_y f(x)^T` is a matrix with a row for each class. The error of a linear
head that client `i` has fitted has two parts: the randomness of its examples, `V_i`, and, at
another client `j`, the difference between their classes and features:

    V_i    = (1/n_i) ( (1/n_i) sum ||f(x)||^2 - ||h_i||^2 )
    alpha  = argmin sum_j alpha_j^2 V_j + ||sum_j alpha_j (h_i - h_j)||^2
             with alpha >= 0,  sum_j alpha_j = 1                                     for client i
"""

from typing import NamedTuple

import tensorflow as tf

from tff_pfl.algorithms.fedproto import class_sums_of_batch
from tff_pfl.local import Examples, sum_over, trees
from tff_pfl.models import Model, Weights
from tff_pfl.numerics.host import on_host
from tff_pfl.numerics.min_norm import min_norm_weights


class Moments(NamedTuple):
    """Weighted sums over a client's examples, with `c` classes and features `f(x)` of `d` numbers.

    Attributes:
        features: float32 `[c, d]`, the sum of the features of each class.
        counts: float32 `[c]`, the number of examples of each class, or the sum of their weights.
        squares: float32 scalar, the sum of `||f(x)||^2`.
    """

    features: tf.Tensor
    counts: tf.Tensor
    squares: tf.Tensor

    @property
    def mean(self) -> tf.Tensor:
        """`h_i`, float32 `[c, d]`."""
        return self.features / self._size

    @property
    def variance(self) -> tf.Tensor:
        """`V_i`, a float32 scalar, 0 or more."""
        spread = self.squares / self._size - tf.reduce_sum(tf.square(self.mean))
        return tf.nn.relu(spread) / self._size

    @property
    def _size(self):
        size = tf.reduce_sum(self.counts)
        return tf.where(size > 0.0, size, 1.0)


def class_moments(model: Model, weights: Weights, examples: Examples, num_classes: int) -> Moments:
    """Computes the moments of a client's features, without training behaviour.

    Args:
        model: A model that has `features`.
        weights: Its weights.
        examples: The client's examples.
        num_classes: `c`.
    """

    def sums(batch):
        of_class, features = class_sums_of_batch(model, weights, batch, num_classes)
        weight = model.example_weight(batch)
        squares = tf.reduce_sum(tf.square(features) * weight[:, tf.newaxis])
        return Moments(*of_class, squares)

    start = Moments(
        tf.zeros([num_classes, model.num_features]), tf.zeros([num_classes]), tf.constant(0.0)
    )
    return sum_over(examples, sums, start=start)


def combinations(means: tf.Tensor, variances: tf.Tensor) -> tf.Tensor:
    """Computes the weights `alpha_i` of all heads in the new head of each client `i`, in rows.

    Args:
        means: float32 `[k, c, d]`, `h_i`.
        variances: float32 `[k]`, `V_i`.

    Returns:
        float64 `[k, k]`, not negative; each row adds up to 1.
    """
    means = tf.cast(means, tf.float64)
    means = tf.reshape(means, [-1, means.shape[1:].num_elements()])
    own_variances = tf.linalg.diag(tf.cast(variances, tf.float64))

    def row(i):
        apart = means[i] - means
        gram = own_variances + tf.matmul(apart, apart, transpose_b=True)
        with on_host():
            return min_norm_weights(gram)

    return trees.fill_rows(tf.zeros_like(own_variances), row)
