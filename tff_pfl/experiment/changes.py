"""Compares what runs depend on, and says what each change of it changes."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tff_pfl.arguments.settings import NOTHING, NUMBERS, RESULTS, facts
from tff_pfl.evaluation.options import Evaluation
from tff_pfl.experiment.new_clients import NewClients

_OF_MACHINES = ("checkpoint_every", "data.data_dir", "import_path", "model.start")
CHANGES = {
    "rounds": RESULTS,
    **dict.fromkeys(_OF_MACHINES, NOTHING),
    **{
        f"{section}.{name}": found.changes
        for section, kind in (("evaluation", Evaluation), ("new_clients", NewClients))
        for name, (_, found) in facts(kind).items()
        if found.changes != NUMBERS
    },
}
"""Settings that do not change the numbers of a run's rounds, and what they change, by keys."""

_DESCRIPTIONS = {
    "fingerprints.data": "the fingerprint of its data and their partition (partition.npz)",
    "fingerprints.inputs": "the fingerprint of its inputs, which covers every bit",
    "fingerprints.rounds": "the fingerprint of its method, options, local training, model, loss "
    "and preprocess",
    "fingerprints.models": "the fingerprint of the computation of its models",
    "fingerprints.evaluation": "the fingerprint of its metrics",
}


def changes_of(key: str) -> str:
    """Returns what a setting changes, by its key in a config or in one of its lists."""
    found = (what for free, what in CHANGES.items() if f"{key}.".startswith(f"{free}."))
    return next(found, NUMBERS)


class Change(NamedTuple):
    """A value that two runs depend on, and that differs between them.

    Attributes:
        key: The value's key in a config, or in an identity.
        before: The value of the earlier run.
        now: The value of the present run.
    """

    key: str
    before: Any
    now: Any

    @property
    def what(self) -> str:
        """The kind of numbers that differ by the change: `NOTHING`, `RESULTS` or `NUMBERS`."""
        return changes_of(self.key)

    def __str__(self) -> str:
        """Returns the value's key or description, and both values."""
        return f"{_DESCRIPTIONS.get(self.key, self.key)}: {self.before!r} then, {self.now!r} now"


def differences(
    before: Mapping[str, Any], now: Mapping[str, Any], ignored: Iterable[str] = ()
) -> list[Change]:
    """Lists what differs between two runs.

    Args:
        before: The nested settings or the identity of the earlier run.
        now: The settings or the identity of the present run.
        ignored: Keys that are not compared, nor what they hold.
    """
    then, now = flatten(before, "."), flatten(now, ".")
    return [
        Change(key, then.get(key), now.get(key))
        for key in dict.fromkeys([*now, *then])
        if not f"{key}.".startswith(tuple(f"{its}." for its in ignored))
        and not _is_same(key, then.get(key), now.get(key))
    ]


def _is_same(key, before, now) -> bool:
    # Noise that was computed from an epsilon may differ by rounding on another machine.
    if key.endswith("noise_multiplier") and before and now:
        return math.isclose(before, now, rel_tol=1e-6)
    return repr(before) == repr(now)  # NaN is not equal to itself


def flatten(nested: Any, separator: str, prefix: str = "") -> dict[str, Any]:
    """Flattens nested mappings, lists and arrays to one level, with names joined by `separator`."""
    if isinstance(nested, Mapping):
        items: Iterable[tuple[Any, Any]] = nested.items()
    elif isinstance(nested, list | tuple) or getattr(nested, "ndim", 0) > 0:
        items = enumerate(nested)
    else:
        return {prefix: nested}
    flat: dict[str, Any] = {}
    for name, value in items:
        flat |= flatten(value, separator, f"{prefix}{separator}{name}" if prefix else str(name))
    return flat
