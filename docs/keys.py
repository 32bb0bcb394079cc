"""Writes `keys.md`, the page of all keys of a config: `python -m docs.keys`."""

import pathlib
from collections.abc import Callable

from tff_pfl.arguments.kinds import function_of
from tff_pfl.config.options import CHOICES, default_config
from tff_pfl.config.sections import SECTIONS, Key, keys

PAGE = pathlib.Path(__file__).with_name("keys.md")
_BEGIN = """\
# All keys of a config

A config describes a run completely. A file in [`configs/`](../configs) returns a copy of
`tff_pfl.default_config(ALGORITHM)` with its own values, and flags such as `--config.rounds=50`
override single values. In Python, the same settings are the fields of an
[`Experiment`](guides/experiments.md) and of the classes named below.

What is chosen by name brings its options as further keys, which `--help` lists. Keys marked with
*results* may be changed when a run is resumed, because they change only what is reported at its
end; those marked with *nothing* change no number.
"""


def page() -> str:
    """Returns the page."""
    return _BEGIN + "".join(_section(name) for name in SECTIONS)


def _section(name: str) -> str:
    content = SECTIONS[name]
    own = [key for key in keys() if key.section == name]
    choices = [choice for choice in CHOICES if choice.key.startswith(f"{name}.") and name]
    takes = ", ".join(f"`{kind.__name__}`" for kind in content.kinds)
    lines = ["", f"## {name or 'The config itself'}", ""]
    if content.switch:
        lines += [f"All of it is off without `{name}.{content.switch}`.", ""]
    if own:
        lines += [
            f"The settings of {takes}.",
            "",
            "| key | default | meaning |",
            "| --- | --- | --- |",
        ]
        lines += [f"| `{key}` | `{key.default!r}` | {_meaning(key)} |" for key in own]
    for choice in choices:
        default = f", by default `{choice.default}`" if choice.default else ""
        where = choice.section.replace("{}", "NAME")
        lines += [
            "",
            f"`{choice.key}` chooses the {choice.registry.kind}{default}; its options are in "
            f"`{where}`:",
            ", ".join(f"`{it}`" for it in choice.registry if _is_own(choice.registry[it])) + ".",
        ]
    return "\n".join([*lines, ""])


def _is_own(function: Callable) -> bool:
    """Returns whether a function is of this library, not one that a user has registered."""
    return function_of(function).__module__.startswith("tff_")


def _meaning(key: Key) -> str:
    notes = [] if key.range is None else [f"{key.range.text}"]
    notes += [] if key.facts.changes == "numbers" else [f"*{key.facts.changes}*"]
    return key.facts.meaning.replace("|", "\\|") + (f" ({'; '.join(notes)})" if notes else "")


if __name__ == "__main__":
    default_config()
    PAGE.write_text(page())
