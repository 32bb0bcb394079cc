"""Tests `tff_pfl.models.layer_parts`."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.federation import IMAGE_SHAPE, assert_close, assert_equal, tiny_model
from tests.models.keras.test_adapter import layers, sequential
from tests.quadratics import quadratic_model
from tff_pfl.algorithms import make
from tff_pfl.arguments.names import UnknownNameError
from tff_pfl.local import Batch
from tff_pfl.models import (
    Model,
    Task,
    build,
    from_keras,
    layer_groups,
    layer_parts,
    normalization_layers,
)
from tff_pfl.testing import tiny_local

MODEL = quadratic_model(1, 2, 3)
WEIGHTS = collections.OrderedDict((name, {"w": name}) for name in MODEL.layers)


def test_default_personal_layer_is_the_last():
    parts = layer_parts(MODEL)
    assert parts.shared == ("layer0", "layer1")
    assert parts.personal == ("layer2",)
    assert parts.layers == MODEL.layers


@pytest.mark.parametrize(
    ("name", "layers", "options", "found"),
    [
        ("fedper", 1, {}, "clients share nothing"),
        ("fedrep", 1, {}, "clients share nothing"),
        ("fedbabu", 2, {"head_layers": ["layer0", "layer1"]}, "clients share nothing"),
        ("fedper", 2, {"personal_layers": []}, "share all, as in fedavg"),
        ("lg_fedavg", 1, {}, "share all, as in fedavg"),
        ("fedrep", 2, {}, None),
        ("lg_fedavg", 2, {}, None),
        ("fedala", 2, {"num_mixed_layers": 2}, None),
    ],
)
def test_methods_of_two_parts_warn_if_one_is_empty(name, layers, options, found, caplog):
    make(name, quadratic_model(*range(1, 1 + layers)), tiny_local(), **options)
    assert len(caplog.messages) == (found is not None)
    assert found is None or found in caplog.messages[0]


def test_merge_inverts_split_and_both_keep_the_models_order():
    for personal in ([], ["layer1"], ["layer2", "layer0"], ["layer0", "layer1", "layer2"]):
        parts = layer_parts(MODEL, personal=iter(personal))
        shared, own = parts.split(WEIGHTS)
        assert list(own) == sorted(personal)
        assert list(shared) == [name for name in MODEL.layers if name not in personal]
        merged = parts.merge(shared, own)
        assert merged == WEIGHTS
        assert list(merged) == list(MODEL.layers)


def test_partition_accepts_one_name_and_refuses_unknown_names():
    assert layer_parts(MODEL, personal="layer1").personal == ("layer1",)
    with pytest.raises(UnknownNameError, match="'layr1'"):
        layer_parts(MODEL, personal=["layer0", "layr1"])


dropout_network = sequential(
    layers.Flatten,
    lambda: layers.Dense(8, "relu", name="dense1"),
    lambda: layers.Dropout(0.5),
    shape=IMAGE_SHAPE,
)
TINY = tiny_model()
# Models with their personal layers: not the last, none, and a model with dropout.
SPLITS = {
    "dense1": (TINY, ["dense1"]),
    "none": (TINY, []),
    "dropout": (from_keras(dropout_network, input_shape=IMAGE_SHAPE), None),
}


@pytest.fixture(scope="module", params=SPLITS)
def split(request):
    """Returns `(model, partition, weights, shared model, personal model)`."""
    model, personal = SPLITS[request.param]
    parts = layer_parts(model, personal=personal)
    weights = model.init(5)
    shared, own = parts.split(weights)
    models = parts.shared_model(model, own), parts.personal_model(model, shared)
    return model, parts, weights, *models


def batch_of():
    """Returns 5 rows, the last of them padding."""
    rng = np.random.default_rng(0)
    return Batch(
        x=tf.constant(rng.integers(0, 256, (5, *IMAGE_SHAPE)), tf.uint8),
        y=tf.constant(rng.integers(0, 3, 5), tf.int32),
        weight=tf.constant([1.0, 1, 1, 1, 0]),
        seed=tf.constant([3, 4]),
    )


class TestModelsOfParts:
    def test_initial_weights_are_parts_of_the_models(self, split):
        model, parts, _, shared_model, personal_model = split
        whole = model.init(9)
        for part_model, names in ((shared_model, parts.shared), (personal_model, parts.personal)):
            part = part_model.init(9)
            assert tuple(part) == names
            assert_equal(part, [whole[layer] for layer in names])
            assert part_model.num_weights == sum(
                np.size(w) for layer in names for w in whole[layer].values()
            )
            assert tuple(tff.structure.name_list(part_model.weights_type)) == names

    def test_gradients_are_parts_of_the_models_and_totals_are_equal(self, split):
        model, parts, weights, *part_models = split
        gradient, totals = model.gradient(weights, batch_of())
        assert all(np.any(leaf != 0) for leaf in tf.nest.flatten(gradient))
        pairs = zip(part_models, parts.split(weights), parts.split(gradient), strict=True)
        for part_model, part, expected in pairs:
            found, part_totals = part_model.gradient(part, batch_of())
            assert list(found) == list(expected)
            assert_close(found, expected, tolerance=1e-6)
            assert_equal(part_totals, totals)
            assert_equal(part_model.totals(part, batch_of(), training=True), totals)

    def test_the_other_part_is_constant(self, split):
        model, parts, weights, shared_model, personal_model = split
        other = model.init(6)
        other_shared, other_own = parts.split(other)
        shared, own = parts.split(weights)
        x = batch_of().x
        mixed = shared_model.apply(other_shared, x)
        assert_equal(mixed, model.apply(parts.merge(other_shared, own), x))
        assert np.array_equal(mixed, model.apply(weights, x)) == (not parts.shared)
        mixed = personal_model.apply(other_own, x)
        assert_equal(mixed, model.apply(parts.merge(shared, other_own), x))
        assert np.array_equal(mixed, model.apply(weights, x)) == (not parts.personal)


def model_of(**layers) -> Model:
    def init(seed):
        return collections.OrderedDict(
            (layer, collections.OrderedDict((name, tf.zeros([2])) for name in names.split()))
            for layer, names in layers.items()
        )

    return Model(init, lambda weights, x, **_: x, Task("outputs", lambda y, outputs: outputs))


NORMALIZED = model_of(
    first_norm="gamma beta",
    conv="kernel",
    norm="gamma beta",
    scale="gamma",
    dense="kernel bias",
    other="gamma beta kernel",
    last="beta",
)


def test_normalization_layers_have_only_scale_and_shift():
    assert normalization_layers(NORMALIZED) == ("first_norm", "norm", "scale", "last")
    assert normalization_layers(model_of(dense="kernel bias")) == ()


def test_normalization_layers_of_a_residual_network_are_its_norms():
    model = build("resnet18", (8, 8, 1), 3, width=4, blocks=(1,), groups=2)
    norms = normalization_layers(model)
    assert norms == ("stem_norm", "block1_norm1", "block1_norm2")
    assert not any("norm" in name for name in set(model.layers) - set(norms))


def test_layer_groups_join_norms_to_the_layer_before():
    assert layer_groups(NORMALIZED) == (0, 1, 1, 1, 2, 3, 3)
    assert layer_groups(NORMALIZED, ["norm", "dense", "last"]) == (0, 1, 1)
    assert layer_groups(NORMALIZED, []) == ()
