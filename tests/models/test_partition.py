"""Tests of `tff_pfl.models.partition`."""

import collections

import pytest

from tests.quadratics import quadratic_model
from tff_pfl.models import partition

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
