"""Checks the classes of users' values, and describes values and functions."""

import dataclasses
import functools
import hashlib
import inspect
import types
import typing
from collections.abc import Callable, Mapping
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


def described(value: Any) -> Any:
    """Returns a value as a JSON value for records, and functions and other objects by name.

    Instances of a user's own dataclasses also have the digest of their code, `code_of`.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): described(content) for key, content in value.items()}
    if isinstance(value, list | tuple):
        return list(map(described, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        own = type(value).__module__.partition(".")[0] != __package__.partition(".")[0]
        code = {"code": code_of(type(value))} if own else {}
        return {"name": type(value).__qualname__, **code, **described(fields)}
    if hasattr(value, "tolist"):  # NumPy's numbers and arrays
        return value.tolist()
    named = function_of(value) if callable(value) else value
    return getattr(named, "__qualname__", type(value).__qualname__)


def code_of(kind: type) -> str:
    """Returns a digest of the methods of a class, 16 hexadecimal digits.

    It covers its base classes, and global functions of the same modules that methods call, but not
    comments, lines and other modules.
    """
    found: dict[tuple[str, str], str] = {}
    for base in kind.__mro__:
        for name, member in vars(base).items():
            function = getattr(member, "fget", None) or getattr(member, "__func__", member)
            _add_code(name, function, base.__module__, found)
    return hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()[:16]


def _add_code(name, function, module, found) -> None:
    """Adds the code of a function of a module and of the functions that it calls to `found`."""
    if not isinstance(function, types.FunctionType) or function.__module__ != module:
        return
    if (key := (name, function.__qualname__)) not in found:
        found[key] = _instructions(function.__code__)
        for called in function.__code__.co_names:
            _add_code(called, function.__globals__.get(called), module, found)


def _instructions(code: types.CodeType) -> str:
    """Describes the instructions and constants of a function, without its lines and its file."""
    constants = [
        _instructions(constant)
        if isinstance(constant, types.CodeType)
        else repr(sorted(constant, key=repr) if isinstance(constant, frozenset) else constant)
        for constant in code.co_consts
    ]
    return repr((code.co_code, code.co_names, constants))
