"""Tests pure Keras layers: dropout from a seed, and computing in bfloat16."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.federation import assert_close
from tests.models.keras.test_adapter import layers, sequential
from tff_pfl.local import Batch
from tff_pfl.models import Task, from_keras
from tff_pfl.models.keras.layers import pure_layers

RNG = np.random.default_rng(0)

SEED = tf.constant([1, 2])
WIDTH = 400


def masks(*layers, shape=(WIDTH,)):
    """Returns a function that stacks the outputs of `layers` for an input of ones."""

    def keras_model_fn():
        x = tf.keras.Input(shape)
        # A model needs weights; these are ones and change nothing.
        scaled = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", name="one")
        one = scaled(tf.keras.layers.Flatten()(x)[:, :1])
        outputs = [tf.keras.layers.Flatten()(layer()(x)) * one for layer in layers]
        return tf.keras.Model(x, tf.stack(outputs, axis=1))

    # The model has no logits, and its loss is not used.
    model = from_keras(keras_model_fn, input_shape=shape, task=Task("none", tf.identity))

    def outputs(seed=SEED, training=True, batch=1):
        return model.apply(model.init(0), tf.ones([batch, *shape]), training=training, seed=seed)

    return outputs


def dropout(rate=0.5, **kwargs):
    return lambda: tf.keras.layers.Dropout(rate, **kwargs)


@pytest.fixture(scope="module")
def two():
    return masks(dropout(), dropout())


def test_masks_are_functions_of_the_seed(two):
    np.testing.assert_array_equal(two(), two())
    assert np.mean(two() == two(tf.constant([1, 3]))) < 0.7
    tf.random.set_seed(7)
    np.testing.assert_array_equal(two(), two(tf.constant([1, 2])))


def test_masks_of_layers_and_rows_are_independent(two):
    outputs = two(batch=2).numpy()
    several = outputs.reshape([4, WIDTH]) > 0
    agreement = [np.mean(a == b) for i, a in enumerate(several) for b in several[:i]]
    # Independent fair masks agree in 400 places with mean 1/2, standard deviation 1/40.
    np.testing.assert_allclose(agreement, 0.5, atol=0.15)


def test_dropout_keeps_the_mean(rate=0.2):
    outputs = masks(dropout(rate))(batch=50).numpy()
    values = np.unique(outputs)
    np.testing.assert_allclose(values, [0.0, 1 / (1 - rate)], rtol=1e-6)
    # 20,000 draws: the standard deviation of the mean is sqrt(rate / (1 - rate) / 20,000) <= 0.007.
    np.testing.assert_allclose(outputs.mean(), 1.0, atol=0.03)


def test_dropout_is_off_in_evaluation_and_at_rate_zero(two):
    np.testing.assert_array_equal(two(training=False), np.ones([1, 2, WIDTH]))
    np.testing.assert_array_equal(two(training=False, seed=None), np.ones([1, 2, WIDTH]))
    np.testing.assert_array_equal(masks(dropout(0))(seed=None), np.ones([1, 1, WIDTH]))


def test_dropout_needs_a_seed(two):
    with pytest.raises(ValueError, match="needs a seed"):
        two(seed=None)


def test_noise_shape_is_respected():
    shared = masks(dropout(noise_shape=(1, None)))(batch=3).numpy()
    np.testing.assert_array_equal(shared[0], shared[2])
    assert len(np.unique(shared)) == 2

    spatial = masks(lambda: tf.keras.layers.SpatialDropout1D(0.5), shape=(5, 40))().numpy()
    spatial = spatial.reshape([5, 40])
    np.testing.assert_array_equal(spatial, np.broadcast_to(spatial[0], [5, 40]))
    assert len(np.unique(spatial)) == 2


def policies():
    built = (layers.Dense(1), layers.GroupNormalization(1), layers.Embedding(1, 1))
    return [layer.dtype_policy.name for layer in built]


def test_pure_layers_restores_keras():
    ordinary, x = layers.Dropout(0.5), tf.ones([WIDTH])
    with pytest.raises(ZeroDivisionError), pure_layers(SEED, compute_type="bfloat16"):
        assert policies() == ["bfloat16", "float32", "mixed_bfloat16"]
        raise ZeroDivisionError
    assert policies() == ["float32"] * 3
    assert np.any(ordinary(x, training=True) != ordinary(x, training=True))


mlp = sequential(
    lambda: layers.Dense(16, "tanh", name="body"), lambda: layers.Dropout(0.25), shape=(8,)
)


@functools.cache
def model_of(keras_model_fn, compute_type, size=8):
    return from_keras(keras_model_fn, input_shape=(size,), compute_type=compute_type)


def test_bfloat16_gradients_are_float32_and_close_to_float32():
    """Allows for the 8 significant bits of bfloat16; dropout masks are the same."""
    float32, bfloat16 = (model_of(mlp, kind) for kind in ("float32", "bfloat16"))
    weights, y = float32.init(0), RNG.integers(0, 3, 40)
    x = RNG.normal(size=(40, 8)) + 2 * np.eye(3, 8)[y]
    x, y = tf.constant(x, tf.float32), tf.constant(y, tf.int32)
    batch = Batch(x, y, tf.ones([40]), SEED)
    assert_close(bfloat16.init(0), weights, 0)
    (gradient, totals), (expected, _) = (m.gradient(weights, batch) for m in (bfloat16, float32))
    values = tf.nest.flatten((gradient, totals, bfloat16.apply(weights, batch.x)))
    assert {value.dtype for value in values} == {tf.float32}
    for actual, exact in zip(tf.nest.flatten(gradient), tf.nest.flatten(expected), strict=True):
        assert 0 < np.linalg.norm(actual - exact) < 2.0**-6 * np.linalg.norm(exact)
    features = bfloat16.features(weights, batch.x)
    assert features.dtype == tf.float32
    np.testing.assert_array_equal(features, tf.cast(tf.cast(features, tf.bfloat16), tf.float32))


def test_normalisation_computes_in_float32():
    """Uses a mean of 10,000, at which bfloat16 would lose the deviations of 1."""

    def normalized():
        return tf.keras.Sequential(
            [tf.keras.Input((4,)), layers.GroupNormalization(2), layers.Dense(4, name="head")]
        )

    model = model_of(normalized, "bfloat16", size=4)
    weights = model.init(0)
    weights["head"]["kernel"] = tf.eye(4)
    x = tf.constant([[9999.0, 10001.0, 9999.0, 10001.0]])
    np.testing.assert_allclose(model.apply(weights, x), [[-1, 1, -1, 1]], atol=0.01)


def test_layers_keep_their_dtype():
    types = {}

    class Spy(layers.Layer):
        def call(self, x):
            types[self.name] = x.dtype
            return x

    def network():
        spies = [Spy(name="spy"), Spy(name="exact", dtype="float32")]
        return tf.keras.Sequential([tf.keras.Input((8,)), *spies, layers.Dense(3, name="head")])

    model = from_keras(network, input_shape=(8,), compute_type="bfloat16")
    model.apply(model.init(0), tf.ones([2, 8]))
    assert types == {"spy": tf.bfloat16, "exact": tf.float32}


def test_global_policy_has_no_effect():
    """Ignores the user's policy, which may be for other models."""
    weights = model_of(mlp, "float32").init(0)
    x = tf.constant(RNG.normal(size=(4, 8)), tf.float32)
    expected = model_of(mlp, "float32").apply(weights, x)
    before = tf.keras.mixed_precision.global_policy()
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        model = from_keras(mlp, input_shape=(8,))
        np.testing.assert_array_equal(model.apply(weights, x), expected)
    finally:
        tf.keras.mixed_precision.set_global_policy(before)


class Words(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.table = layers.Embedding(600, 3, name="table")
        self.head = layers.Dense(3, name="head")

    def call(self, x):
        return self.head(tf.reduce_mean(self.table(x), axis=1))


def words(**options):
    return lambda: tf.keras.Sequential(
        [
            layers.Embedding(600, 3, name="table", **options),
            layers.GlobalAveragePooling1D(),
            layers.Dense(3, name="head"),
        ]
    )


def to_integers(x):
    return tf.cast(x, tf.int32)


def test_inputs_of_embeddings_are_not_rounded():
    """Uses integers above 256, of which bfloat16 holds only every second."""
    for keras_model_fn, preprocess in (
        (words(), None),
        (words(input_length=2), None),
        (Words, to_integers),
    ):
        model = from_keras(
            keras_model_fn, input_shape=(2,), compute_type="bfloat16", preprocess=preprocess
        )
        weights = model.init(0)
        weights[model.layers[0]]["embeddings"] = tf.random.stateless_normal([600, 3], [1, 2])
        one, other = model.apply(weights, tf.constant([[257, 511], [256, 512]], tf.uint16))
        assert np.all(np.abs(one - other) > 0.01)


def test_rounded_inputs_of_embeddings_are_refused():
    model = from_keras(Words, input_shape=(2,), compute_type="bfloat16")
    with pytest.raises(ValueError, match="converts bfloat16 to integers.*preprocess="):
        model.apply(model.init(0), tf.ones([1, 2]))


def test_unknown_compute_type_is_refused():
    with pytest.raises(ValueError, match="Unknown compute type 'bfloat'.*'bfloat16'"):
        model_of(mlp, "bfloat")
