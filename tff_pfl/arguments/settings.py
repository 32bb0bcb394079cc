"""Declares the settings of a value: each field carries its own facts.

    @settings
    class EarlyStop:
        patience: int = setting("The evaluations without improvement before the end.", whole(1))
        least_gain: float = setting("The gain that an improvement exceeds.", default=0.0)

The facts are the default, the range, the meaning, what a change changes, and the values of other
settings that make it idle. Configs read them from the fields, see `facts`.
"""

import dataclasses
import textwrap
import typing
from collections.abc import Mapping
from typing import Any, NamedTuple

from tff_pfl.arguments.ranges import Range, takes

NUMBERS, RESULTS, NOTHING = "numbers", "results", "nothing"
"""The numbers that a setting changes: of rounds; only those at the end of a run; or none."""


class Facts(NamedTuple):
    """The facts of a setting, besides its default and its type.

    Attributes:
        range: The range of its value; `None` if the class checks it.
        meaning: A text that explains it.
        changes: `NUMBERS`, `RESULTS` or `NOTHING`.
        idle: Values of other settings of the class, or predicates of these values, with which it
            has no effect.
    """

    range: Range | None = None
    meaning: str = ""
    changes: str = NUMBERS
    idle: Mapping[str, Any] = {}

    def idle_by(self, values: Mapping[str, Any]) -> str | None:
        """Returns the first setting whose value makes this one idle, or `None`."""
        for name, idle in self.idle.items():
            value = values[name]
            if idle(value) if callable(idle) else value == idle:
                return name
        return None


def setting(
    meaning: str,
    range: Range | None = None,
    *,
    default: Any = dataclasses.MISSING,
    changes: str = NUMBERS,
    idle: Mapping[str, Any] = {},
) -> Any:
    """Returns the field of a setting; see `Facts`. A setting without a default is required."""
    facts = Facts(range, meaning, changes, idle)
    return dataclasses.field(default=default, metadata={"facts": facts})


def facts(kind: type) -> dict[str, tuple[dataclasses.Field, Facts]]:
    """Returns the fields of a class of settings, with their facts, by name."""
    return {
        field.name: (field, field.metadata["facts"])
        for field in dataclasses.fields(kind)
        if "facts" in field.metadata
    }


@typing.dataclass_transform(frozen_default=True, field_specifiers=(setting, dataclasses.field))
def settings(kind: type | None = None, /, **options: Any) -> Any:
    """Makes a class a frozen dataclass that checks its settings, and lists them in its docstring.

    Args:
        kind: The class.
        **options: Options of `dataclasses.dataclass`.
    """

    def decorate(kind: type) -> type:
        made: Any = dataclasses.dataclass(frozen=True, **options)(kind)
        ranges = {name: it.range for name, (_, it) in facts(made).items() if it.range is not None}
        made.__doc__ = _documented(made)
        return takes(**ranges)(made)

    return decorate if kind is None else decorate(kind)


def _documented(kind: type) -> str:
    """Returns the docstring with the settings as its attributes."""
    listed = [
        textwrap.fill(
            f"{name}: {it.meaning}", 96, initial_indent=" " * 8, subsequent_indent=" " * 12
        )
        for name, (_, it) in facts(kind).items()
    ]
    before, raises, after = (kind.__doc__ or "").rstrip().partition("\n\n    Raises:")
    return "\n".join([f"{before}\n\n    Attributes:", *listed]) + raises + after + "\n    "
