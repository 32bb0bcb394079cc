"""Tests models that start from given weights."""

import functools

import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf
import tensorflow_federated as tff

from tests.federation import assert_equal, eager, local_sgd, tiny_model
from tests.marks import together
from tests.models.keras.test_adapter import Subclassed, branches, halves, nested, pure
from tff_pfl import algorithms, models
from tff_pfl.models import multi_branch
from tff_pfl.testing.federation import IMAGE_SHAPE, NUM_CLASSES

layers = tf.keras.layers
pure = functools.cache(pure)


def test_any_instance_of_a_subclassed_model_gives_its_weights():
    model = pure(Subclassed)
    for _ in range(2):
        trained = Subclassed()
        trained(np.zeros([1, 4], np.float32))
        start = model.starting_from(trained).init(0)
        assert list(start) == list(model.layers)
        found = sorted(np.sum(value) for layer in start.values() for value in layer.values())
        np.testing.assert_allclose(found, sorted(np.sum(value) for value in trained.get_weights()))


@pytest.mark.thorough
@pytest.mark.parametrize("keras_model_fn", [branches, nested, Subclassed])
def test_weights_of_a_keras_model_are_found_by_name(keras_model_fn):
    tf.keras.backend.reset_uids()  # Automatic names are counted in each program.
    model, trained = pure(keras_model_fn), keras_model_fn()
    x = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    inputs = halves(x) if keras_model_fn is branches else x
    expected = trained(inputs)
    start = model.starting_from(trained)
    for seed in (0, 1):
        np.testing.assert_allclose(start.apply(start.init(seed), x), expected, rtol=1e-5, atol=1e-6)
    assert list(start.init(0)) == list(model.layers)


def test_every_seed_and_computation_starts_from_the_weights():
    model = tiny_model()
    weights = model.init(3)
    arrays = {
        layer: {name: value.numpy() for name, value in reversed(weights[layer].items())}
        for layer in reversed(model.layers)
    }
    start = model.starting_from(arrays)
    assert start.weights_type.is_identical_to(model.weights_type)
    assert_equal(start.init(0), weights)
    assert_equal(tff.tensorflow.computation(lambda: start.init(1))(), weights)
    process = eager("fedper", start, local_sgd(), seed=5)
    assert_equal(process.initialize().algorithm.weights, {"dense1": weights["dense1"]})
    assert_equal(process.initialize_client(2).head, {"head": weights["head"]})


def test_new_layers_are_drawn_with_the_seed():
    model, pretrained = tiny_model(), tiny_model().init(3)
    other = {"dense1": pretrained["dense1"], "head": {"kernel": np.ones([5, 7])}}
    for given in (other, {"dense1": pretrained["dense1"]}):
        start = model.starting_from(given, new_layers=["h*"])
        assert start.weights_type.is_identical_to(model.weights_type) and not start.starts_alike
        for seed in (0, 1):
            expected = {"dense1": pretrained["dense1"], "head": model.init(seed)["head"]}
            assert_equal(start.init(seed), expected)
    again = model.starting_from(pretrained).starting_from(other, new_layers="head")
    assert again.starts_alike
    assert_equal(again.init(1), pretrained)
    with pytest.raises(ValueError, match="new_layers=.'head'. are layers that start lacks"):
        models.build("mlp", (8, 8, 1), 3, new_layers=["head"])
    with pytest.raises(
        ValueError, match="Unknown layer of model 'mlp' 'haed'. Did you mean 'head'"
    ):
        model.starting_from(other, new_layers=["haed"])


def with_head(**weights):
    given = {name: dict(layer) for name, layer in tiny_model().init(0).items()}
    given["head"] = weights or given["head"]
    return given


@together(
    ("weights", "message"),
    [
        (
            [np.ones(3)],
            "mapping {layer: {weight: array}}, a Keras model, or a file of one of them, got",
        ),
        (
            with_head(bias=np.ones(3)),
            r"missing are \['head/kernel'\], unknown are \[\]. Name layers that start anew",
        ),
        (
            with_head() | {"top": {"bias": np.ones(3)}},
            r"missing are \[\], unknown are \['top/bias'\]",
        ),
        (
            with_head(bias=np.ones(3), kernel=np.ones([3, 5])),
            r"head/kernel to start from has the shape \(3, 5\), but model 'mlp' .* \(5, 3\)",
        ),
    ],
)
def test_other_names_and_shapes_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        tiny_model().starting_from(weights)


@pytest.mark.parametrize("name", ["weights.safetensors", "model.keras", "model.h5", "model"])
def test_weights_are_read_from_a_file(name, tmp_path):
    weights = tiny_model().init(3)
    if name.endswith(".safetensors"):
        tensors = {
            f"{layer}/{w}": np.array(weights[layer][w]) for layer in weights for w in weights[layer]
        }
        safetensors.numpy.save_file(tensors, tmp_path / name)
    else:
        network = models.MODELS["mlp"](IMAGE_SHAPE, NUM_CLASSES, hidden=(5,))
        for layer in weights:
            network.get_layer(layer).set_weights(list(weights[layer].values()))
        network.save(tmp_path / name)
    assert_equal(tiny_model().starting_from(tmp_path / name).init(0), weights)


def test_missing_file_is_refused(tmp_path):
    for name in ("weights.safetensors", "model.keras"):
        with pytest.raises(OSError, match=name):
            tiny_model().starting_from(tmp_path / name)


def test_methods_of_several_models_need_different_starts():
    start = tiny_model().starting_from(tiny_model().init(0))
    message = "starts with several models that must differ"
    with pytest.raises(ValueError, match=message):
        multi_branch(start, 2)
    with pytest.raises(ValueError, match=message):
        algorithms.make("ifca", start, local_sgd(), num_clients=3, num_clusters=2)
    algorithms.make(
        "ifca", start, local_sgd(), num_clients=3, num_clusters=2, fixed_clusters=(0, 1, 1)
    )
