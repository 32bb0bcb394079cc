"""Tests filter-normalised directions, and loss surfaces with closed forms."""

import collections
import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.federation import random_examples, tiny_model
from tests.marks import together
from tff_pfl.evaluation import grid_axis, loss_surface, random_direction
from tff_pfl.local import Examples
from tff_pfl.models import Model, Task

DIM, NUM_OUTPUTS = 3, 2


def linear_model() -> Model:
    """Returns a model with outputs `x K` and their squared distances to `y` as the loss."""

    def apply(weights, x, training=False, seed=None):
        return tf.matmul(x, weights["dense"]["kernel"])

    def loss(y, outputs):
        return tf.reduce_sum(tf.square(outputs - tf.cast(y, tf.float32)[:, None]), axis=-1)

    return Model(lambda seed: layer(np.zeros([DIM, NUM_OUTPUTS])), apply, task=Task("own", loss))


def layer(kernel, **others):
    arrays = {"kernel": np.asarray(kernel, np.float32), **others}
    return collections.OrderedDict(dense=collections.OrderedDict(arrays))


def random_linear(seed=0):
    """Returns `(weights, examples)` of the linear model."""
    rng = np.random.default_rng(seed)
    examples = Examples(
        rng.normal(size=(7, DIM)).astype(np.float32),
        rng.integers(0, 5, 7).astype(np.int32),
        np.int32(7),
    )
    return layer(rng.normal(size=(DIM, NUM_OUTPUTS))), examples


def norms(weight):
    """Returns the norms of a weight's filters."""
    return [np.linalg.norm(weight[..., i].ravel()) for i in range(weight.shape[-1])]


@pytest.mark.parametrize("shape", [(5, 4), (3, 2, 6, 4)], ids=str)
def test_filters_of_a_direction_have_the_norms_of_the_weights(shape):
    rng = np.random.default_rng(0)
    weight = (rng.normal(size=shape) * 10.0 ** rng.integers(-4, 4, shape[-1])).astype(np.float32)
    weight[..., 0] = 0.0  # A dead filter does not move.
    direction = random_direction(layer(weight), seed=3, index=0)["dense"]["kernel"]
    assert direction.dtype == np.float32
    np.testing.assert_allclose(norms(direction), norms(weight), rtol=1e-5)
    if shape[-1] > 1:
        # The direction is not a copy: its angle to the weights is arbitrary.
        cosine = np.sum(weight[..., -1] * direction[..., -1]) / norms(weight)[-1] ** 2
        assert abs(cosine) < 0.99


def test_direction_is_zero_for_biases_and_scales():
    weights = layer(np.ones([3, 2]), bias=np.ones([2], np.float32), scale=np.float32(4.0))
    direction = random_direction(weights, seed=0, index=1)["dense"]
    assert list(direction) == ["kernel", "bias", "scale"]
    np.testing.assert_array_equal(direction["bias"], [0.0, 0.0])
    np.testing.assert_array_equal(direction["scale"], 0.0)
    assert np.all(direction["kernel"] != 0)


def test_directions_are_functions_of_the_seed_and_the_index():
    weights = layer(np.ones([6, 5]))

    def kernel(seed, index, weights=weights):
        return random_direction(weights, seed, index)["dense"]["kernel"]

    np.testing.assert_array_equal(kernel(1, 0), kernel(1, 0))
    assert np.all(kernel(1, 0) != kernel(1, 1))
    assert np.all(kernel(1, 0) != kernel(2, 0))
    # Models of the same shapes get the same Gaussian direction.
    np.testing.assert_allclose(kernel(1, 0, layer(np.full([6, 5], 3.0))), 3 * kernel(1, 0), 1e-6)


@pytest.mark.parametrize("batch_size", [2])
def test_surface_of_a_quadratic_matches_numpy(batch_size):
    weights, examples = random_linear()
    found = loss_surface(
        linear_model(), weights, examples, points=5, radius=1.5, seed=4, batch_size=batch_size
    )
    assert found.shape == (5, 5) and found.dtype == np.float32
    first, second = (random_direction(weights, 4, index)["dense"]["kernel"] for index in range(2))
    axis = [-1.5, -0.75, 0.0, 0.75, 1.5]
    for i, a in enumerate(axis):
        for j, b in enumerate(axis):
            kernel = weights["dense"]["kernel"] + a * first + b * second
            residual = examples.x.astype(np.float64) @ kernel - examples.y[:, None]
            expected = np.sum(residual**2) / 7
            assert found[i, j] == pytest.approx(expected, rel=1e-5)


def test_centre_of_the_surface_is_the_models_loss():
    model, examples = tiny_model(), random_examples(23)
    rng = np.random.default_rng(0)
    weights = tf.nest.map_structure(
        lambda leaf: (leaf + rng.normal(size=leaf.shape)).astype(np.float32),
        tf.nest.map_structure(np.asarray, model.init(3)),
    )
    losses = tf.keras.losses.sparse_categorical_crossentropy(
        examples.y, model.apply(weights, examples.x, training=False, seed=None), from_logits=True
    )
    surface = loss_surface(model, weights, examples, points=3, radius=0.5, batch_size=10)
    assert surface[1, 1] == pytest.approx(float(tf.reduce_mean(losses)), rel=1e-5)
    assert np.all(np.delete(surface, 4) != surface[1, 1])


def test_surface_ignores_padding():
    weights, examples = random_linear()
    padded = Examples(
        np.pad(examples.x, [(0, 4), (0, 0)], constant_values=np.nan),
        np.pad(examples.y, (0, 4)),
        examples.size,
    )
    np.testing.assert_array_equal(
        loss_surface(linear_model(), weights, padded, points=3, batch_size=4),
        loss_surface(linear_model(), weights, examples, points=3, batch_size=4),
    )


def test_surface_keeps_nan_losses():
    weights, examples = layer(np.full([DIM, NUM_OUTPUTS], 0.1)), random_linear()[1]
    examples = examples._replace(x=np.ones_like(examples.x))
    model = dataclasses.replace(
        linear_model(), task=Task("log", lambda y, outputs: tf.math.log(outputs[:, 0]))
    )
    surface = loss_surface(model, weights, examples, points=5, radius=8.0)
    steps = [random_direction(weights, 0, index)["dense"]["kernel"][:, 0].sum() for index in (0, 1)]
    axis = np.array([-8.0, -4.0, 0.0, 4.0, 8.0])
    output = 0.3 + axis[:, None] * steps[0] + axis * steps[1]
    assert 0 < np.sum(output < 0) < 24
    np.testing.assert_array_equal(np.isnan(surface), output < 0)


@pytest.mark.parametrize(("points", "radius"), [(3, 1.0), (101, 12.0)])
def test_grid_axis_is_symmetric_about_exactly_0(points, radius):
    axis = grid_axis(points, radius)
    assert axis.dtype == np.float32 and len(axis) == points
    assert axis[points // 2] == 0.0
    np.testing.assert_array_equal(axis, -axis[::-1])
    np.testing.assert_allclose(axis, np.linspace(-radius, radius, points), atol=1e-6 * radius)


@together(
    ("options", "message"),
    [
        ({"points": 20}, "odd number of points a side, 3 or more, got points=20"),
        ({"points": 1}, "got points=1:"),
        ({"radius": 0.0}, "must be positive and finite, got 0.0"),
        ({"radius": float("inf")}, "must be positive and finite, got inf"),
    ],
)
def test_loss_surface_refuses_invalid_grids(options, message):
    weights, examples = random_linear()
    with pytest.raises(ValueError, match=message):
        loss_surface(linear_model(), weights, examples, **options)


def test_loss_surface_needs_examples():
    weights, examples = random_linear()
    with pytest.raises(ValueError, match="needs examples, but the examples are empty"):
        loss_surface(linear_model(), weights, examples._replace(size=np.int32(0)), points=3)
