"""Checks the names that users type, and suggests a valid one."""

import difflib
import re
from collections.abc import Iterable
from typing import Any

TFF_TASKS = ("cifar100", "emnist", "autoencoder", "shakespeare", "tags", "words")
"""The tasks of `tff.simulation.baselines`: images of CIFAR-100, characters of EMNIST and their
autoencoder, characters of Shakespeare, tags and words of Stack Overflow."""

_SHOWN = 40  # names in a message
IN_PARTS = "letters, digits, '_', '-' and '.'"
"""The characters that `is_part` accepts, for messages."""


class UnknownNameError(ValueError):
    """An error for an unknown name; the message suggests the most similar valid one."""


def unknown_name(kind: str, name: Any, valid: Iterable[str], most: int | None = None) -> str:
    """Returns the message for an unknown name: the most similar valid name, then all of them.

    Args:
        kind: The kind of the name, such as "column".
        name: The unknown name.
        valid: The valid names.
        most: The number of valid names to list, the most similar ones first; by default the first
            40 in order.
    """
    valid = list(valid)
    near = difflib.get_close_matches(str(name), valid, n=most or 1, cutoff=0.4)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    listed, shown = dict.fromkeys([*near, *valid] if most else valid), most or _SHOWN
    more = f", ... ({len(valid)} in all)" if len(valid) > shown else ""
    names = ", ".join(map(repr, list(listed)[:shown])) or "none"
    return f"Unknown {kind} {name!r}.{hint} Valid: {names}{more}."


def is_part(name: Any) -> bool:
    """Returns whether a name may be part of a metric's name, such as `train/server/NAME`.

    Valid names consist of `IN_PARTS`. Letters are ASCII, as in TensorFlow's names.
    """
    return isinstance(name, str) and re.fullmatch(r"[\w.-]+", name, re.ASCII) is not None


def as_part(name: str) -> str:
    """Returns a name with `_` instead of characters that `is_part` does not accept."""
    return re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)


def parts_of_choice(
    choice: str, *, optional: str | None = None, **valid: Iterable[str]
) -> list[str]:
    """Splits a choice such as "cifar10,25,pgfed" into its parts.

    Args:
        choice: The parts, separated by commas.
        optional: The name of an optional last part.
        **valid: The name of each part, in order, with its valid values.

    Raises:
        UnknownNameError: The number of parts is wrong, or a part is not valid.
    """
    parts = choice.split(",")
    valid = {kind: list(names) for kind, names in valid.items()}
    if len(parts) not in (len(valid), len(valid) + (optional is not None)):
        form = ",".join(valid) + (f"[,{optional}]" if optional else "")
        listed = "".join(f"\n  {kind}: {', '.join(names)}" for kind, names in valid.items())
        raise UnknownNameError(f"After the colon comes {form}, found {choice!r}.{listed}")
    for part, (kind, names) in zip(parts, valid.items(), strict=False):
        check_names(kind, [part], names)
    return parts


def check_names(
    kind: str,
    names: Iterable[str],
    valid: Iterable[str],
    *,
    error: type[Exception] = UnknownNameError,
    tip: str = "",
) -> None:
    """Raises `error`, with the message of `unknown_name` and `tip`, for the first unknown name."""
    valid = list(valid)
    for name in names:
        if name not in valid:
            raise error(" ".join(filter(None, [unknown_name(kind, name, valid), tip])))
