"""Checks of the classes of values, where they enter, and the signatures of functions."""

import functools
import inspect
from collections.abc import Callable
from typing import Any


class KindError(TypeError):
    """A value has another class than it needs; the message says which."""


def check_kind(
    what: str,
    value: Any,
    kind: type | tuple[type, ...],
    tip: str = "",
    *,
    named: str | None = None,
) -> None:
    """Raises a `KindError` unless a value is an instance of a class.

    Args:
        what: Names the value in the message.
        value: The value.
        kind: The class, or several of them, which `named` then has a name for.
        tip: How to make a right value.
        named: The class in words; by default "of type" and its name.
    """
    if not isinstance(value, kind):
        named = named or f"of type {kind.__name__}"
        raise KindError(f"{what} must be {named}, got {value!r:.80}. {tip}".rstrip())


def function_of(made: Callable) -> Callable:
    """Returns the function inside of `functools.partial`s, or else the function itself."""
    while isinstance(made, functools.partial):
        made = made.func
    return made


def signature_of(function: Callable) -> inspect.Signature:
    """Returns the signature, with annotations evaluated where they are text."""
    try:
        return inspect.signature(function, eval_str=True)
    except NameError:  # an annotation that is imported for type checkers alone
        return inspect.signature(function)
