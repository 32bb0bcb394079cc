"""Tests the keys of configs, which are the settings of classes."""

from docs import keys as page
from tff_pfl.arguments.settings import facts
from tff_pfl.config.sections import SECTIONS, keys, own_keys
from tff_pfl.evaluation import Evaluation
from tff_pfl.local import LocalTraining


def test_sections_are_the_classes_that_take_them():
    config = own_keys()
    assert Evaluation(**config.evaluation.to_dict()) == Evaluation()
    local = {key.name for key in keys() if key.section == "local"}
    assert local - {"learning_rate", "momentum"} <= {*facts(LocalTraining)}
    assert set(config) == {*SECTIONS} - {""} | {key.name for key in keys() if not key.section}


def test_page_has_all_keys():
    assert page.PAGE.read_text() == page.page(), "run python -m docs.keys"
