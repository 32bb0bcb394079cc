"""What a value has to be, said where it comes in and not where it fails."""

import functools
import inspect
from collections.abc import Callable
from typing import Any


class KindError(TypeError):
    """A value is of another class than it has to be; the message says of which."""


def check_kind(
    what: str,
    value: Any,
    kind: type | tuple[type, ...],
    tip: str = "",
    *,
    named: str | None = None,
) -> None:
    """Checks that a value is of a class.

    Args:
        what: Of what the value is, for the message.
        value: The value.
        kind: The class, or several of them, which `named` then has a name for.
        tip: How one comes by what is right.
        named: What it has to be, in words; by default that it is of the class.

    Raises:
        KindError: If it is not.
    """
    if not isinstance(value, kind):
        named = named or f"of type {kind.__name__}"
        raise KindError(f"{what} must be {named}, got {value!r:.80}. {tip}".rstrip())


def function_of(made: Callable) -> Callable:
    """What `functools.partial`, once or several times, was given; or else the function itself."""
    while isinstance(made, functools.partial):
        made = made.func
    return made


def signature_of(function: Callable) -> inspect.Signature:
    """With annotations as they are meant where they are text, as `__future__` has them."""
    try:
        return inspect.signature(function, eval_str=True)
    except NameError:  # an annotation of what is imported for type checkers alone
        return inspect.signature(function)
