"""Names that users type: an unknown one is answered with the nearest valid one."""

import difflib
from collections.abc import Iterable


class UnknownNameError(ValueError):
    """A name that does not exist; the message gives the nearest one that does."""


def unknown_name(kind: str, name: str, valid: Iterable[str]) -> str:
    """The message for a name that does not exist: the nearest valid one, then all of them."""
    valid = list(valid)
    near = difflib.get_close_matches(str(name), valid, n=1, cutoff=0.4)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"Unknown {kind} {name!r}.{hint} Valid: {', '.join(map(repr, valid)) or 'none'}."


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
