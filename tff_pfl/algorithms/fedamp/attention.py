"""How much clients take of each other's models: FedAMP's attention, and the heuristic one.

Both give convex combinations: each row of weights is not negative and adds up to 1.
"""

from typing import Any

import tensorflow as tf

from tff_pfl.local import trees

# Float32 has the sum of the squares of 10^10 numbers up to it, and the product of two such sums'
# roots.
_LONG = 1e14


def distance_attention(
    squared_distances: tf.Tensor, is_self: tf.Tensor, alpha: tf.Tensor, sigma: float
) -> tf.Tensor:
    """FedAMP's `xi_ij = alpha A'(d_ij)`, `A'(x) = exp(-x / sigma) / sigma`; `xi_ii` is the rest.

    Where the others of a row would come to more than 1, they are scaled to 1 and `xi_ii` is 0.

    Args:
        squared_distances: float32 `[k, m]`, from each of `k` clients to its `m` neighbours.
        is_self: bool `[k, m]`, where the neighbour is the client itself, once in each row.
        alpha: Scalar.
        sigma: Width of the attention, in the unit of the squared distances.
    """
    others = tf.where(is_self, 0.0, alpha * tf.exp(-squared_distances / sigma) / sigma)
    others /= tf.maximum(tf.reduce_sum(others, axis=1, keepdims=True), 1.0)
    rest = tf.nn.relu(1.0 - tf.reduce_sum(others, axis=1, keepdims=True))  # rounded, below 0
    return tf.where(is_self, rest, others)


def cosine_attention(
    cosines: tf.Tensor, is_self: tf.Tensor, sigma: float, self_weight: float | None
) -> tf.Tensor:
    """HeurFedAMP's `xi_ij ~ exp(sigma cos_ij)` for `j != i`, and `xi_ii = self_weight`.

    Args:
        cosines: float32 `[k, m]`, between each of `k` clients and its `m` neighbours.
        is_self: As in `distance_attention`.
        sigma: Sharpness of the attention.
        self_weight: In [0, 1]; default `1 / m`. It is 1 for a client without other neighbours.
    """
    neighbours = tf.shape(cosines)[1]
    if self_weight is None:
        self_weight = 1 / tf.cast(neighbours, tf.float32)
    # The lowest number that is finite: a row of the client alone has a softmax, too.
    logits = tf.where(is_self, tf.float32.min, sigma * cosines)
    others = tf.where(is_self, 0.0, tf.nn.softmax(logits))
    self_weight = tf.where(neighbours > 1, self_weight, 1.0)
    return tf.where(is_self, self_weight, (1.0 - self_weight) * others)


def squared_distances(first: Any, second: Any) -> tf.Tensor:
    """float32 `[k, m]` between structures whose tensors have leading axes of `k` and of `m`.

    Of differences, not of inner products, which would lose those of models that are alike.
    """
    first, second = tf.nest.flatten(first), tf.nest.flatten(second)

    def row(i):
        return tf.add_n(
            [
                tf.reduce_sum(tf.square(others - own[i]), axis=list(range(1, others.shape.rank)))
                for own, others in zip(first, second, strict=True)
            ]
        )

    # Row by row, as all differences at once are k m models.
    return trees.fill_rows(tf.zeros([tf.shape(first[0])[0], tf.shape(second[0])[0]]), row)


def cosines(first: Any, second: Any) -> tf.Tensor:
    """float32 `[k, m]` between structures as in `squared_distances`; 0 where one is zero."""

    def flat(leaf):
        return tf.reshape(leaf, [tf.shape(leaf)[0], leaf.shape[1:].num_elements()])

    first, second = (
        _shortened(tf.concat(list(map(flat, tf.nest.flatten(a))), axis=1)) for a in (first, second)
    )
    norms = tf.norm(first, axis=1)[:, tf.newaxis] * tf.norm(second, axis=1)
    return tf.math.divide_no_nan(tf.matmul(first, second, transpose_b=True), norms)


def median_of_others(squared_distances: tf.Tensor, is_self: tf.Tensor) -> tf.Tensor:
    """The median of squared distances between clients of different models; 0 if there are none.

    Those of equal models are left out: clients that never took part would make it 0. So are those
    that float32 does not have: one model far away would make it infinite.
    """
    counts = tf.logical_not(is_self) & (squared_distances > 0.0)
    counts &= tf.math.is_finite(squared_distances)
    values = tf.sort(tf.boolean_mask(squared_distances, counts))
    number = tf.size(values)
    middle = values[(number - 1) // 2 : number // 2 + 1]
    return tf.reduce_sum(tf.math.divide_no_nan(middle, tf.cast(tf.size(middle), tf.float32)))


def in_unit(squared_distances: tf.Tensor, unit: tf.Tensor) -> tf.Tensor:
    """Squared distances in a unit of them, 0 in the unit 0; what is infinite stays so."""
    found = tf.math.divide_no_nan(squared_distances, unit)
    return tf.where(tf.math.is_finite(squared_distances), found, squared_distances)


def _shortened(rows):
    """The directions of rows `[k, n]`: long ones come with their largest number as 1."""
    largest = tf.maximum(tf.reduce_max(rows, axis=1), -tf.reduce_min(rows, axis=1))
    return rows / tf.where(largest > _LONG, largest, 1.0)[:, tf.newaxis]
