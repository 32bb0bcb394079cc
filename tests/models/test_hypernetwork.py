"""Tests `tff_pfl.models.hypernetwork`."""

import numpy as np
import pytest
import tensorflow as tf

from tests.federation import assert_close, assert_equal, tiny_model
from tests.marks import together
from tests.models.keras.test_adapter import layers, sequential
from tests.quadratics import quadratic_model
from tff_pfl.models import Hypernetwork, from_keras

MODEL = tiny_model()
SHAPES = {
    "dense1": {"kernel": [16, 5], "bias": [5]},
    "head": {"kernel": [5, 3], "bias": [3]},
}


def embeddings_of(k, dim, seed=0):
    return tf.constant(np.random.default_rng(seed).normal(size=(k, dim)), tf.float32)


@together(
    ("hidden", "bias", "relu_features"),
    [((4, 3), True, False), ((4, 3), False, True), ((), False, True), ((), True, False)],
)
def test_network_matches_numpy(hidden, bias, relu_features):
    """Uses ReLU between dense layers, and after the last one with `relu_features`."""
    hypernetwork = Hypernetwork(MODEL, 2, hidden=hidden, bias=bias, relu_features=relu_features)
    rng = np.random.default_rng(5)
    phi = tf.nest.map_structure(
        lambda w: rng.normal(size=w.shape).astype(np.float32), hypernetwork.init(0)
    )

    trunks = [f"trunk{i + 1}" for i in range(len(hidden))]
    assert list(phi) == [*trunks, "dense1/kernel", "dense1/bias", "head/kernel", "head/bias"]
    assert [phi[name]["kernel"].shape[1] for name in trunks] == list(hidden)
    assert all(("bias" in layer) == bias for layer in phi.values())

    def dense(x, name):
        return x @ phi[name]["kernel"] + phi[name].get("bias", 0.0)

    features = v = np.array([[0.5, -1.0], [2.0, 0.1]])
    for index, name in enumerate(trunks):
        features = dense(np.maximum(features, 0) if index else features, name)
        assert np.any(features < 0)
    if hidden and relu_features:
        features = np.maximum(features, 0)
    generated = hypernetwork.generate(phi, tf.constant(v, tf.float32))
    assert list(generated) == list(MODEL.layers)
    for layer, tensors in SHAPES.items():
        assert list(generated[layer]) == list(MODEL.init(0)[layer])
        for name, shape in tensors.items():
            expected = dense(features, f"{layer}/{name}").reshape(-1, *shape)
            assert_close(generated[layer][name], expected)


def test_init_is_a_function_of_the_seed():
    hypernetwork = Hypernetwork(MODEL, 2, hidden=(4, 4))
    assert_equal(hypernetwork.init(3), hypernetwork.init(3))
    a, b = hypernetwork.init(3), hypernetwork.init(4)
    for name in a:
        assert ("bias" in name) == np.array_equal(a[name]["kernel"], b[name]["kernel"])
    # One seed gives layers of the same shape different weights.
    square = Hypernetwork(quadratic_model(4, 4), 4, hidden=(4, 4)).init(0)
    kernels = [layer["kernel"] / np.std(layer["kernel"]) for layer in square.values()]
    assert len({np.round(kernel, 3).tobytes() for kernel in kernels}) == 4


@pytest.mark.parametrize(("dim", "relu_features"), [(2, False), (30, True)])
def test_initial_features_have_about_unit_variance(dim, relu_features):
    """Takes each weight of the target, scaled to deviation 1, as a feature."""
    target = quadratic_model(2000)
    deviation = np.std(target.init(0)["layer0"]["w"])
    embeddings = embeddings_of(200, dim)
    for hidden in [(), (100, 100, 100, 100)]:
        hypernetwork = Hypernetwork(target, dim, hidden, bias=False, relu_features=relu_features)
        variances = []
        for seed in range(4):
            generated = hypernetwork.generate(hypernetwork.init(seed), embeddings)
            variances.append(np.var(generated["layer0"]["w"] / deviation))
        assert 0.75 < np.mean(variances) < 1.33


group_normalised = sequential(
    lambda: layers.Conv2D(8, 3, name="conv1"),
    lambda: layers.GroupNormalization(4, name="norm1"),
    layers.Flatten,
    lambda: layers.Dense(6, name="dense1", bias_initializer="ones"),
    shape=(8, 8, 1),
)
SHIFTED = tf.keras.initializers.RandomNormal(mean=0.7, stddev=0.2)
shifted_network = sequential(
    layers.Flatten,
    lambda: layers.Dense(30, "relu", name="dense1"),
    lambda: layers.Dense(10, name="dense2", kernel_initializer=SHIFTED),
    shape=(8, 8, 1),
)


def test_generated_weights_have_the_targets_mean_and_deviation():
    """Averages over embeddings and seeds of a hypernetwork of width 100."""
    target = from_keras(shifted_network, input_shape=(8, 8, 1))
    hypernetwork = Hypernetwork(target, 5)
    embeddings, seeds = embeddings_of(100, 5), range(6)
    generated = [hypernetwork.generate(hypernetwork.init(seed), embeddings) for seed in seeds]
    own = [target.init(seed) for seed in range(20)]
    for layer, mean in (("dense1", 0.0), ("dense2", 0.7)):
        deviation = np.std([weights[layer]["kernel"] for weights in own])
        found = np.stack([weights[layer]["kernel"] for weights in generated])
        assert abs(found.mean() - mean) < 0.1 * deviation
        assert abs(np.sqrt(found.var(axis=(2, 3)).mean()) / deviation - 1) < 0.15


def test_constant_initial_weights_are_generated_exactly():
    target = from_keras(group_normalised, input_shape=(8, 8, 1))
    hypernetwork = Hypernetwork(target, 3, hidden=(20, 20))
    generated = hypernetwork.generate(hypernetwork.init(0), embeddings_of(4, 3))
    constants = {"conv1": {"bias": 0}, "norm1": {"gamma": 1, "beta": 0}, "dense1": {"bias": 1}}
    for layer, tensors in constants.items():
        for name, value in tensors.items():
            assert np.all(generated[layer][name] == value)
    assert np.std(generated["conv1"]["kernel"]) > 0
    images = tf.random.stateless_normal([2, 8, 8, 1], [0, 0])
    for i in range(4):
        weights = tf.nest.map_structure(lambda leaf: leaf[i], generated)  # noqa: B023
        assert target.apply(weights, images).shape == [2, 3]
