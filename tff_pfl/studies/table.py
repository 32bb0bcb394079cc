"""The results of a study as CSV: a row a run, and what was tried."""

import csv
import os

import numpy as np

from tff_pfl.files import whole_file
from tff_pfl.reports import Comparison
from tff_pfl.studies.tuning import Scores
from tff_pfl.tables import cells_of_csv

_HEADS = (
    *("label", "seed", "personalized", "global"),
    *("bytes_down", "bytes_up", "round_seconds"),
)


def write_csv(path: str | os.PathLike, comparison: Comparison) -> None:
    """Writes what the finished runs gave, one a row.

    `personalized` and `global` are means over clients of the accuracy after the last round, NaN
    where there is none; the rest is as of `RunResult`.
    """
    with whole_file(path, newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_HEADS)
        for label, results in comparison.results.items():
            for run in results:
                accuracies = [run.final.mean("accuracy", of) for of in ("personalized", "global")]
                row = [
                    *(label, run.seed),
                    *(np.nan if accuracy is None else accuracy for accuracy in accuracies),
                    *(run.bytes_down, run.bytes_up, run.round_seconds),
                ]
                writer.writerow(cells_of_csv(row))


def write_scores(path: str | os.PathLike, scores: Scores) -> None:
    """Writes what was tried, one trial and stage a row."""
    with whole_file(path, newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["label", "trial", "rounds", "score", "chosen"])
        writer.writerows(map(cells_of_csv, scores.rows()))
