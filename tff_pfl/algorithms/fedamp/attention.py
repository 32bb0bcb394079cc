"""Attention between clients' models: FedAMP's, and HeurFedAMP's.

Both give convex combinations: the weights of each row are not negative and add up to 1.
"""

from typing import Any

import tensorflow as tf

from tff_pfl.local import trees

# Float32 can hold the sum of squares of 10^10 numbers up to this, and the product of the roots of
# two such sums.
_LONG = 1e14


def distance_attention(
    squared_distances: tf.Tensor, is_self: tf.Tensor, alpha: tf.Tensor, sigma: float
) -> tf.Tensor:
    """Computes FedAMP's `xi_ij = alpha A'(d_ij)`, `A'(x) = exp(-x / sigma) / sigma`.

    `xi_ii` is the rest to 1. If the other entries of a row add up to more than 1, they are scaled
    to a sum of 1 and `xi_ii` is 0.

    Args:
        squared_distances: float32 `[k, m]`, from each of `k` clients to its `m` neighbours.
        is_self: bool `[k, m]`, whether the neighbour is the client itself, once in each row.
        alpha: Scalar.
        sigma: Width of the attention, in the unit of the squared distances.
    """
    others = tf.where(is_self, 0.0, alpha * tf.exp(-squared_distances / sigma) / sigma)
    others /= tf.maximum(tf.reduce_sum(others, axis=1, keepdims=True), 1.0)
    rest = tf.nn.relu(1.0 - tf.reduce_sum(others, axis=1, keepdims=True))  # rounded below 0
    return tf.where(is_self, rest, others)


def cosine_attention(
    cosines: tf.Tensor, is_self: tf.Tensor, sigma: float, self_weight: float | None
) -> tf.Tensor:
    """Computes HeurFedAMP's `xi_ij ~ exp(sigma cos_ij)`, `j != i`, and `xi_ii = self_weight`.

    Args:
        cosines: float32 `[k, m]`, between each of `k` clients and its `m` neighbours.
        is_self: See `distance_attention`.
        sigma: Sharpness of the attention.
        self_weight: In [0, 1]; default `1 / m`. A client without other neighbours has 1.
    """
    neighbours = tf.shape(cosines)[1]
    own = 1 / tf.cast(neighbours, tf.float32) if self_weight is None else self_weight
    # The lowest finite number, so that the softmax exists if the client is its only neighbour.
    logits = tf.where(is_self, tf.float32.min, sigma * cosines)
    others = tf.where(is_self, 0.0, tf.nn.softmax(logits))
    own = tf.where(neighbours > 1, own, 1.0)
    return tf.where(is_self, own, (1.0 - own) * others)


def squared_distances(first: Any, second: Any) -> tf.Tensor:
    """Computes the squared distances between `k` and `m` models, float32 `[k, m]`.

    They are computed from differences, as inner products would lose the small distances between
    similar models.

    Args:
        first: A structure whose tensors have a leading axis of `k`.
        second: The same structure with a leading axis of `m`.
    """
    first, second = tf.nest.flatten(first), tf.nest.flatten(second)

    def row(i):
        return tf.add_n(
            [
                tf.reduce_sum(tf.square(others - own[i]), axis=list(range(1, others.shape.rank)))
                for own, others in zip(first, second, strict=True)
            ]
        )

    # Row by row, as all differences at once would take the memory of k m models.
    return trees.fill_rows(tf.zeros([tf.shape(first[0])[0], tf.shape(second[0])[0]]), row)


def cosines(first: Any, second: Any) -> tf.Tensor:
    """Computes the cosines between `k` and `m` models, float32 `[k, m]`; 0 if a model is zero.

    Args:
        first: See `squared_distances`.
        second: See `squared_distances`.
    """

    def flat(leaf):
        return tf.reshape(leaf, [tf.shape(leaf)[0], leaf.shape[1:].num_elements()])

    first, second = (
        _shortened(tf.concat(list(map(flat, tf.nest.flatten(a))), axis=1)) for a in (first, second)
    )
    norms = tf.norm(first, axis=1)[:, tf.newaxis] * tf.norm(second, axis=1)
    return tf.math.divide_no_nan(tf.matmul(first, second, transpose_b=True), norms)


def median_of_others(squared_distances: tf.Tensor, is_self: tf.Tensor) -> tf.Tensor:
    """Computes the median squared distance between clients with different models.

    Zero distances are left out, because clients that never took part have equal models. Infinite
    ones are left out, too: a model may be so far away that float32 overflows. The median is 0 if
    no distance remains.
    """
    counts = tf.logical_not(is_self) & (squared_distances > 0.0)
    counts &= tf.math.is_finite(squared_distances)
    values = tf.sort(tf.boolean_mask(squared_distances, counts))
    number = tf.size(values)
    middle = values[(number - 1) // 2 : number // 2 + 1]
    return tf.reduce_sum(tf.math.divide_no_nan(middle, tf.cast(tf.size(middle), tf.float32)))


def in_unit(squared_distances: tf.Tensor, unit: tf.Tensor) -> tf.Tensor:
    """Divides squared distances by `unit`; gives 0 if it is 0. Infinite distances stay infinite."""
    found = tf.math.divide_no_nan(squared_distances, unit)
    return tf.where(tf.math.is_finite(squared_distances), found, squared_distances)


def _shortened(rows):
    """Scales long rows of `[k, n]` so that their largest number is 1; directions stay."""
    largest = tf.maximum(tf.reduce_max(rows, axis=1), -tf.reduce_min(rows, axis=1))
    return rows / tf.where(largest > _LONG, largest, 1.0)[:, tf.newaxis]
