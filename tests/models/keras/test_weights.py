"""Tests frozen weights of Keras models, which become constants."""

import re

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.federation import assert_close, local_sgd
from tests.marks import slow, together
from tff_pfl import algorithms, runtime
from tff_pfl.clients import ClientStateStore, CohortDataSource
from tff_pfl.data import FederatedDataset
from tff_pfl.local import Batch, examples_type
from tff_pfl.models import from_keras
from tff_pfl.models.keras import weights
from tff_pfl.templates import compose

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


def test_large_frozen_layers_are_refused(monkeypatch):
    size = 4 * (4 * 4 + 4)
    monkeypatch.setattr(weights, "MOST_BYTES", size)
    from_keras(seeded, input_shape=(4,))
    monkeypatch.setattr(weights, "MOST_BYTES", size - 1)
    with pytest.raises(ValueError, match="have 80 bytes.*FederatedDataset.map"):
        from_keras(seeded, input_shape=(4,))


def federation():
    rng = np.random.default_rng(1)

    def arrays(size):
        return rng.normal(size=(size, *IMAGE)).astype(np.float32), rng.integers(0, 3, size)

    clients = [(*arrays(size), *arrays(2)) for size in (5, 8, 3)]
    return FederatedDataset.from_client_arrays(clients, num_classes=3)


def personal_models(network, dataset):
    """Returns the clients' models after two rounds of FedPer."""
    model = from_keras(network, input_shape=dataset.image_shape)
    process = compose(
        algorithms.make("fedper", model, local_sgd(epochs=2)),
        examples_type(dataset.image_shape, np.float32),
    )
    store = ClientStateStore(process.initialize_clients, process.client_state_type)
    source = CohortDataSource(dataset, store, process.client_type, seed=0)
    state = process.initialize()
    for ids in ([0, 1], [1, 2]):
        output = process.next(state, source.select_clients(ids))
        state = output.state
        store.put(ids, output.clients)
    return process.personalize(state, source.select_clients(range(3)))


def two_layers():
    return [layers.Dense(4, "tanh", name="shared"), layers.Dense(3, name="head")]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "create",
    [
        lambda: runtime.create_graph_context(vectorize="never"),
        *map(slow, [runtime.create_graph_context, runtime.create_cpp_context]),
    ],
)
def test_fedper_on_a_frozen_backbone_equals_fedper_on_its_features(create):
    def plain_backbone():
        kept = [one for one in loaded().layers if not isinstance(one, layers.Dropout)]
        return tf.keras.Sequential(kept)

    def whole():
        body = plain_backbone()
        body.trainable = False
        return tf.keras.Sequential([body, *two_layers()])

    def upper():
        return tf.keras.Sequential([tf.keras.Input((5,)), *two_layers()])

    dataset = federation()
    with tff.framework.get_context_stack().install(create()):
        by_constants = personal_models(whole, dataset)
        by_features = personal_models(upper, dataset.map(plain_backbone(), batch_size=6))
    assert not np.allclose(by_constants[0]["head"]["kernel"], by_constants[1]["head"]["kernel"])
    assert_close(by_constants, by_features, tolerance=1e-5)
