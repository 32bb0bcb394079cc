"""The result of a run as JSON for programs and as a table for people."""

import json
import os
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from tff_pfl.evaluation import STATISTICS, MetricName, from_text, to_text
from tff_pfl.experiment.results import NUM_CLIENTS_NEVER_SELECTED, Evaluation, Result
from tff_pfl.experiment.run_directory import OutputDirectoryError, RunDirectory, read_json, reading
from tff_pfl.tables import aligned, decimal

_SELECTED_ON = "the data that it reports"


class Summary(NamedTuple):
    """What `summary.json` says.

    Attributes:
        title: The algorithm and the data set.
        final: The last evaluation.
        best: See `Result`.
        seconds: See `Result`.
        stopped: See `Result`.
    """

    title: str
    final: Evaluation
    best: Evaluation
    seconds: float
    stopped: str | None = None

    def has_done(self, rounds: int) -> bool:
        """Whether nothing is left to do of so many rounds."""
        return self.stopped is not None or self.final.round_num >= rounds


def write_summary(directory: RunDirectory, result: Result, title: str) -> Summary:
    """Writes and returns `summary.json`: the final and the best evaluation of a run."""
    summary = Summary(title, result.final, result.best, round(result.seconds, 3), result.stopped)
    content = {
        "title": title,
        "final": _to_json(summary.final),
        "best": _to_json(summary.best),
        "best_was_selected_on": _SELECTED_ON,
        "seconds": summary.seconds,
    }
    if summary.stopped is not None:
        content["stopped"] = summary.stopped
    content["checksum"] = _checksum(content)
    directory.write_json("summary.json", content)
    return summary


def read_summary(run_dir: str | os.PathLike) -> Summary | None:
    """The summary of a finished run, or `None`.

    Raises:
        OutputDirectoryError: If it is damaged.
    """
    path = os.path.join(run_dir, "summary.json")
    if not os.path.exists(path):
        return None
    try:
        content = read_json(path)
        with reading(path):
            # Those of older versions have none.
            if content.get("checksum", _checksum(content)) != _checksum(content):
                raise ValueError("wrong checksum")
            evaluations = [_from_json(content[what]) for what in ("final", "best")]
            summary = Summary(
                content["title"], *evaluations, content["seconds"], content.get("stopped")
            )
            table(summary)
    except OutputDirectoryError as error:
        raise OutputDirectoryError(
            f"{error} Move it away: --resume then writes it anew, from the checkpoint."
        ) from error
    return summary


def finished_summary(run_dir: str | os.PathLike, rounds: int | None = None) -> Summary | None:
    """The summary of a run that is finished, and has so many rounds; a damaged one is not.

    A run that has stopped early is finished, however many rounds are asked for.
    """
    try:
        summary = read_summary(run_dir)
    except OutputDirectoryError:
        return None
    if summary is None or (rounds is not None and not summary.has_done(rounds)):
        return None
    return summary


def _to_json(evaluated: Evaluation) -> dict[str, Any]:
    return {"round_num": evaluated.round_num, "metrics": to_text(evaluated.metrics)}


def _from_json(value: Mapping[str, Any]) -> Evaluation:
    return Evaluation(value["round_num"], from_text(value["metrics"]))


def _checksum(content: Mapping[str, Any]) -> str:
    """Of all but the checksum."""
    content = {key: value for key, value in content.items() if key != "checksum"}
    return f"{zlib.crc32(json.dumps(content).encode()):08x}"


def table(summary: Summary) -> str:
    """The accuracies of the final and the best round, models in rows, statistics in columns."""
    lines = [f"{summary.title}, {summary.seconds:.1f} s of training and evaluation"]
    for what, evaluated in (("final", summary.final), ("best", summary.best)):
        note = f", selected on {_SELECTED_ON}" if what == "best" else ""
        lines += ["", f"{what}: round {evaluated.round_num}{note}", *rows(evaluated.metrics)]
    if summary.stopped is not None:
        lines += ["", f"stopped early: {summary.stopped}"]
    absent = summary.final.metrics.get(NUM_CLIENTS_NEVER_SELECTED)
    if absent:
        lines += ["", f"clients that never took part, and are evaluated all the same: {absent}"]
    return "\n".join(lines)


def rows(metrics: Mapping[MetricName, float]) -> list[str]:
    """Lines of a table of accuracies and other means, and of models that have diverged."""
    cells = [["", *(statistic.replace("_5_percent", " 5 %") for statistic in STATISTICS), "loss"]]
    for name in metrics:
        if name.statistic == "std":  # of what has all statistics, one
            values = [metrics[name._replace(statistic=statistic)] for statistic in STATISTICS]
            loss = metrics[name._replace(quantity="loss", statistic="mean")]
            cells.append([str(name._replace(statistic="")), *map(decimal, [*values, loss])])
    lines = aligned(cells)
    for name, value in metrics.items():
        if name.quantity == "num_nonfinite" and value:
            lines.append(
                f"  {name.model}/{name.pool}: models that have diverged, of a loss not finite: "
                f"{value}"
            )
    return lines
