"""Tests that SavedModels of `ModelSaver` work without this library."""

import numpy as np
import pytest
import tensorflow as tf

from tests.models.keras import test_adapter
from tff_pfl.arguments.kinds import KindError
from tff_pfl.models import ModelSaver, build, from_keras

X = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)


def test_saver_writes_several_weights(tmp_path):
    model = from_keras(test_adapter.mlp, input_shape=(4,), preprocess=lambda x: 2 * x)
    saver = ModelSaver(model, (4,), np.float32)
    for seed in (0, 1):
        saver.save(model.init(seed), tmp_path / f"{seed}")
    for seed in (0, 1):
        weights, loaded = model.init(seed), tf.saved_model.load(str(tmp_path / f"{seed}"))
        np.testing.assert_array_equal(loaded(X), model.apply(weights, X, training=False))
        np.testing.assert_allclose(loaded(X[:1])[0], loaded(X)[0], rtol=1e-5)
        assert list(loaded.weights) == list(weights)
        for layer, values in weights.items():
            for name, value in values.items():
                np.testing.assert_array_equal(loaded.weights[layer][name], value)
        (served,) = loaded.signatures["serving_default"](x=tf.constant(X)).values()
        np.testing.assert_array_equal(served, loaded(X))


def test_saved_model_answers_in_the_units_before_the_scaling_of_labels(tmp_path):
    def made(**options):
        return from_keras(test_adapter.mlp, input_shape=(4,), **options)

    plain, scaled = made(), made(postprocess=lambda y: {"sales": 1000 * y + 7})
    weights = plain.init(0)
    np.testing.assert_array_equal(scaled.apply(weights, X), plain.apply(weights, X))
    ModelSaver(scaled, (4,), np.float32).save(weights, tmp_path / "saved")
    loaded = tf.saved_model.load(str(tmp_path / "saved"))
    expected = 1000 * plain.apply(weights, X, training=False) + 7
    np.testing.assert_allclose(loaded(X)["sales"], expected, rtol=1e-6)
    served = loaded.signatures["serving_default"](x=tf.constant(X))
    np.testing.assert_array_equal(served["sales"], loaded(X)["sales"])
    with pytest.raises(KindError, match="postprocess of a model must be a function, got 1000"):
        made(postprocess=1000)


def test_saved_model_takes_images_as_stored(tmp_path):
    model = build("mlp", (8, 8, 3), 4, hidden=(3,))
    images = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3)).astype(np.uint8)
    ModelSaver(model, (8, 8, 3), images.dtype).save(model.init(3), tmp_path / "saved")
    loaded = tf.saved_model.load(str(tmp_path / "saved"))
    expected = model.apply(model.init(3), images, training=False)
    np.testing.assert_allclose(loaded(images), expected, rtol=1e-6)
    with pytest.raises(TypeError, match="uint8"):
        loaded(tf.cast(images, tf.float32))
