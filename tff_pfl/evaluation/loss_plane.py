"""Computes the loss around a model on a plane of two random directions.

Directions are normalised by filter, as in Li et al., "Visualizing the loss landscape of neural
nets", NeurIPS 2018, section 4: a Gaussian direction `d` becomes

    d_f |w_f| / |d_f|       for each filter f of the weights w.

A network with ReLU computes the same function if a filter is scaled and the next layer is scaled
back. Without the normalisation, surfaces around larger weights would look flatter. A step of 1 is
as long as the weights. The two directions are not made orthogonal, but are nearly so for models
with many weights.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from tff_pfl.local import Examples, evaluate, trees
from tff_pfl.models import Model

# Separates the random numbers of directions from others with the same seed.
_DIRECTIONS_STREAM = 0x10553


def loss_surface(
    model: Model,
    weights: Any,
    examples: Examples,
    *,
    points: int = 21,
    radius: float = 1.0,
    seed: int = 0,
    batch_size: int = 200,
) -> np.ndarray:
    """Computes the mean loss at `w + a d_0 + b d_1`, for `a` and `b` on a square grid.

    Stochastic layers are off. Models of the same shapes get the same Gaussian directions, which
    are normalised by each model's weights.

    Args:
        model: The model.
        weights: `W`, the centre of the grid.
        examples: The examples over which the loss is averaged.
        points: The number of points on each axis of the grid, odd.
        radius: The ends of the axes, `-radius` and `radius`.
        seed: The seed of the directions, not negative.
        batch_size: The number of examples in a forward pass, which bounds memory. It does not
            change the result.

    Returns:
        float32 `[points, points]`. Rows are steps along the first direction, columns along the
        second, both from `grid_axis`. Losses may be infinite or NaN.

    Raises:
        ValueError: There are no examples, or `points` or `radius` is invalid (see `grid_axis`).
    """
    axis = grid_axis(points, radius)
    if not examples.size:
        raise ValueError("A loss surface needs examples, but the examples are empty.")
    directions = [random_direction(weights, seed, index) for index in range(2)]
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)

    @tf.function(autograph=False)
    def losses(weights, directions, examples, grid):
        def loss(point):
            moved = weights
            for direction, step in zip(directions, tf.unstack(grid[point]), strict=True):
                moved = trees.add(moved, trees.scale(direction, step))
            return evaluate(model, moved, examples, batch_size=batch_size)["loss"].mean

        # Computes one point at a time, because each point needs a model and a batch in memory.
        return trees.fill_rows(tf.zeros([points**2]), loss, parallel_iterations=1)

    arguments = tf.nest.map_structure(tf.convert_to_tensor, (weights, directions, examples, grid))
    return losses(*arguments).numpy().reshape(points, points)


def grid_axis(points: int, radius: float) -> np.ndarray:
    """Returns float32 `[points]`, equal steps from `-radius` to `radius`, exactly 0 in the middle.

    Raises:
        ValueError: `points` is even or less than 3, or `radius` is not positive and finite.
    """
    if points < 3 or points % 2 == 0:
        raise ValueError(
            f"A loss surface needs an odd number of points a side, 3 or more, got points={points}: "
            "the model is the point in the middle."
        )
    if not 0 < radius < np.inf:
        raise ValueError(f"The radius of a loss surface must be positive and finite, got {radius}.")
    half = points // 2
    return (radius * np.arange(-half, half + 1) / half).astype(np.float32)


def random_direction(weights: Any, seed: int, index: int) -> Any:
    """Draws a Gaussian direction, normalised filter by filter.

    Args:
        weights: `W`.
        seed: The seed, not negative.
        index: The number of the direction among the directions of a seed.

    Returns:
        A direction with the structure of `W`, whose filters have the norms of the filters in `W`. A
        filter is a slice along the last axis, which makes one output: a channel of a convolution's
        kernel `[h, w, in, out]`, or a column of a dense kernel `[in, out]`. The direction is 0 for
        weights of rank 0 and 1, which are biases and the parameters of normalisations.
    """
    rng = np.random.default_rng([seed, index, _DIRECTIONS_STREAM])
    return tf.nest.map_structure(lambda leaf: _direction(np.asarray(leaf), rng), weights)


def _direction(weight, rng):
    if weight.ndim <= 1:
        return np.zeros_like(weight)
    direction = rng.standard_normal(weight.shape)
    return (direction * _filter_norms(weight) / _filter_norms(direction)).astype(weight.dtype)


def _filter_norms(weight):
    squares = np.square(weight, dtype=np.float64)
    return np.sqrt(squares.sum(axis=tuple(range(weight.ndim - 1))))
