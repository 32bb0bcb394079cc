"""Checks the classes of users' values, and reads the signatures of functions."""

import functools
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any


class KindError(TypeError):
    """An error for a value of the wrong class; the message names the right one."""


def check_kind(
    subject: str,
    value: Any,
    kind: type | types.UnionType | tuple[type, ...],
    tip: str = "",
    *,
    named: str | None = None,
) -> None:
    """Raises a `KindError` unless a value is an instance of a class.

    Args:
        subject: The value's name in the message.
        value: The value.
        kind: The class, or several classes, such as `Evaluation | None`.
        tip: A sentence that says how to make a valid value.
        named: The class in words. Default: "of type" and its name.
    """
    if not isinstance(value, kind):
        kinds = kind if isinstance(kind, tuple) else typing.get_args(kind) or (kind,)
        names = ("None" if one is types.NoneType else one.__name__ for one in kinds)
        named = named or f"of type {' or '.join(names)}"
        found = repr(value).partition("\n")[0]
        raise KindError(f"{subject} must be {named}, got {found:.80}. {tip}".rstrip())


def function_of(made: Callable) -> Callable:
    """Returns the function inside of nested `functools.partial`s, or the function itself."""
    while isinstance(made, functools.partial):
        made = made.func
    return made


def signature_of(function: Callable) -> inspect.Signature:
    """Returns the signature of a function, with textual annotations evaluated if possible."""
    try:
        return inspect.signature(function, eval_str=True)
    except NameError:  # An annotation is imported for type checkers only.
        return inspect.signature(function)
