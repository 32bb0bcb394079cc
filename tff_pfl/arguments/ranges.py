"""Declares the ranges of users' numbers on the functions and classes that take them.

    @takes(lambda_=at_least(0), personal_epochs=whole(0))
    def ditto(model, local, *, lambda_=0.1, personal_epochs=None): ...

A call with a number out of range raises an error that names the argument, its range and the number.
`ranges_of(ditto)` returns the ranges, so that a config's numbers can be checked before anything is
built.
"""

import functools
import inspect
import math
import numbers
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from tff_pfl.arguments.kinds import function_of, signature_of
from tff_pfl.arguments.names import UnknownNameError, check_names, unknown_name
from tff_pfl.arguments.tracebacks import with_short_tracebacks

_Owner = TypeVar("_Owner", bound=Callable[..., Any])


class RangeError(ValueError):
    """An error for a number out of range; the message names the number and its range."""


class Range(NamedTuple):
    """A range of valid values for a number, or for each of several numbers.

    Attributes:
        text: The valid values in words, after "must be".
        contains: `(value -> bool)`, for values of any type.
        number: The type to which values are converted, or `None` to pass them as given.
    """

    text: str
    contains: Callable[[Any], bool]
    number: type | None = None

    def check(self, name: str, value: Any, error: type[Exception] = RangeError) -> None:
        """Raises `error`, with a message for `name`, if the value is out of range."""
        if not self.contains(value):
            raise error(f"{name} must be {self.text}, got {value!r}.")

    def or_value(self, value: Any) -> "Range":
        """Returns the range with one more value, such as `None`."""

        def contains(found):
            return (found is None if value is None else found == value) or self.contains(found)

        return Range(f"{self.text}, or {value!r}", contains)


def _is_number(value, kind=numbers.Real) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _real(text, contains):
    """Returns the range of the numbers that satisfy `contains` and that a float can hold."""
    return Range(
        text,
        lambda value: (
            _is_number(value)
            and not sys.float_info.max < abs(value) < math.inf
            and bool(contains(value))
        ),
        float,
    )


def _finite(text, contains):
    return _real(f"a finite number {text}", lambda value: math.isfinite(value) and contains(value))


ANY_NUMBER = _real("a number", lambda value: True)
"""Every real number, NaN and infinity included."""


def at_least(least: float) -> Range:
    """Returns the range of finite numbers of `least` or more."""
    return _finite(f"of at least {least:g}", lambda value: value >= least)


def above(least: float) -> Range:
    """Returns the range of finite numbers above `least`."""
    return _finite(f"above {least:g}", lambda value: value > least)


def above_or_infinite(least: float) -> Range:
    """Returns the range of numbers above `least`, including infinity."""
    return _real(f"a number above {least:g}", lambda value: value > least)


def at_least_or_infinite(least: float) -> Range:
    """Returns the range of numbers of `least` or more, including infinity."""
    return _real(f"a number of at least {least:g}", lambda value: value >= least)


def between(least: float, most: float) -> Range:
    """Returns the range of numbers from `least` to `most`, including both."""
    return _finite(f"in [{least:g}, {most:g}]", lambda value: least <= value <= most)


def inside(least: float, most: float) -> Range:
    """Returns the range of numbers between `least` and `most`, excluding both."""
    return _finite(f"in ({least:g}, {most:g})", lambda value: least < value < most)


def up_to(least: float, most: float) -> Range:
    """Returns the range of numbers from `least` to `most`, including only `least`."""
    return _finite(f"in [{least:g}, {most:g})", lambda value: least <= value < most)


def whole(least: int, most: int | None = None) -> Range:
    """Returns the range of integers of at least `least`, and at most `most` unless it is `None`."""
    text = f"of at least {least}" if most is None else f"in {least} to {most}"
    return Range(
        f"a whole number {text}",
        lambda value: (
            _is_number(value, numbers.Integral)
            and least <= value
            and (most is None or value <= most)
        ),
        int,
    )


def each(range_: Range, *, fewest: int = 0) -> Range:
    """Returns the range of sequences of `fewest` or more values, each in `range_`."""
    many = f"{fewest} or more numbers, " if fewest else "a sequence of numbers, "
    return Range(
        f"{many}each {range_.text}",
        lambda values: (
            isinstance(values, Sequence | np.ndarray)
            and not isinstance(values, str)
            and len(values) >= fewest
            and all(map(range_.contains, values))
        ),
    )


class _Names(Range):
    """A range of names, whose message suggests the nearest one."""

    def check(self, name: str, value: Any, error: type[Exception] = UnknownNameError) -> None:
        """Raises an error, with the message of `unknown_name`, for an unknown name."""
        if error is RangeError:
            error = UnknownNameError
        check_names(name.replace("_", " "), [value], self.text.split(", "), error=error)


def among(*names: str) -> Range:
    """Returns the range of some names."""
    return _Names(", ".join(names), lambda value: value in names)


_TRUE_OR_FALSE = Range("True or False", lambda value: isinstance(value, bool | np.bool_), bool)


def takes(
    range_error: type[Exception] = RangeError, /, **ranges: Range
) -> Callable[[_Owner], _Owner]:
    """Decorates a function or a class with the ranges of its arguments, and checks each call.

    Arguments that are annotated as `bool` must be `True` or `False`, because "no" would count as
    true. `None` is in range if it is an argument's default, or if the annotation allows it.
    TensorFlow computes in the type that it is given, so numbers of all types, including NumPy's,
    are converted: to `int` by ranges of whole numbers, and to `float` by other ranges.

    Example:
        >>> from tff_pfl.arguments.ranges import above
        >>> @tff_pfl.takes(rate=above(0))
        ... def scaled(value, *, rate=1.0):
        ...     return rate * value
        >>> scaled(3, rate=2)
        6.0
        >>> scaled(3, rate=0)
        Traceback (most recent call last):
        tff_pfl.arguments.ranges.RangeError: rate must be a finite number above 0, got 0.

    Args:
        range_error: The error to raise.
        **ranges: The ranges by names of arguments.
    """

    def decorate(owner):
        checked = owner.__init__ if inspect.isclass(owner) else owner
        signature = inspect.signature(checked)
        flags = {
            name: _TRUE_OR_FALSE
            for name, parameter in signature.parameters.items()
            if parameter.annotation in (bool, "bool")
        }
        if unknown := ranges.keys() - signature.parameters.keys():
            raise TypeError(f"{owner.__name__} has no argument {min(unknown)!r}.")

        @with_short_tracebacks
        @functools.wraps(checked)
        def call(*args, **kwargs):
            try:
                bound = signature.bind_partial(*args, **kwargs)
            except TypeError as error:
                raise TypeError(
                    f"{owner.__name__}: {_unknown(kwargs, signature) or error}"
                ) from None
            given = bound.arguments
            check_numbers(owner, given, error=range_error)
            for name in flags.keys() & given.keys():
                flags[name].check(name, given[name], range_error)
            for name, range_ in (flags | ranges).items():
                if range_.number is not None and given.get(name) is not None:
                    given[name] = range_.number(given[name])
            return checked(*bound.args, **bound.kwargs)

        owner.__ranges__ = call.__ranges__ = ranges
        if not inspect.isclass(owner):
            return call
        owner.__init__ = call
        return owner

    return decorate


def _unknown(given: Mapping[str, Any], signature: inspect.Signature) -> str:
    """Returns the message for the first unknown argument, or "" if all are known."""
    if any(it.kind is it.VAR_KEYWORD for it in signature.parameters.values()):
        return ""
    known = [name for name in signature.parameters if name != "self"]
    unknown = [name for name in given if name not in known]
    return unknown_name("argument", unknown[0], known) if unknown else ""


def ranges_of(owner: Callable) -> Mapping[str, Range]:
    """Returns the ranges that `takes` gave a function or class, or an empty mapping."""
    return getattr(function_of(owner), "__ranges__", {})


def check_numbers(
    owner: Callable,
    values: Mapping[str, Any],
    *,
    error: type[Exception] = RangeError,
) -> None:
    """Checks the arguments of a function or class before it is called.

    Args:
        owner: The function or class, as in `ranges_of`.
        values: The values by names of arguments. Arguments without a range are skipped.
        error: The error to raise.
    """
    for name, range_ in ranges_of(owner).items():
        if name not in values:
            continue
        if values[name] is None and may_be_none(signature_of(owner).parameters[name]):
            continue
        range_.check(name, values[name], error)


def may_be_none(parameter: inspect.Parameter) -> bool:
    """Returns whether the default or the annotation of an argument allows `None`."""
    return parameter.default is None or types.NoneType in typing.get_args(parameter.annotation)
