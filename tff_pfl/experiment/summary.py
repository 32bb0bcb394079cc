"""The result of a run as JSON for programs and as a table for people."""

import json
import zlib
from collections.abc import Mapping
from typing import Any

from tff_pfl.experiment.loop import Result
from tff_pfl.experiment.run_directory import OutputDirectoryError, RunDirectory, read_json, reading
from tff_pfl.tables import aligned, decimal

_COLUMNS = ("mean", "std", "worst_5_percent", "best_5_percent")


def write_summary(directory: RunDirectory, result: Result, title: str) -> dict[str, Any]:
    """Writes and returns `summary.json`: the final and the best evaluation of a run."""
    summary = {
        "title": title,
        "final": result.final._asdict(),
        "best": result.best._asdict(),
        "best_was_selected_on": "the data that it reports",
        "seconds": round(result.seconds, 3),
    }
    summary["checksum"] = _checksum(summary)
    directory.write_json("summary.json", summary)
    return summary


def read_summary(directory: RunDirectory) -> dict[str, Any] | None:
    """The summary of a finished run, or `None`.

    Raises:
        OutputDirectoryError: If it is damaged.
    """
    if not directory.has("summary.json"):
        return None
    path = directory.file("summary.json")
    try:
        summary = read_json(path)
        with reading(path):
            # Those of older versions have none.
            if summary.get("checksum", _checksum(summary)) != _checksum(summary):
                raise ValueError("wrong checksum")
            table(summary)
    except OutputDirectoryError as error:
        raise OutputDirectoryError(
            f"{error} Move it away: --resume then writes it anew, from the checkpoint."
        ) from error
    return summary


def _checksum(summary: Mapping[str, Any]) -> str:
    """Of all but the checksum."""
    content = {key: value for key, value in summary.items() if key != "checksum"}
    return f"{zlib.crc32(json.dumps(content).encode()):08x}"


def table(summary: Mapping[str, Any]) -> str:
    """The accuracies of the final and the best round, models in rows, statistics in columns."""
    lines = [f"{summary['title']}, {summary['seconds']:.1f} s of training and evaluation"]
    for what in ("final", "best"):
        evaluated = summary[what]
        note = f", selected on {summary['best_was_selected_on']}" if what == "best" else ""
        lines += ["", f"{what}: round {evaluated['round_num']}{note}", *rows(evaluated["metrics"])]
    absent = summary["final"]["metrics"].get("num_clients_never_selected")
    if absent:
        lines += ["", f"clients that never took part, and are evaluated all the same: {absent}"]
    return "\n".join(lines)


def rows(metrics: Mapping[str, float]) -> list[str]:
    """Lines of a table of accuracies and other means, and of models that have diverged."""
    names = [name.removesuffix("_std") for name in metrics if name.endswith("_std")]
    cells = [["", *(column.replace("_5_percent", " 5 %") for column in _COLUMNS), "loss"]]
    for name in names:
        values = [metrics[f"{name}_{column}"] for column in _COLUMNS]
        loss = metrics[f"{name.rpartition('/')[0]}/loss_mean"]
        cells.append([name, *map(decimal, [*values, loss])])
    lines = aligned(cells)
    for name, value in metrics.items():
        if name.endswith("/num_nonfinite") and value:
            pool = name.removesuffix("/num_nonfinite")
            lines.append(f"  {pool}: models that have diverged, of a loss not finite: {value}")
    return lines
