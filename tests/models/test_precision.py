"""Tests of mixed precision: layers that compute in bfloat16, with weights in float32."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.federation import assert_close, local_sgd
from tff_pfl.local import Batch, ClientContext, Examples, evaluate
from tff_pfl.models import KerasModelError, from_keras
from tff_pfl.models.precision import computing_in
from tff_pfl.names import UnknownNameError

layers = tf.keras.layers
RNG = np.random.default_rng(0)


def mlp():
    return tf.keras.Sequential(
        [
            layers.Dense(16, "tanh", name="body", input_shape=(8,)),
            layers.Dropout(0.25),
            layers.Dense(3, name="head"),
        ]
    )


@functools.cache
def model_of(keras_model_fn, compute_type, size=8):
    return from_keras(keras_model_fn, input_shape=(size,), compute_type=compute_type)


def clusters(number):
    y = RNG.integers(0, 3, number)
    x = RNG.normal(size=(number, 8)) + 2 * np.eye(3, 8)[y]
    return Examples(x.astype(np.float32), y.astype(np.int32), np.int32(number))


def test_gradients_are_of_float32_and_near_those_in_float32():
    """bfloat16 has 8 significant bits; masks of dropout are the same."""
    float32, bfloat16 = (model_of(mlp, kind) for kind in ("float32", "bfloat16"))
    weights, examples = float32.init(0), clusters(40)
    seed = tf.constant([1, 2])
    batch = Batch(tf.constant(examples.x), tf.constant(examples.y), tf.ones([40]), seed)
    assert_close(bfloat16.init(0), weights, 0)
    (gradient, totals), (expected, _) = (m.gradient(weights, batch) for m in (bfloat16, float32))
    values = tf.nest.flatten((gradient, totals, bfloat16.apply(weights, batch.x)))
    assert {value.dtype for value in values} == {tf.float32}
    for actual, exact in zip(tf.nest.flatten(gradient), tf.nest.flatten(expected), strict=True):
        assert 0 < np.linalg.norm(actual - exact) < 2.0**-6 * np.linalg.norm(exact)
    features = bfloat16.features(weights, batch.x)
    assert features.dtype == tf.float32
    np.testing.assert_array_equal(features, tf.cast(tf.cast(features, tf.bfloat16), tf.float32))


def test_training_is_as_good():
    train, test = clusters(150), clusters(300)
    accuracies = {}
    for compute_type in ("float32", "bfloat16"):
        model = model_of(mlp, compute_type)
        context = ClientContext(tf.constant(0), tf.constant(0), tf.constant([1, 2]))
        local = local_sgd(0.2, epochs=4, batch_size=10)
        train_all = functools.partial(local.train, model, model.init(0), train, context)
        trained = tf.function(train_all, autograph=False)().weights
        assert {weight.dtype for weight in tf.nest.flatten(trained)} == {tf.float32}
        accuracies[compute_type] = evaluate(model, trained, test)["accuracy"].mean
    assert accuracies["float32"] > 0.8
    assert abs(accuracies["bfloat16"] - accuracies["float32"]) < 0.03


@pytest.mark.parametrize(
    "norm", [lambda: layers.GroupNormalization(2), lambda: layers.LayerNormalization()]
)
def test_statistics_are_of_float32(norm):
    """Beside a mean of 10,000, bfloat16 has lost the values whose variance is to become 1."""

    def normalized():
        return tf.keras.Sequential([tf.keras.Input((4,)), norm(), layers.Dense(4, name="head")])

    model = model_of(normalized, "bfloat16", size=4)
    weights = model.init(0)
    weights["head"]["kernel"] = tf.eye(4)
    x = tf.constant([[9999.0, 10001.0, 9999.0, 10001.0]])
    np.testing.assert_allclose(model.apply(weights, x), [[-1, 1, -1, 1]], atol=0.01)


def test_layers_keep_a_type_of_their_own():
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


def policies():
    built = (layers.Dense(1), layers.GroupNormalization(1), layers.Embedding(1, 1))
    return [layer.dtype_policy.name for layer in built]


def test_the_type_is_that_of_before_afterwards():
    with pytest.raises(KeyError), computing_in("bfloat16"):
        assert policies() == ["bfloat16", "float32", "mixed_bfloat16"]
        raise KeyError
    assert policies() == ["float32"] * 3


def test_a_global_policy_changes_nothing():
    """It is the user's, for models that have nothing to do with this library."""
    weights = model_of(mlp, "float32").init(0)
    x = tf.constant(clusters(4).x)
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


def whole(x):
    return tf.cast(x, tf.int32)


@pytest.mark.parametrize(
    ("keras_model_fn", "preprocess"),
    [
        (words(), None),
        (words(input_length=2), None),
        (words(input_length=2), whole),
        (Words, whole),
    ],
)
def test_words_are_not_rounded(keras_model_fn, preprocess):
    """Numbers above 256, of which bfloat16 has but every second."""
    model = from_keras(
        keras_model_fn, input_shape=(2,), compute_type="bfloat16", preprocess=preprocess
    )
    weights = model.init(0)
    weights[model.layers[0]]["embeddings"] = tf.random.stateless_normal([600, 3], [1, 2])
    one, other = model.apply(weights, tf.constant([[257, 511], [256, 512]], tf.uint16))
    assert np.all(np.abs(one - other) > 0.01)


def test_words_that_would_be_rounded_are_refused():
    model = from_keras(Words, input_shape=(2,), compute_type="bfloat16")
    with pytest.raises(KerasModelError, match="in bfloat16 as whole ones.*preprocess="):
        model.apply(model.init(0), tf.ones([1, 2]))


def test_another_type():
    with pytest.raises(UnknownNameError, match="Unknown compute type 'bfloat'.*'bfloat16'"):
        model_of(mlp, "bfloat")
