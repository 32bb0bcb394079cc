"""With what the runs of a comparison were computed: what is the same for all, and what is not."""

from collections.abc import Mapping
from typing import Any

from tff_pfl.experiment import RunFiles
from tff_pfl.reports.cells import ABSENT
from tff_pfl.reports.comparison import Comparison
from tff_pfl.reports.markup import Cell, Table

_DIGITS = 12  # of a commit: enough to find it


def versions_tables(comparison: Comparison) -> list[Table]:
    """What all runs have in common, and below, if anything differs, a table of that, a run a row.

    A run that was resumed with other versions has a row for each part. How many runs say nothing,
    such as those of earlier versions, is a note.

    Raises:
        OutputDirectoryError: If the record of a run is damaged.
    """
    parts, num_unknown = _parts(comparison)
    keys = dict.fromkeys(key for versions in parts.values() for key in versions)
    different = [key for key in keys if len({_text(of, key) for of in parts.values()}) > 1]
    common = [key for key in keys if key not in different]
    first = next(iter(parts.values()), {})
    notes = [f"Runs that do not record theirs: {num_unknown}."] if num_unknown else []
    tables = [
        Table(["of all runs", ""], [[Cell(key), Cell(_text(first, key))] for key in common], notes)
    ]
    if different:
        rows = [
            [Cell(part), *(Cell(_text(versions, key)) for key in different)]
            for part, versions in parts.items()
        ]
        tables.append(Table(["run", *different], rows))
    return tables


def _parts(comparison) -> tuple[dict[str, Mapping[str, Any]], int]:
    """The versions of each part of each run, by its name; how many runs have none."""
    parts, num_unknown = {}, 0
    for label, results in comparison.finished.items():
        for run in results:
            sessions = RunFiles(run.path).sessions()
            num_unknown += not sessions
            for session in sessions:
                name = f"{label}, seed {run.seed}"
                if session.rounds_before:
                    name += f", after round {session.rounds_before}"
                parts[name] = session.versions
    return parts, num_unknown


def _text(versions, key):
    value = versions.get(key)
    if key == "commit" and value is not None:
        return value[:_DIGITS]
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return ABSENT if value is None else str(value)
