"""Tests batch normalisation against Keras on batches without padding."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.federation import assert_close, assert_equal
from tests.marks import together
from tff_pfl.local import Batch, ClientContext, Examples, LocalTraining, evaluate, sharpness
from tff_pfl.models import (
    ModelSaver,
    Task,
    from_keras,
    layer_groups,
    multi_branch,
    normalization_layers,
)
from tff_pfl.models.statistics import STATISTICS
from tff_pfl.templates.averaging import SharedPart, moved

layers = tf.keras.layers
RNG = np.random.default_rng(0)
IMAGE = (5, 5, 1)
X = RNG.normal(size=(7, *IMAGE)).astype(np.float32)
Y = RNG.integers(0, 3, 7).astype(np.int32)


def network():
    """Builds a network with both of Keras' operations, of images and of vectors."""
    return tf.keras.Sequential(
        [
            layers.Conv2D(3, 3, input_shape=IMAGE, name="conv"),
            layers.BatchNormalization(momentum=0.7, name="norm"),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dense(4, name="dense"),
            layers.BatchNormalization(momentum=0.6, scale=False, epsilon=0.1, name="norm2"),
            layers.Dense(3, name="head"),
        ]
    )


def by_name(variables):
    """Returns the weights of a Keras model by layer and name."""
    return {tuple(w.name.removesuffix(":0").split("/")): w for w in variables}


def keras_model_with(weights):
    keras_model = network()
    for (layer, name), variable in by_name(keras_model.weights).items():
        variable.assign(weights[layer][name])
    return keras_model


def keras_step(keras_model, x, y, rate):
    """Makes a step of gradient descent, and returns the gradients by layer and name."""
    with tf.GradientTape() as tape:
        outputs = keras_model(x, training=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, outputs)
        loss = tf.reduce_mean(losses)
    variables = keras_model.trainable_weights
    gradients = tape.gradient(loss, variables)
    for variable, gradient in zip(variables, gradients, strict=True):
        variable.assign_sub(rate * gradient)
    return dict(zip(by_name(variables), gradients, strict=True))


@pytest.fixture(scope="module", name="model")
def _model():
    return from_keras(network, input_shape=IMAGE)


def padded(number):
    """Returns a batch of the first rows, with other rows as padding."""
    weight = (np.arange(7) < number).astype(np.float32)
    return Batch(X, np.where(weight, Y, 0), tf.constant(weight), tf.zeros([2], tf.int32))


@pytest.mark.thorough
@pytest.mark.parametrize("number", [7, 4, 1])
def test_gradient_and_new_statistics_equal_keras_without_padding(model, number):
    weights = model.init(1)
    gradient, _, assigned = model.training_gradient(weights, padded(number))
    assert_equal(assigned, model.assigned(weights, padded(number)))
    reference = keras_model_with(weights)
    expected = keras_step(reference, X[:number], Y[:number], 0.0)
    for (layer, name), value in by_name(reference.weights).items():
        assert_close(assigned[layer][name], value)
        is_statistic = name in STATISTICS
        assert_close(gradient[layer][name], 0.0 * value if is_statistic else expected[layer, name])
        assert is_statistic == (not np.array_equal(assigned[layer][name], weights[layer][name]))


def test_nothing_moves_the_statistics_after_no_rows(model):
    weights = model.init(1)
    assert_equal(model.assigned(weights, padded(0)), weights)


SGD = tff.learning.optimizers.build_sgdm(0.1)


def trained(model, weights, local, **options):
    context = ClientContext(tf.constant(0), tf.constant(0), tf.constant([3, 4]))
    return local.train(model, weights, Examples(X, Y, np.int32(7)), context, **options).weights


@pytest.mark.thorough
def test_training_and_evaluation_equal_keras(model, tmp_path):
    """The exported model gives the numbers of the evaluation, which uses moving statistics."""
    start = model.init(1)
    weights = trained(model, start, LocalTraining(SGD, epochs=3, batch_size=7))
    reference = keras_model_with(start)
    for _ in range(3):
        keras_step(reference, X, Y, 0.1)
    for (layer, name), value in by_name(reference.weights).items():
        assert_close(weights[layer][name], value)
    totals = evaluate(model, weights, Examples(X, Y, np.int32(5)), batch_size=2)
    logits = reference(X[:5])
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(Y[:5], logits)
    assert_close(totals["loss"].mean, tf.reduce_mean(losses))
    ModelSaver(model, IMAGE, np.float32).save(weights, tmp_path / "saved")
    assert_close(tf.saved_model.load(str(tmp_path / "saved"))(X[:5]), logits)


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": tff.learning.optimizers.build_adamw(0.1, weight_decay=0.5)},
        {"optimizer": tff.learning.optimizers.build_sgdm(0.1, momentum=0.9), "weight_decay": 0.5},
        {"clip_norm": 0.01},
    ],
)
def test_only_the_forward_pass_moves_statistics(model, options):
    weights = model.init(1)
    local = LocalTraining(**{"optimizer": SGD, **options}, epochs=1, batch_size=7)
    found = trained(model, weights, local, reg=lambda w: tf.nest.map_structure(tf.ones_like, w))
    for layer, assigned in model.assigned(weights, padded(7)).items():
        for name, value in assigned.items():
            if name in STATISTICS:
                assert_close(found[layer][name], value)


def test_regularizer_of_statistics_does_not_count_for_clipping(model):
    weights, local = model.init(1), LocalTraining(SGD, batch_size=7, clip_norm=0.1)

    def only(is_moved):
        def reg(w):
            return {a: {b: is_moved(b) * tf.ones_like(v) for b, v in w[a].items()} for a in w}

        return lambda w: tf.nest.pack_sequence_as(w, tf.nest.flatten(reg(w)))

    statistics = only(lambda name: 9.0 * (name in STATISTICS))
    assert_equal(trained(model, weights, local, reg=statistics), trained(model, weights, local))


def test_server_moves_statistics_by_the_mean_and_keeps_variances_valid(model):
    weights = model.init(1)
    change = tf.nest.map_structure(lambda w: tf.fill(w.shape, -3.0), weights)
    adam = tff.learning.optimizers.build_adam(0.01)
    server = moved(SharedPart.of(weights, adam), change, adam)
    norm = server.weights["norm"]
    assert_close(norm["gamma"], weights["norm"]["gamma"] - 0.01, tolerance=1e-3)
    assert_close(norm["moving_mean"], weights["norm"]["moving_mean"] - 3.0)
    assert_equal(norm["moving_variance"], tf.zeros([3]))


def test_a_negative_variance_counts_as_0(model):
    weights, zero = model.init(1), model.init(1)
    weights["norm"]["moving_variance"] -= 2.0
    zero["norm"]["moving_variance"] *= 0.0
    assert_equal(model.apply(weights, X, training=False), model.apply(zero, X, training=False))


def test_layers_with_statistics_are_normalization_without_scores(model):
    assert normalization_layers(model) == ("norm", "norm2")
    groups = layer_groups(model)
    assert groups == (0, 0, 1, 1, 2)
    moved_only = tf.nest.map_structure(tf.zeros_like, model.init(0))
    moved_only["norm"]["moving_mean"] += 1.0
    assert_close(sharpness.layer_scores(moved_only, groups), np.full(5, 1 / 3))


def test_branches_share_statistics(model):
    """Layers with statistics have no branches, and are assigned as in the model."""
    branched = multi_branch(model, 2)
    weights = branched.init(1)
    mixed = branched.mix(weights, branched.uniform())
    assigned = branched.weights_model(branched.uniform()).assigned(weights, padded(4))
    assert_equal(assigned["norm"], model.assigned(mixed, padded(4))["norm"])
    assert_equal(assigned["conv"], weights["conv"])
    with pytest.raises(ValueError, match="several branches cannot train the batch normalisation"):
        multi_branch(model, 2, layers=["norm"])


def test_start_from_a_keras_model_takes_its_statistics(model):
    reference = keras_model_with(model.init(1))
    keras_step(reference, X, Y, 0.1)
    start = model.starting_from(reference).init(0)
    assert_equal(start["norm"]["moving_mean"], reference.get_layer("norm").moving_mean)


def over_time():
    return tf.keras.Sequential(
        [
            tf.keras.Input((4, 2)),
            layers.TimeDistributed(layers.BatchNormalization(name="norm")),
            layers.Flatten(),
            layers.Dense(3),
        ]
    )


class Statistic(layers.Layer):
    def build(self, shape):
        self.mean = self.add_weight(name="moving_mean", shape=shape[1:])

    def call(self, x):
        return x - self.mean


def with_layer(layer):
    return lambda: tf.keras.Sequential([tf.keras.Input((4, 2)), layer(), layers.Dense(3)])


def with_loaded_statistics():
    model = with_layer(lambda: layers.BatchNormalization(center=False, scale=False))()
    model.layers[0].set_weights([np.ones(2), np.ones(2)])
    return model


@pytest.mark.thorough
@together(
    ("keras_model_fn", "options", "message"),
    [
        (network, {"compute_type": "bfloat16"}, "needs segments=1 and compute_type='float32'"),
        (network, {"segments": 2}, "needs segments=1 and compute_type='float32'"),
        (over_time, {}, "one float32 row for each example.*TimeDistributed"),
        (with_layer(lambda: layers.BatchNormalization(renorm=True)), {}, "with renorm"),
        (with_layer(lambda: layers.BatchNormalization([1, 2])), {}, "or several axes"),
        (with_loaded_statistics, {}, "'batch_normalization/moving_mean:0' is assigned a value"),
        (with_layer(lambda: Statistic()), {}, "moving_mean:0' has the name of a moving statistic"),
    ],
)
def test_unsound_batch_normalization_is_refused(keras_model_fn, options, message):
    shape = IMAGE if keras_model_fn is network else (4, 2)
    with pytest.raises(ValueError, match=message):
        from_keras(keras_model_fn, input_shape=shape, **options, **OWN_LOSS)


OWN_LOSS = {"task": Task("test", lambda y, z: tf.reduce_sum(z, range(1, len(z.shape))))}
