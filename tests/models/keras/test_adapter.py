"""Tests that pure models equal the Keras models that they are made of."""

import collections
import functools
import random

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.marks import slow
from tff_pfl.local import Batch
from tff_pfl.models import Metric, Task, from_keras, layer_parts

layers = tf.keras.layers
RNG = np.random.default_rng(0)


def sequential(*makers, shape=(4,)):
    """Returns a function that builds a model of the layers of `makers` and a dense head."""

    def keras_model_fn():
        made = [make() for make in makers]
        return tf.keras.Sequential([tf.keras.Input(shape), *made, layers.Dense(3, name="head")])

    return keras_model_fn


mlp = sequential(lambda: layers.Dense(5, "tanh", name="body"))


def branches():
    """Has two inputs, a shared layer, a skip connection and a plain TensorFlow operation."""
    left, right = tf.keras.Input((2,), name="left"), tf.keras.Input((2,), name="right")
    shared = layers.Dense(4, "tanh", name="shared")
    x = layers.Add()([shared(left), shared(right)])
    x = x + 0.2 * layers.Dense(4, "relu", name="skip")(x)
    return tf.keras.Model([left, right], layers.Dense(3, name="head")(x[:, 1:]))


def nested():
    body = tf.keras.Sequential(
        [layers.Dense(6, "relu", name="a", input_shape=(4,)), layers.Dense(4, name="b")],
        name="body",
    )
    return tf.keras.Sequential([body, layers.GroupNormalization(2, name="norm"), layers.Dense(3)])


class Subclassed(tf.keras.Model):
    """A model with its own weight, and layers that are called in another order than made."""

    def __init__(self):
        super().__init__(name="mine")
        self.head = layers.Dense(3, name="head")
        self.body = layers.Dense(5, "tanh", name="body")
        self.scale = self.add_weight(name="scale", shape=(4,), initializer="ones")

    def call(self, x):
        return self.head(self.body(self.scale * x))


def deferred():
    return tf.keras.Sequential([layers.Dense(5, "tanh"), layers.Dropout(0.5), layers.Dense(3)])


# The layer keeps its moments as tensors.
normalized = sequential(
    lambda: layers.Normalization(mean=[0.5, 0.0, -1.0, 2.0], variance=[4.0, 1.0, 0.5, 2.0])
)


# Its kernel is a constant.
frozen = sequential(
    lambda: layers.Dense(
        4, trainable=False, kernel_initializer=tf.keras.initializers.GlorotUniform(seed=3)
    )
)

convolutional = sequential(
    lambda: layers.Reshape((2, 2, 1)),
    lambda: layers.Conv2D(3, 2, padding="same", kernel_initializer="he_normal"),
    lambda: layers.DepthwiseConv2D(2, bias_initializer="random_normal"),
    layers.Flatten,
    layers.LayerNormalization,
    lambda: layers.Dense(4, kernel_initializer="orthogonal"),
)
recurrent = sequential(lambda: layers.Reshape((2, 2)), lambda: layers.SimpleRNN(3))


def parts_made_in_reverse():
    head = tf.keras.Sequential([tf.keras.Input((5,)), layers.Dense(3, name="logits")], name="head")
    body = tf.keras.Sequential([tf.keras.Input((4,)), layers.Dense(5, name="hidden")], name="body")
    return tf.keras.Sequential([body, head])


def predictor_made_before_its_encoder():
    z, x = tf.keras.Input((5,)), tf.keras.Input((4,))
    predictor = tf.keras.Model(z, layers.Dense(3, name="logits")(z))
    encoder = tf.keras.Model(x, layers.Dense(5, "tanh", name="hidden")(x))
    return tf.keras.Model(x, predictor(encoder(x)))


def head_built_first():
    head = layers.Dense(3, name="logits")
    head.build((None, 5))
    return tf.keras.Sequential([layers.Dense(5, name="hidden", input_shape=(4,)), head])


class HeadBuiltInInit(tf.keras.Model):
    """A model that builds its head before its body, and calls both in a `tf.function`."""

    def __init__(self):
        super().__init__(name="net")
        self.classifier = layers.Dense(3, name="logits")
        self.classifier.build((None, 5))
        self.body = layers.Dense(5, name="hidden")
        self.body.build((None, 4))
        self.forward = tf.function(lambda x: self.classifier(self.body(x)))

    def call(self, x):
        return self.forward(x)


MODELS = {
    mlp: ("body", "head"),
    branches: ("shared", "skip", "head"),
    nested: ("a", "b", "norm", "dense"),
    Subclassed: ("mine", "mine/body", "mine/head"),
    deferred: ("dense", "dense_1"),
    normalized: ("head",),
    convolutional: ("conv2d", "depthwise_conv2d", "layer_normalization", "dense", "head"),
    recurrent: ("simple_rnn/simple_rnn_cell", "head"),
    parts_made_in_reverse: ("hidden", "logits"),
    predictor_made_before_its_encoder: ("hidden", "logits"),
    head_built_first: ("hidden", "logits"),
    HeadBuiltInInit: ("hidden", "logits"),
}


def halves(x):
    return x[:, :2], x[:, 2:]


def pure(keras_model_fn, **kwargs):
    preprocess = halves if keras_model_fn is branches else None
    return from_keras(keras_model_fn, input_shape=(4,), preprocess=preprocess, **kwargs)


model_of = functools.cache(pure)


def flat(weights):
    """Returns weights in the order of the model (`tf.nest.flatten` sorts by name)."""
    return [value for layer in weights.values() for value in layer.values()]


@pytest.mark.thorough_but_one
@pytest.mark.parametrize(
    ("keras_model_fn", "names"),
    [slow(*item) if item[0] is convolutional else item for item in MODELS.items()],
)
def test_outputs_and_gradients_equal_keras(keras_model_fn, names):
    model = model_of(keras_model_fn)
    assert model.layers == names
    weights = model.init(3)
    x, y = RNG.normal(size=(5, 4)).astype(np.float32), np.array([0, 1, 2, 2, 1], np.int32)

    reference = keras_model_fn()
    inputs = halves(x) if keras_model_fn is branches else x
    reference(inputs)
    # Keras lists the weights of the classes in the order in which they are made, in reverse.
    is_class = isinstance(keras_model_fn, type)
    reference.set_weights(flat(dict(reversed(weights.items())) if is_class else weights))
    with tf.GradientTape() as tape:
        logits = reference(inputs)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
    expected = tape.gradient(loss, reference.trainable_weights)

    actual = model.apply(weights, x, training=False, seed=None)
    np.testing.assert_allclose(actual, logits, rtol=1e-4, atol=1e-6)
    batch = Batch(tf.constant(x), tf.constant(y), tf.ones([5]), tf.zeros([2], tf.int32))
    gradient, totals = model.gradient(weights, batch, training=False)
    np.testing.assert_allclose(totals["loss"].total, 5 * loss, rtol=1e-4)
    by_shape = collections.defaultdict(list)
    for value in flat(gradient):
        by_shape[tuple(value.shape)].append(value)
    for value in expected:
        np.testing.assert_allclose(by_shape[tuple(value.shape)].pop(0), value, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("keras_model_fn", [branches, normalized, frozen])
def test_apply_is_the_same_in_a_tff_computation(keras_model_fn):
    model = model_of(keras_model_fn)
    weights, x = model.init(0), RNG.normal(size=(5, 4)).astype(np.float32)

    @tff.tensorflow.computation(model.weights_type, tff.types.TensorType(np.float32, [None, 4]))
    def apply(weights, x):
        return model.apply(weights, x, training=True, seed=tf.constant([1, 2]))

    expected = model.apply(weights, x, training=True, seed=tf.constant([1, 2]))
    np.testing.assert_allclose(apply(weights, x), expected, rtol=1e-5, atol=1e-6)


# Together these models have given and automatic names, and initializers of many kinds.
@pytest.mark.thorough
@pytest.mark.parametrize(
    "keras_model_fn",
    [
        *(deferred, convolutional),
        *(slow(fn) for fn in (mlp, branches, nested, Subclassed, recurrent)),
    ],
)
def test_initial_weights_are_functions_of_the_seed(keras_model_fn):
    model = model_of(keras_model_fn)
    weights = model.init(1)

    for set_seed in [random.seed, np.random.seed, tf.random.set_seed]:
        set_seed(11)
    keras_model_fn()  # It uses up automatic names.
    tf.nest.map_structure(np.testing.assert_array_equal, model.init(1), weights)
    again = pure(keras_model_fn)
    assert again.layers == model.layers
    tf.nest.map_structure(np.testing.assert_array_equal, again.init(1), weights)
    graph = tff.tensorflow.computation(lambda: model.init(1))()
    tf.nest.map_structure(np.testing.assert_array_equal, graph, weights)

    for value, other in zip(flat(weights), flat(model.init(2)), strict=True):
        assert np.ptp(value) == 0 or np.mean(value == other) < 0.1


def test_layers_of_the_same_shape_start_differently():
    model = pure(sequential(*[lambda: layers.Dense(4)] * 2))
    a, b = (model.init(0)[name]["kernel"] for name in ["dense", "dense_1"])
    assert not np.any(a == b)
    # Glorot's uniform distribution on [-l, l], l = sqrt(6 / (4 + 4)).
    assert np.max(np.abs(a)) <= np.sqrt(6 / 8)


def test_preprocess_is_tried_with_input_dtype():
    model = from_keras(
        sequential(shape=(5,)),
        input_shape=(),
        input_dtype=tf.int64,
        preprocess=lambda x: tf.one_hot(x, 5),
    )
    weights = model.init(0)
    np.testing.assert_array_equal(model.apply(weights, [3]), weights["head"]["kernel"][3:4])


def test_open_shapes_of_inputs_are_refused():
    with pytest.raises(ValueError, match=r"in whole numbers, got \(None, 8\)"):
        from_keras(lambda: tf.keras.Sequential([tf.keras.layers.Dense(3)]), input_shape=(None, 8))


def test_num_classes_is_the_number_of_logits():
    model = pure(mlp)
    assert model.num_classes == 3
    model.check_classes(3)
    with pytest.raises(
        ValueError, match="3 logits, but the data have 4 classes.*last layer 4 units"
    ):
        model.check_classes(4)
    pure(mlp, task=Task("first", lambda y, outputs: outputs[:, 0])).check_classes(4)


def test_loss_and_metrics_can_be_given():
    def squared(y, outputs):
        return tf.square(outputs[:, 0] - tf.cast(y, tf.float32))

    def probabilities():
        return tf.keras.Sequential([layers.Dense(2, "softmax", input_shape=(4,))])

    metrics = {"twice": Metric(values=lambda y, outputs: 2 * y, direction=1)}
    model = pure(probabilities, task=Task("squares", squared, metrics))
    batch = Batch(tf.zeros([2, 4]), tf.constant([1, 3]), tf.ones([2]), tf.zeros([2], tf.int32))
    totals = model.totals(model.init(0), batch)
    assert list(totals) == ["loss", "twice"]
    assert totals["loss"] == (0.5**2 + 2.5**2, 2.0)  # Both probabilities are 1/2.
    assert totals["twice"] == (8.0, 2.0)
    tf.nest.assert_same_structure(totals, model.zero_totals())


class MyHead(layers.Layer):
    """A layer that creates its weights before it is called."""

    def __init__(self, num_inputs, num_outputs, **options):
        super().__init__(**options)
        self.kernel = self.add_weight("kernel", shape=[num_inputs, num_outputs])

    def call(self, x):
        return tf.matmul(x, self.kernel)


def test_weights_created_in_init_belong_to_their_layer():
    def network():
        return tf.keras.Sequential(
            [
                MyHead(4, 4, name="stem"),
                layers.Dense(5, name="body", input_shape=(4,)),
                MyHead(5, 3, name="head"),
            ]
        )

    def given():
        x = tf.keras.Input((4,))
        stem, head = MyHead(4, 4, name="stem"), MyHead(5, 3, name="head")
        return tf.keras.Model(x, head(layers.Dense(5, name="body")(stem(x))))

    for keras_model_fn in (network, given):
        model = pure(keras_model_fn)
        assert layer_parts(model).personal == ("head",)
        assert {layer: list(tensors) for layer, tensors in model.init(0).items()} == {
            "stem": ["kernel"],
            "body": ["kernel", "bias"],
            "head": ["kernel"],
        }
    assert model.layers == ("stem", "body", "head")
    weights, x = model.init(0), tf.ones([2, 4])
    hidden = x @ weights["stem"]["kernel"] @ weights["body"]["kernel"]
    np.testing.assert_allclose(
        model.apply(weights, x), hidden @ weights["head"]["kernel"], rtol=1e-6
    )


def test_constant_initial_values_need_no_initializer():
    """Accepts an LSTM's bias, whose forget gate starts with ones."""
    model = from_keras(
        lambda: tf.keras.Sequential(
            [
                layers.LSTM(2, input_shape=(3, 1)),
                layers.Dense(2, kernel_initializer=lambda shape, dtype: tf.ones(shape, dtype)),
            ]
        ),
        input_shape=(3, 1),
    )
    weights = model.init(3)
    np.testing.assert_array_equal(weights["lstm/lstm_cell"]["bias"], [0, 0, 1, 1, 0, 0, 0, 0])
    np.testing.assert_array_equal(weights["dense"]["kernel"], np.ones([2, 2]))
