"""Tests ranges of numbers and their checks."""

import dataclasses
import fractions
import functools
import inspect
import math

import numpy as np
import pytest

from tff_pfl.arguments import ranges
from tff_pfl.arguments.extension import extends
from tff_pfl.arguments.ranges import (
    RangeError,
    at_least,
    check_numbers,
    each,
    ranges_of,
    takes,
    whole,
)


@takes(rate=at_least(0), steps=whole(1))
def build(model, *, rate: float = 0.1, steps: int | None = 3, name="x"):
    return model, rate, steps, name


RANGES = [
    (ranges.at_least(0), [0, 0.0, 1e300, np.float32(1)], [-1e-9, math.inf, math.nan]),
    (ranges.at_least_or_infinite(1), [1, math.inf], [0.9, math.nan]),
    (ranges.above(0), [1e-300, 10**300], [0, 10**400, -math.inf, math.inf, math.nan]),
    (ranges.above_or_infinite(1), [1.1, math.inf], [1.0, math.nan]),
    (ranges.between(0, 1), [0, 1], [-0.1, 1.1, math.nan]),
    (ranges.inside(0, 1), [0.5], [0, 1, math.nan]),
    (ranges.up_to(0, 1), [0, 0.9], [1, -0.1, math.nan]),
    (ranges.whole(1), [1, 10**30, np.int64(2)], [0, 1.0, math.nan, math.inf]),
    (ranges.whole(1, 3), [1, 3], [0, 4]),
    (ranges.ANY_NUMBER, [0, math.nan, -math.inf], []),
    (each(whole(1), fewest=1), [(1,), [2, 3], np.array([4])], [(), (0,), {1}, iter([1])]),
    (each(whole(1)), [()], [(1, 0)]),
]


def test_ranges_contain_the_right_values():
    for range_, inside, outside in RANGES:
        outside = [*outside, True, np.True_, "1", None, "11"]
        assert [range_.contains(value) for value in inside] == [True] * len(inside), range_.text
        assert [range_.contains(value) for value in outside] == [False] * len(outside), range_.text


def test_arguments_are_checked_before_the_call():
    assert build("m", rate=0, steps=None) == ("m", 0, None, "x")
    assert inspect.signature(build).parameters.keys() == {"model", "rate", "steps", "name"}
    message = "^rate must be a finite number of at least 0, got nan.$"
    for build_it in (build, functools.partial(build, steps=2)):
        with pytest.raises(RangeError, match=message):
            build_it("m", rate=math.nan)
        with pytest.raises(ValueError, match="got None"):
            build_it("m", rate=None)
    with pytest.raises(TypeError, match="^build: Unknown argument 'rats'. Did you mean 'rate'"):
        build("m", rats=1)
    open_ended = takes(a=whole(1))(lambda a, **options: None)
    with pytest.raises(TypeError, match="too many positional arguments"):
        open_ended(1, 2, rate=3)  # rate is no unknown argument
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'model'"):
        build()


def test_numbers_are_converted_to_one_type():
    """Checks conversions, without which TensorFlow would use int32, int64 or float64."""
    for given in (1, np.float32(1), np.int64(1), fractions.Fraction(1)):
        _, rate, steps, name = build("m", rate=given, steps=np.int64(2), name=np.int64(2))
        assert (rate, steps, type(rate), type(steps)) == (1.0, 2, float, int)
        assert type(name) is np.int64  # it has no range


def test_flags_must_be_true_or_false():
    """Checks that other true values, such as "False", are refused."""

    @takes()
    def train(*, fairly: bool = True, quickly: "bool" = False, more: bool | None = None):
        return fairly, quickly, more

    flags = train(fairly=np.False_, quickly=True, more="any")
    assert flags == (False, True, "any")
    assert type(flags[0]) is bool
    for name, value in [("fairly", "no"), ("quickly", 1), ("fairly", None)]:
        with pytest.raises(RangeError, match=f"^{name} must be True or False, got {value!r}.$"):
            train(**{name: value})


def test_check_numbers_checks_without_a_call():
    check_numbers(functools.partial(build), {"rate": 1.0, "steps": None, "name": -1})
    with pytest.raises(KeyError, match="steps must be a whole number of at least 1"):
        check_numbers(build, {"steps": 0}, error=KeyError)


def test_dataclasses_can_have_ranges():
    @takes(ArithmeticError, size=whole(1))
    @dataclasses.dataclass(frozen=True)
    class Batches:
        size: int = 1

    with pytest.raises(ArithmeticError, match="size must be .*, got 0"):
        dataclasses.replace(Batches(), size=0)
    assert (Batches(3).size, ranges_of(Batches).keys()) == (3, {"size"})


def test_annotations_may_be_text():
    """Covers annotations under `from __future__ import annotations`."""

    @takes(steps=whole(1))
    def train(*, steps: "int | None" = 3, unknown: "Missing" = None):  # noqa: F821
        return steps

    @extends(build)
    @takes(steps=whole(1))
    def extended(model, *, steps: "int | None" = 3, share: "float" = 1, **options):
        return steps

    assert extended("m", steps=None) is None
    assert inspect.signature(extended).parameters["share"].annotation is float
    with pytest.raises(RangeError, match="steps must be a whole number of at least 1, got 0"):
        train(steps=0)


def test_range_must_name_an_argument():
    with pytest.raises(TypeError, match="build has no argument 'rats'"):
        takes(rats=whole(0))(build)
