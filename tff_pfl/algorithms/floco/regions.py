"""Regions of the simplex: their assignment to clients by updates, and points drawn from them.

With the updates `u_i` of `k` clients, the centre `alpha_i` of a client's region is

    kappa_i   = the scores of u_i on the first M principal components of u_1 .. u_k
    alpha_i   = the point of the simplex nearest to kappa_i / z
    z         = argmin sum_{i<j} 1 / ||alpha_i - alpha_j||^2       over 1000 values up to 1

The sum is the Riesz energy, with `s = 2`, which keeps centres apart. As in the authors' code,
distances below 1e-4 count as 1e-4. The largest loading of each component is positive.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tff_pfl.local import project_to_simplex, trees
from tff_pfl.numerics.host import on_host

_SCALES = np.linspace(1e-4, 1.0, 1000).reshape([50, 20])  # 20 are tried at a time
_NEAREST = 1e-4  # the distance as which smaller ones count
_RANK = 1e-10  # the share of the largest variance below which a variance is rounding


class Region(NamedTuple):
    """The region of a client.

    Attributes:
        centre: float32 `[M]`, `alpha_i`; the centre of the simplex before the assignment.
        is_assigned: bool scalar; `False` if the region is still the whole simplex.
    """

    centre: tf.Tensor
    is_assigned: tf.Tensor


class Projection(NamedTuple):
    """A map from updates of `d` numbers to the simplex.

    Attributes:
        mean: float32 `[d]`, the mean update.
        components: float32 `[M, d]`, the principal components; surplus ones are 0.
        scale: float32 scalar, `z`; 0 before the projection is fitted.
    """

    mean: tf.Tensor
    components: tf.Tensor
    scale: tf.Tensor

    def centres(self, updates: tf.Tensor) -> tf.Tensor:
        """Computes the centres, float32 `[k, M]`, of updates `[k, d]`."""
        scores = tf.matmul(updates - self.mean, self.components, transpose_b=True)
        return project_to_simplex(tf.math.divide_no_nan(scores, self.scale))


class Assignment(NamedTuple):
    """The regions of `N` clients, and the updates to which they are due.

    Attributes:
        regions: `Region`, each tensor with a leading axis of `N`.
        updates: float32 `[N, d]`, the last update of each client.
        are_known: bool `[N]`, whether a client has sent an update.
        projection: The projection from updates to centres.
    """

    regions: Region
    updates: tf.Tensor
    are_known: tf.Tensor
    projection: Projection

    @classmethod
    def initial(cls, num_clients: int, num_endpoints: int, num_weights: int) -> "Assignment":
        """Returns the whole simplex for each client."""
        nobody = tf.zeros([num_clients], tf.bool)
        return cls(
            Region(tf.fill([num_clients, num_endpoints], 1 / num_endpoints), nobody),
            tf.zeros([num_clients, num_weights]),
            nobody,
            Projection(
                tf.zeros([num_weights]), tf.zeros([num_endpoints, num_weights]), tf.constant(0.0)
            ),
        )

    def after(self, ids: tf.Tensor, updates: tf.Tensor, is_time: tf.Tensor) -> "Assignment":
        """Returns the assignment after the updates of a cohort.

        The projection is fitted once, to the last updates of all clients so far. From then on, it
        assigns a region to each client that has none, and changes no other.

        Args:
            ids: int32 `[k]`, the cohort.
            updates: float32 `[k, d]`, its updates.
            is_time: bool scalar, whether clients may have regions.
        """
        updates = trees.put_rows(self.updates, ids, updates)
        are_known = trees.put_rows(self.are_known, ids, tf.fill(tf.shape(ids), True))
        num_endpoints = self.regions.centre.shape[1]
        projection = tf.cond(
            is_time & tf.equal(self.projection.scale, 0.0) & tf.reduce_any(are_known),
            lambda: fitted(tf.boolean_mask(updates, are_known), num_endpoints),
            lambda: self.projection,
        )
        are_assigned = are_known & (projection.scale > 0.0)
        are_new = are_assigned & ~self.regions.is_assigned
        centres = projection.centres(updates)
        centres = tf.where(are_new[:, tf.newaxis], centres, self.regions.centre)
        return Assignment(Region(centres, are_assigned), updates, are_known, projection)


def fitted(updates: tf.Tensor, num_endpoints: int) -> Projection:
    """Fits the projection to updates `[k, d]`."""
    updates = tf.cast(updates, tf.float64)
    mean = tf.reduce_mean(updates, axis=0)
    apart = updates - mean
    with on_host():
        variances, directions = tf.linalg.eigh(tf.matmul(apart, apart, transpose_b=True))
    variances, directions = variances[::-1][:num_endpoints], directions[:, ::-1][:, :num_endpoints]
    lengths = tf.sqrt(
        tf.where(variances > _RANK * variances[0], variances, tf.zeros_like(variances))
    )
    directions = tf.math.divide_no_nan(directions, lengths)
    components = tf.matmul(directions, apart, transpose_a=True)
    components *= _signs_of_largest(components)
    missing = num_endpoints - tf.shape(components)[0]
    components = tf.pad(components, [[0, missing], [0, 0]])
    components = tf.ensure_shape(components, [num_endpoints, updates.shape[1]])
    scores = tf.matmul(apart, components, transpose_b=True)
    scales = tf.constant(_SCALES)

    def energies(k):
        return _energies(project_to_simplex(scores / scales[k][:, tf.newaxis, tf.newaxis]))

    with on_host():
        found = trees.fill_rows(tf.zeros_like(scales), energies, parallel_iterations=1)
        scale = tf.gather(tf.reshape(scales, [-1]), tf.argmin(tf.reshape(found, [-1])))
    return Projection(*(tf.cast(part, tf.float32) for part in (mean, components, scale)))


def drawn(region: Region, radius: float, seed: tf.Tensor) -> tf.Tensor:
    """Draws a point of a region, float32 `[M]`.

    The point is uniform in the simplex, or within the distance `radius` of the centre in the
    1-norm: in a random direction at a uniform distance, and from there the nearest of the simplex.

    Args:
        region: The region.
        radius: The radius of assigned regions.
        seed: int32 `[2]`.
    """
    size = region.centre.shape[0]
    smallest = np.finfo(np.float32).tiny
    numbers = tf.random.stateless_uniform([size + 1], seed, minval=smallest, maxval=1.0)
    numbers, distance = numbers[:size], radius * numbers[size]
    exponential = -tf.math.log(numbers)
    anywhere = exponential / tf.reduce_sum(exponential)
    direction = numbers - tf.reduce_mean(numbers)  # along the simplex
    direction = tf.math.divide_no_nan(direction, tf.reduce_sum(tf.abs(direction)))
    near = project_to_simplex((region.centre + distance * direction)[tf.newaxis])[0]
    return tf.where(region.is_assigned, near, anywhere)


def _signs_of_largest(rows):
    """Returns the sign of the number of largest magnitude of each row, `[k, 1]`."""
    places = tf.argmax(tf.abs(rows), axis=1)
    return tf.sign(tf.gather(rows, places[:, tf.newaxis], batch_dims=1))


def _energies(points):
    """Returns the energies `[s]` of `[s, k, M]`, `s` times `k` points."""
    products = tf.matmul(points, points, transpose_b=True)
    squares = tf.linalg.diag_part(products)
    distances = squares[:, tf.newaxis] + squares[:, :, tf.newaxis] - 2.0 * products
    are_pairs = 1.0 - tf.eye(tf.shape(points)[1], dtype=points.dtype)
    return tf.reduce_sum(are_pairs / tf.maximum(distances, _NEAREST**2), axis=[1, 2]) / 2.0
