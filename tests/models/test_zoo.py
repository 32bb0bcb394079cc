"""Tests `tff_pfl.models.zoo`, including the numbers of weights in the papers."""

import numpy as np
import pytest
import tensorflow as tf

from tests.marks import together
from tests.own_modules import own_modules
from tff_pfl import models


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "shape", "num_classes", "num_weights"),
    [
        ("mlp", (28, 28, 1), 10, 199_210),
        ("cnn_fedpg", (32, 32, 3), 10, 797_962),
        ("cnn_pgfed", (32, 32, 3), 10, 878_538),
        ("cnn_pgfed", (28, 28, 1), 11, 582_539),
        ("lenet", (32, 32, 3), 10, 62_006),
    ],
)
def test_numbers_of_weights_equal_the_papers(name, shape, num_classes, num_weights):
    model = models.build(name, shape, num_classes)
    assert model.num_weights == num_weights
    assert model.name == name
    assert model.layers[-1] == "head"
    assert all(not np.any(layer["bias"]) for layer in model.init(0).values())


@pytest.mark.thorough
@pytest.mark.parametrize("shape", [(8, 8, 1), (3, 5, 1), (32, 32, 3)])
def test_small_network_takes_images_of_any_size(shape):
    model = models.build("cnn", shape, 10)
    assert model.layers == ("conv1", "conv2", "dense1", "head")
    assert model.apply(model.init(0), np.zeros((2, *shape), np.uint8)).shape == [2, 10]


def test_networks_of_papers_refuse_small_images():
    with pytest.raises(ValueError, match="of 15x40 are too small .* takes 16x16 and larger ones"):
        models.build("cnn_pgfed", (15, 40, 1), 10)
    assert models.build("cnn_pgfed", (16, 40, 1), 10).num_weights > 0


def test_build_scales_and_normalises_images():
    mean, std = (0.5, 0.25), (0.2, 0.4)
    model = models.build("mlp", (1, 1, 2), 2, mean=mean, std=std, hidden=())
    weights = {"head": {"kernel": tf.eye(2), "bias": tf.zeros([2])}}
    pixels = np.array([[[[0, 255]]], [[[255, 51]]]], np.uint8)
    expected = [[-0.5 / 0.2, 0.75 / 0.4], [0.5 / 0.2, -0.05 / 0.4]]
    np.testing.assert_allclose(model.apply(weights, pixels), expected, rtol=1e-5)


@pytest.mark.thorough
def test_only_the_network_with_dropout_differs_in_training():
    images = np.random.default_rng(0).integers(256, size=(2, 32, 32, 3)).astype(np.uint8)
    for name, is_stochastic in [("cnn_fedpg", True), ("lenet", False)]:
        model = models.build(name, (32, 32, 3), 10)
        weights, seed = model.init(0), tf.constant([1, 2])
        outputs = model.apply(weights, images)
        assert outputs.shape == [2, 10]
        trained = model.apply(weights, images, training=True, seed=seed)
        assert np.array_equal(outputs, trained) != is_stochastic


@together(
    ("shape", "mean", "std", "message"),
    [
        ((8, 8, 1), (0.5,) * 3, (0.2,) * 3, r"shape \(8, 8, 1\) each needs one number and"),
        ((8, 8, 3), (0.5,) * 2, (0.2,), r"shape \(8, 8, 3\) each needs one number, or 3, and"),
        ((8, 8, 1), (0.5,), (0.0,), "deviations must be above 0"),
    ],
)
def test_build_refuses_normalizations_of_other_images(shape, mean, std, message):
    with pytest.raises(ValueError, match=message):
        models.build("mlp", shape, 10, mean=mean, std=std)


def test_build_without_a_mean_does_not_normalise():
    x = np.random.default_rng(0).normal(size=(3, 2, 2, 1)).astype(np.float32)
    found, scaled = (models.build("mlp", (2, 2, 1), 3, mean=mean) for mean in (None, (0.0,)))
    weights = found.init(0)
    np.testing.assert_allclose(
        found.apply(weights, x, training=False),
        scaled.apply(weights, 255 * x, training=False),
        rtol=1e-5,
    )


def counted(image_shape, num_classes, *, width: int = 4) -> models.Model:
    """Makes a model with its own metric by `from_keras`."""

    def network():
        hidden = tf.keras.layers.Dense(width, "relu", name="hidden")
        head = tf.keras.layers.Dense(num_classes, name="head")
        return tf.keras.Sequential([tf.keras.layers.Flatten(input_shape=image_shape), hidden, head])

    total = models.Metric(values=lambda y, outputs: tf.reduce_sum(outputs, axis=1), direction=1)
    task = models.TASKS["classification"]().with_metrics({"sum": total})
    return models.from_keras(network, input_shape=image_shape, task=task)


def batch_normalized(image_shape, num_classes) -> models.Model:
    """Makes a model whose first layer with weights normalises the pixels of a batch."""

    def network():
        return tf.keras.Sequential(
            [
                tf.keras.layers.Flatten(input_shape=image_shape),
                tf.keras.layers.BatchNormalization(name="norm"),
                tf.keras.layers.Dense(num_classes, name="head"),
            ]
        )

    return models.from_keras(network, input_shape=image_shape)


def unannotated(image_shape, num_classes):
    return counted(image_shape, num_classes)


def annotated_by_text(image_shape, num_classes) -> "models.Model":
    return counted(image_shape, num_classes)


def annotated(image_shape, num_classes) -> models.Model:
    return tf.keras.Sequential([tf.keras.layers.Dense(num_classes, name="head")])


class TestFunctionsThatReturnAModel:
    """Tests functions that return a `Model` instead of a Keras model."""

    @pytest.fixture(autouse=True)
    def registered(self, tmp_path):
        functions = {"counted": counted, "text": annotated_by_text}
        functions |= {"bare": unannotated, "false": annotated}
        functions["batch_normalized"] = batch_normalized
        with own_modules(tmp_path):
            for name, function in functions.items():
                models.MODELS.register(name)(function)
            models.MODELS.variant("wide", counted, width=7)
            yield

    @pytest.mark.parametrize("mean", [(0.5,), None])
    def test_inputs_are_the_same_as_for_keras_models(self, mean):
        dtype = np.float32 if mean is None else np.uint8
        x = np.random.default_rng(0).integers(0, 255, [5, 4, 4, 1]).astype(dtype)
        model = models.build("counted", (4, 4, 1), 3, mean=mean, std=(0.25,))
        weights = model.init(0)
        inputs = x if mean is None else (np.float32(x) / 255 - 0.5) / 0.25
        plain, seed = counted((4, 4, 1), 3), tf.zeros([2], tf.int32)
        for function in ("apply", "features"):
            found = getattr(model, function)(weights, x, training=False, seed=seed)
            expected = getattr(plain, function)(weights, inputs, training=False, seed=seed)
            np.testing.assert_allclose(found, expected, rtol=1e-5)
        assert set(model.task.metrics) == {"accuracy", "sum"}

    def test_options_and_variants_are_passed(self):
        assert models.build("counted", (4, 4, 1), 3, width=5).num_weights == 16 * 5 + 5 + 15 + 3
        assert models.build("wide", (4, 4, 1), 3).num_weights == 16 * 7 + 7 + 21 + 3

    def test_batch_normalisation_is_trained_on_normalised_images(self):
        images = np.random.default_rng(0).integers(256, size=(5, 4, 4, 1)).astype(np.uint8)
        model = models.build("batch_normalized", (4, 4, 1), 3, mean=(0.5,), std=(0.25,))
        weight, seed = tf.ones([5]), tf.zeros([2], tf.int32)
        _, assigned = model.training_pass(model.init(0), images, weight=weight, seed=seed)
        expected = 0.01 * np.mean((images / 255 - 0.5) / 0.25, axis=0).ravel()
        np.testing.assert_allclose(assigned["norm"]["moving_mean"], expected, rtol=1e-4)

    def test_options_of_keras_models_are_refused(self):
        for how in ({"segments": 2}, {"compute_type": "bfloat16"}):
            with pytest.raises(ValueError, match="Keras models, but 'counted' returns a Model"):
                models.build("counted", (4, 4, 1), 3, **how)

    def test_annotation_can_be_text(self):
        assert models.build("text", (4, 4, 1), 3).task.metrics.keys() == {"accuracy", "sum"}

    @pytest.mark.parametrize(("name", "returned"), [("bare", "Model"), ("false", "Sequential")])
    def test_wrong_annotations_are_refused(self, name, returned):
        with pytest.raises(ValueError, match=f"{name!r} returns a {returned}. .* `-> tff_pfl.Mo"):
            models.build(name, (4, 4, 1), 3)


def test_network_beside_a_model_has_its_inputs_and_task():
    options = {"mean": (0.5,), "std": (0.2,), "task": "multi_label"}
    model = models.build("cnn", (8, 8, 3), 4, widths=(2,), hidden=3, **options)
    found, expected = models.beside(model, "mlp"), models.build("mlp", (8, 8, 3), 4, **options)
    assert (found.task.name, found.num_weights) == ("multi_label", expected.num_weights)
    x = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3)).astype(np.uint8)
    weights = expected.init(0)
    np.testing.assert_array_equal(found.apply(weights, x), expected.apply(weights, x))
    assert models.beside(model, "") is model and models.beside(model, found) is found


def test_network_beside_a_model_that_build_did_not_make_is_no_name():
    model = models.from_keras(lambda: models.MODELS["mlp"]((4, 4, 1), 3), input_shape=(4, 4, 1))
    with pytest.raises(ValueError, match="network='mlp' is built as .* Pass a tff_pfl.Model"):
        models.beside(model, "mlp")
