"""Tests that the fields of a class carry the facts of its settings."""

import dataclasses

import pytest

from tff_pfl.arguments.names import UnknownNameError
from tff_pfl.arguments.ranges import RangeError, among, at_least, whole
from tff_pfl.arguments.settings import RESULTS, facts, setting, settings


@settings
class Oven:
    """An oven.

    Raises:
        ValueError: A number is wrong.
    """

    minutes: int = setting("The minutes until it is off.", whole(1))
    mode: str = setting("The heat.", among("bake", "grill"), default="bake")
    degrees: float = setting(
        "The heat in degrees.", at_least(0), default=180.0, idle={"mode": "grill"}
    )
    light: bool = setting(
        "Whether it has a light.", default=False, changes=RESULTS, idle={"minutes": lambda n: n < 5}
    )


def test_class_is_a_frozen_dataclass_that_checks_its_settings():
    oven = Oven(20, degrees=200)
    assert (oven.minutes, oven.mode, oven.degrees, oven.light) == (20, "bake", 200.0, False)
    assert type(oven.degrees) is float
    with pytest.raises(dataclasses.FrozenInstanceError):
        oven.minutes = 3
    for wrong, error, message in (
        ({"minutes": 0}, RangeError, "minutes must be a whole number of at least 1, got 0"),
        ({"minutes": 1, "mode": "gril"}, UnknownNameError, "Unknown mode 'gril'. Did you mean 'g"),
        ({"minutes": 1, "light": "no"}, RangeError, "light must be True or False, got 'no'"),
    ):
        with pytest.raises(error, match=message):
            Oven(**wrong)


def test_docstring_lists_the_settings_before_the_errors():
    before, _, after = Oven.__doc__.partition("    Attributes:\n")
    assert before == "An oven.\n\n"
    assert after.startswith(
        "        minutes: The minutes until it is off.\n        mode: The heat."
    )
    assert after.endswith("    Raises:\n        ValueError: A number is wrong.\n    ")


def test_facts_say_what_a_setting_changes_and_what_makes_it_idle():
    found = facts(Oven)
    assert [name for name, (_, it) in found.items() if it.changes == RESULTS] == ["light"]
    _, degrees = found["degrees"]
    assert degrees.idle_by({"mode": "grill"}) == "mode"
    assert degrees.idle_by({"mode": "bake"}) is None
    assert found["light"][1].idle_by({"minutes": 3}) == "minutes"
    assert found["minutes"][1].idle_by({}) is None
