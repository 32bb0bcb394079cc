"""Names that users type, and the message for an unknown one."""

import difflib
import re
from collections.abc import Iterable
from typing import Any

IN_PARTS = "letters, digits, '_', '-' and '.'"
"""The characters of names that `is_part` accepts, for messages."""


class UnknownNameError(ValueError):
    """A name does not exist; the message gives the nearest one that does."""


def unknown_name(kind: str, name: str, valid: Iterable[str]) -> str:
    """Returns the message for an unknown name: the nearest valid one, then all of them."""
    valid = list(valid)
    near = difflib.get_close_matches(str(name), valid, n=1, cutoff=0.4)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"Unknown {kind} {name!r}.{hint} Valid: {', '.join(map(repr, valid)) or 'none'}."


def is_part(name: Any) -> bool:
    """Returns whether a name may be part of a metric's name, such as `train/server/NAME`.

    Such names consist of `IN_PARTS`; letters are ASCII, as in names of TensorFlow.
    """
    return isinstance(name, str) and re.fullmatch(r"[\w.-]+", name, re.ASCII) is not None


def parts_of_choice(
    choice: str, *, optional: str | None = None, **valid: Iterable[str]
) -> list[str]:
    """Splits a choice such as "cifar10,25,pgfed" into its parts.

    Args:
        choice: Parts with commas between them.
        optional: The name of a last part that may be missing.
        **valid: For each part, in order: its name, and its valid values.

    Raises:
        UnknownNameError: If there are fewer or more parts, or one is not valid.
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
    """Raises `error` with the message of `unknown_name`, and `tip`, if a name is not valid."""
    valid = list(valid)
    for name in names:
        if name not in valid:
            raise error(" ".join(filter(None, [unknown_name(kind, name, valid), tip])))
