"""Tests frozen weights of Keras models, which become constants or are read from files."""

import re

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.federation import assert_close
from tests.marks import slow, together
from tff_pfl.local import Batch
from tff_pfl.models import from_keras

layers = tf.keras.layers
RNG = np.random.default_rng(0)
IMAGE = (6, 6, 1)


def backbone():
    """Builds layers with moving statistics, dropout and automatic names."""
    return tf.keras.Sequential(
        [
            layers.Conv2D(4, 3, input_shape=IMAGE),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Dropout(0.5),
            layers.GlobalAveragePooling2D(),
            layers.Dense(5, "tanh", name="top"),
        ],
        name="backbone",
    )


VALUES = [
    RNG.uniform(0.5, 1.5, weight.shape).astype(np.float32) for weight in backbone().get_weights()
]


def loaded():
    body = backbone()
    body.set_weights(VALUES)
    body.trainable = False
    return body


def network(body=loaded):
    return tf.keras.Sequential([body(), layers.Dense(3, name="head")])


def head():
    return tf.keras.Sequential([layers.Dense(3, name="head", input_shape=(5,))])


def batch(num_rows=4):
    x = RNG.normal(size=(num_rows, *IMAGE)).astype(np.float32)
    y = RNG.integers(0, 3, num_rows).astype(np.int32)
    return Batch(tf.constant(x), tf.constant(y), tf.ones([num_rows]), tf.constant([1, 2]))


@pytest.mark.thorough
@pytest.mark.parametrize("segments", [1, 2])
def test_frozen_layers_equal_keras_in_inference(segments):
    """Frozen batch normalisation uses moving statistics, also in training."""
    model = from_keras(network, input_shape=IMAGE, segments=segments)
    assert model.layers == ("head",) and model.num_weights == 5 * 3 + 3
    weights, rows = model.init(0), batch()
    reference = network()
    reference.layers[-1].set_weights([*weights["head"].values()])
    assert_close(model.apply(weights, rows.x), reference(rows.x))
    features = reference.layers[0](rows.x)
    assert_close(model.features(weights, rows.x), features)

    gradient, _ = model.gradient(weights, rows, training=False)
    expected, _ = from_keras(head, input_shape=(5,)).gradient(weights, rows._replace(x=features))
    assert_close(gradient, expected)


def test_dropout_of_frozen_layers_depends_on_the_seed():
    model = from_keras(network, input_shape=IMAGE)
    weights, x = model.init(0), batch().x
    one, again, other = (
        model.apply(weights, x, training=True, seed=tf.constant(seed))
        for seed in ([1, 2], [1, 2], [3, 4])
    )
    np.testing.assert_array_equal(one, again)
    assert not np.allclose(one, other)


class Scaled(tf.keras.Model):
    """A model with a frozen weight of its own, in a layer of which another weight is trained."""

    def __init__(self):
        super().__init__(name="scaled")
        self.scale = self.add_weight(name="scale", initializer="ones", trainable=False)
        self.shift = self.add_weight(name="shift", initializer="zeros")
        self.head = layers.Dense(3, name="head")

    def call(self, x):
        return self.head(2 * self.scale * x + self.shift)


def test_single_weights_can_be_frozen():
    model = from_keras(Scaled, input_shape=(4,))
    weights = model.init(0)
    assert {name: [*layer] for name, layer in weights.items()} == {
        "scaled": ["shift"],
        "scaled/head": ["kernel", "bias"],
    }
    x = RNG.normal(size=(2, 4)).astype(np.float32)
    assert_close(model.apply(weights, x), 2 * x @ weights["scaled/head"]["kernel"])


@pytest.mark.thorough
@pytest.mark.parametrize("ending", ["keras", *map(slow, ["h5", "weights.h5"])])
def test_frozen_values_are_loaded_from_files(tmp_path, ending):
    path = str(tmp_path / f"backbone.{ending}")
    getattr(loaded(), "save" if ending == "keras" else "save_weights")(path)

    def from_file():
        body = backbone()
        body.load_weights(path)
        body.trainable = False
        return body

    model, expected = (
        from_keras(lambda body=body: network(body), input_shape=IMAGE)
        for body in (from_file, loaded)
    )
    x = batch().x
    assert_close(model.apply(model.init(0), x), expected.apply(expected.init(0), x))


def dense(**options):
    return tf.keras.Sequential(
        [layers.Dense(4, input_shape=(4,), **options), layers.Dense(3, name="head")]
    )


def seeded():
    return dense(trainable=False, kernel_initializer=tf.keras.initializers.GlorotUniform(seed=3))


def test_frozen_values_are_drawn_by_initializers_with_a_seed():
    model = from_keras(seeded, input_shape=(4,))
    weights = model.init(1)
    kernel = tf.keras.initializers.GlorotUniform(seed=3)([4, 4])
    x = RNG.normal(size=(2, 4)).astype(np.float32)
    assert_close(model.apply(weights, x), x @ kernel @ weights["head"]["kernel"])


def set_anew():
    model = dense(trainable=False)
    model.layers[0].set_weights([np.random.default_rng().normal(size=[4, 4]), np.zeros(4)])
    return model


def set_in_part():
    model = dense(trainable=False)
    model.set_weights([np.ones([4, 4]), np.zeros(4), np.ones([4, 3]), np.zeros(3)])
    return model


def assigned():
    model = dense(trainable=False)
    model.layers[0].kernel.assign(np.ones([4, 4]))
    return model


def test_large_frozen_layers_are_read_from_a_file():
    """A table of 48 MB, of which a graph has the path alone."""

    def network():
        table = layers.Embedding(3 * 2**20, 4, trainable=False, embeddings_initializer="ones")
        return tf.keras.Sequential(
            [tf.keras.Input((4,)), table, layers.Flatten(), layers.Dense(3, name="head")]
        )

    model = from_keras(network, input_shape=(4,), input_dtype=tf.int32)
    assert model.layers == ("head",)

    @tff.tensorflow.computation(tff.types.TensorType(np.int32, [2, 4]))
    def sums(x):
        return tf.reduce_sum(
            model.apply({"head": {"kernel": tf.ones([16, 3]), "bias": tf.zeros([3])}}, x), 1
        )

    assert len(tff.framework.serialize_computation(sums).SerializeToString()) < 2**15
    assert list(sums(np.ones([2, 4], np.int32))) == [48.0, 48.0]


@together(
    ("keras_model_fn", "message"),
    [
        (lambda: dense(trainable=False), "'dense/kernel:0' is frozen, but .* other values .* seed"),
        (set_anew, "'dense/kernel:0' is frozen, but keras_model_fn gives it other values"),
        (set_in_part, "'head/kernel:0' is assigned a value.*starting_from"),
        (assigned, "'dense/kernel:0' is assigned a value.*by set_weights or load_weights"),
    ],
)
def test_values_that_would_be_lost_are_refused(keras_model_fn, message):
    with pytest.raises(ValueError) as refused:
        from_keras(keras_model_fn, input_shape=(4,))
    assert re.search(message, str(refused.value))
