"""Names that users type: an unknown one is answered with the nearest valid one."""

import difflib
import re
from collections.abc import Iterable
from typing import Any

IN_PARTS = "letters, digits, '_', '-' and '.'"
"""What names that `is_part` takes are made of, for messages."""


class UnknownNameError(ValueError):
    """A name that does not exist; the message gives the nearest one that does."""


def unknown_name(kind: str, name: str, valid: Iterable[str]) -> str:
    """The message for a name that does not exist: the nearest valid one, then all of them."""
    valid = list(valid)
    near = difflib.get_close_matches(str(name), valid, n=1, cutoff=0.4)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"Unknown {kind} {name!r}.{hint} Valid: {', '.join(map(repr, valid)) or 'none'}."


def is_near(name: str, valid: Iterable[str]) -> bool:
    """Whether a name is so much like a valid one that it must have been meant."""
    return bool(difflib.get_close_matches(name, list(valid), n=1, cutoff=0.7))


def is_part(name: Any) -> bool:
    """Whether a name may be part of a metric's, as of `train/server/NAME`.

    Such names have `IN_PARTS` alone; letters are those of ASCII, as TensorFlow's are.
    """
    return isinstance(name, str) and re.fullmatch(r"[\w.-]+", name, re.ASCII) is not None


def parts_of_choice(
    choice: str, *, optional: str | None = None, **valid: Iterable[str]
) -> list[str]:
    """The parts of a choice such as "cifar10,25,pgfed".

    Args:
        choice: Parts with commas between them.
        optional: What a last part, which may be missing, is called.
        **valid: For each part, in order: what it is called, and what it may be.

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
