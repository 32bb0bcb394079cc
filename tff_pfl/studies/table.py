"""The results of a study: a row a run as CSV, a row a variant as Markdown."""

import csv
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tff_pfl.experiment.run_files import RunFiles
from tff_pfl.studies.runner import finished_summary
from tff_pfl.studies.study import Study
from tff_pfl.studies.tuning import Scores

# The first rounds are slower: graphs are made in them.
_WARM_UP = 2


class Row(NamedTuple):
    """What a run gave.

    Attributes:
        label: Of its variant.
        seed: Of the run.
        personalized: Mean over clients of the accuracy of their models after the last round.
        global_: Of the global model; NaN where there is none.
        bytes_down: That a client receives in a round.
        bytes_up: That a client sends in a round.
        round_seconds: Median of the rounds but for the first ones.
    """

    label: str
    seed: int
    personalized: float
    global_: float
    bytes_down: float
    bytes_up: float
    round_seconds: float


def read_rows(study: Study, output_dir: str | os.PathLike) -> list[Row]:
    """The results of the runs that are finished."""
    rows = []
    for run in study.runs():
        folder = pathlib.Path(output_dir) / run.folder
        summary = finished_summary(folder)
        if summary is None:
            continue
        files = RunFiles(folder)
        metrics, seconds = files.metrics(), files.timings()["round_seconds"]
        accuracies = [summary.final.mean("accuracy", of) for of in ("personalized", "global")]
        rows.append(
            Row(
                run.label,
                run.seed,
                *(np.nan if accuracy is None else accuracy for accuracy in accuracies),
                metrics["bytes_down_per_client"][-1],
                metrics["bytes_up_per_client"][-1],
                float(np.median(seconds[_WARM_UP:] if len(seconds) > _WARM_UP else seconds)),
            )
        )
    return rows


def write_csv(path: str | os.PathLike, rows: Iterable[Row]) -> None:
    """Writes the rows, one a run."""
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([field.rstrip("_") for field in Row._fields])
        writer.writerows(rows)


def write_scores(path: str | os.PathLike, scores: Scores) -> None:
    """Writes what was tried, one trial and stage a row."""
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["label", "trial", "rounds", "score", "chosen"])
        writer.writerows(scores.rows())


def markdown(study: Study, rows: Sequence[Row], chosen: Mapping[str, str] | None = None) -> str:
    """A table with a row a variant: means, and standard deviations over seeds.

    Args:
        study: The study.
        rows: Those of its runs.
        chosen: What tuning has chosen, by labels.
    """
    chosen = chosen or {}
    baseline = study.baseline or next(iter(study.variants))
    unit = _median(rows, baseline)
    heads = ["method", *["chosen"] * bool(chosen), "personalized, %", "global, %"]
    heads += ["kB down", "kB up", "seconds a round, relative"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for label in study.variants:
        own = [row for row in rows if row.label == label]
        if not own:
            continue
        cells = [
            label,
            *([chosen.get(label, "")] if chosen else []),
            _accuracy([row.personalized for row in own]),
            _accuracy([row.global_ for row in own]),
            f"{own[0].bytes_down / 1000:.1f}",
            f"{own[0].bytes_up / 1000:.1f}",
            f"{_median(rows, label) / unit:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _median(rows, label):
    seconds = [row.round_seconds for row in rows if row.label == label]
    return float(np.median(seconds)) if seconds else np.nan


def _accuracy(values):
    values = 100 * np.array(values)
    if np.isnan(values).all():
        return "-"
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{values.mean():.2f} ± {values.std(ddof=1):.2f}"
