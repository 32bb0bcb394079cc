"""Tests of `tff_pfl.models.partition`."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.federation import IMAGE_SHAPE, assert_close, assert_equal, tiny_model
from tests.quadratics import quadratic_model
from tff_pfl.local import Batch
from tff_pfl.models import from_keras, partition

MODEL = quadratic_model(1, 2, 3)
WEIGHTS = collections.OrderedDict((name, {"w": name}) for name in MODEL.layers)


def test_the_head_is_the_last_layer():
    parts = partition(MODEL)
    assert parts.shared == ("layer0", "layer1")
    assert parts.personal == ("layer2",)
    assert parts.layers == MODEL.layers


@pytest.mark.parametrize(
    "personal", [[], ["layer1"], ["layer2", "layer0"], ["layer0", "layer1", "layer2"]]
)
def test_merge_is_the_inverse_of_split_and_both_keep_the_models_order(personal):
    parts = partition(MODEL, personal=personal)
    shared, own = parts.split(WEIGHTS)
    assert list(own) == sorted(personal)
    assert list(shared) == [name for name in MODEL.layers if name not in personal]
    merged = parts.merge(shared, own)
    assert merged == WEIGHTS
    assert list(merged) == list(MODEL.layers)


def test_the_personal_layers_may_come_from_an_iterator():
    assert partition(MODEL, personal=iter(["layer1"])).personal == ("layer1",)


def test_an_unknown_layer_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match="'layr1'. Did you mean 'layer1'"):
        partition(MODEL, personal=["layer0", "layr1"])


def test_a_string_is_not_names():
    with pytest.raises(ValueError, match=r"such as \('head',\)"):
        partition(MODEL, personal="head")


def dropout_network():
    return tf.keras.Sequential(
        [
            tf.keras.layers.Flatten(input_shape=IMAGE_SHAPE),
            tf.keras.layers.Dense(8, "relu", name="dense1"),
            tf.keras.layers.Dropout(0.5),
            tf.keras.layers.Dense(3, name="head"),
        ]
    )


TINY = tiny_model()
# Models and their personal layers: the last, not the last, none, all; with randomness.
SPLITS = {
    "head": (TINY, None),
    "dense1": (TINY, ["dense1"]),
    "none": (TINY, []),
    "all": (TINY, ["dense1", "head"]),
    "dropout": (from_keras(dropout_network, input_shape=IMAGE_SHAPE), None),
}


@pytest.fixture(scope="module", params=SPLITS)
def split(request):
    """`(model, partition, weights, model of the shared part, model of the personal part)`."""
    model, personal = SPLITS[request.param]
    parts = partition(model, personal=personal)
    weights = model.init(5)
    shared, own = parts.split(weights)
    return (
        model,
        parts,
        weights,
        parts.shared_model(model, own),
        parts.personal_model(model, shared),
    )


def batch_of(seed=3):
    """5 rows, of which the last only fills the batch up."""
    rng = np.random.default_rng(0)
    return Batch(
        x=tf.constant(rng.integers(0, 256, (5, *IMAGE_SHAPE)), tf.uint8),
        y=tf.constant(rng.integers(0, 3, 5), tf.int32),
        weight=tf.constant([1.0, 1, 1, 1, 0]),
        seed=tf.constant([seed, 4]),
    )


class TestModelsOfParts:
    def test_initial_weights_are_the_parts(self, split):
        model, parts, _, shared_model, personal_model = split
        whole = model.init(9)
        for part_model, layers in ((shared_model, parts.shared), (personal_model, parts.personal)):
            part = part_model.init(9)
            assert tuple(part) == layers
            assert_equal(part, [whole[layer] for layer in layers])
            assert part_model.num_weights == sum(
                np.size(w) for layer in layers for w in whole[layer].values()
            )
            assert tuple(tff.structure.name_list(part_model.weights_type)) == layers

    @pytest.mark.parametrize("training", [False, True])
    def test_gradients_are_the_parts_of_the_gradient_and_totals_are_equal(self, split, training):
        model, parts, weights, *part_models = split
        gradient, totals = model.gradient(weights, batch_of(), training=training)
        assert all(np.any(leaf != 0) for leaf in tf.nest.flatten(gradient))
        pairs = zip(part_models, parts.split(weights), parts.split(gradient), strict=True)
        for part_model, part, expected in pairs:
            found, part_totals = part_model.gradient(part, batch_of(), training=training)
            assert list(found) == list(expected)
            assert_close(found, expected, tolerance=1e-6)
            assert_equal(part_totals, totals)
            assert_equal(
                part_model.totals(part, batch_of(), training=training),
                model.totals(weights, batch_of(), training=training),
            )

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

    def test_what_else_a_model_has(self, split):
        model, _, _, *part_models = split
        for part_model in part_models:
            assert part_model.name == model.name
            assert part_model.example_metrics is model.example_metrics
            assert part_model.example_loss is model.example_loss


def test_dropout_has_the_same_masks_for_the_same_seed():
    model, _ = SPLITS["dropout"]
    parts, weights = partition(model), model.init(1)
    shared, own = parts.split(weights)
    outputs = {
        seed: [
            apply(part, batch_of().x, training=True, seed=tf.constant([seed, 4]))
            for apply, part in (
                (model.apply, weights),
                (parts.shared_model(model, own).apply, shared),
                (parts.personal_model(model, shared).apply, own),
            )
        ]
        for seed in (1, 2)
    }
    for of_seed in outputs.values():
        assert_equal(of_seed, of_seed[:1] * 3)
    assert not np.allclose(outputs[1][0], outputs[2][0])
