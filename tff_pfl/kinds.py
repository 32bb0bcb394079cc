"""Checks the classes of users' values, and inspects the signatures of functions."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any


class KindError(TypeError):
    """An error for a value of the wrong class; the message names the right one."""


def check_kind(
    subject: str,
    value: Any,
    kind: type | tuple[type, ...],
    tip: str = "",
    *,
    named: str | None = None,
) -> None:
    """Raises a `KindError` unless a value is an instance of a class.

    Args:
        subject: The value's name in the message.
        value: The value.
        kind: The class, or several classes, which need `named`.
        tip: A sentence that says how to make a valid value.
        named: The class in words. Default: "of type" and its name.
    """
    if not isinstance(value, kind):
        named, found = named or f"of type {kind.__name__}", repr(value).partition("\n")[0]
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


def described(value: Any) -> Any:
    """Returns a value as a JSON value for records, and functions and other objects by name."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): described(content) for key, content in value.items()}
    if isinstance(value, list | tuple):
        return list(map(described, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {"name": type(value).__qualname__, **described(fields)}
    if hasattr(value, "tolist"):  # NumPy's numbers and arrays
        return value.tolist()
    named = function_of(value) if callable(value) else value
    return getattr(named, "__qualname__", type(value).__qualname__)
