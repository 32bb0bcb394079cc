"""What a value has to be, said where it comes in and not where it fails."""

from typing import Any


def check_kind(what: str, value: Any, kind: type, tip: str = "") -> None:
    """Checks that a value is of a class.

    Args:
        what: Of what the value is, for the message.
        value: The value.
        kind: The class.
        tip: How one comes by what is right.

    Raises:
        TypeError: If it is not.
    """
    if not isinstance(value, kind):
        raise TypeError(f"{what} must be of type {kind.__name__}, got {value!r}. {tip}".rstrip())
