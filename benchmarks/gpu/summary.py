"""Makes the tables of a check, from which the library's choices on GPUs can be read off."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from benchmarks.gpu.report import Report

# Choices, and the contenders whose ratio decides: the first one is the choice's "yes".
_CHOICES = {
    "compile by XLA": (("stacked+xla", "stacked"),),
    "convolve by patches": (("stacked+patches+xla", "stacked+xla"),),
    "stack clients, do not loop": (
        ("stacked", "loop"),
        ("stacked+xla", "loop"),
    ),
    "stack at most 25": (("stacked_of_25+xla", "stacked+xla"),),
}


def of_part(report: Report) -> str:
    """Returns the results of a part as text."""
    if report.part == "rounds":
        rounds = milliseconds(report.records)
        title = "the time with a choice over the time without it:"
        text = f"milliseconds a round:\n{_text(rounds)}\n{title}\n{_text(choices(rounds))}"
    elif report.part.startswith("resnet18"):
        text = f"milliseconds a round:\n{_text(milliseconds(report.records))}"
    else:
        text = _text(pd.DataFrame(report.records).T)
    errors = [f"{task}: {of['error']}" for task, of in report.records.items() if "error" in of]
    return "\n".join([text, *errors])


def _text(table: pd.DataFrame) -> str:
    table = table.drop(columns={"error", "accuracies", "data"} & set(table))
    return table.map(_cell).to_string()


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.3g}"
    return f"{len(value)}, see the file" if isinstance(value, list) else str(value)[:60]


def milliseconds(records: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Returns the median round of each contender, a row, in each cell, a column.

    Args:
        records: The figures of tasks, which are named `CELL: FRAMEWORK METHOD`.
    """
    table: dict[str, dict[str, float]] = {}
    for task, figures in records.items():
        cell, _, contender = task.partition(": ")
        if "seconds" in figures and "error" not in figures:
            name = contender.removeprefix("tensorflow ")
            table.setdefault(cell, {})[name] = 1000 * figures["seconds"]
    return pd.DataFrame(table)


def choices(rounds: pd.DataFrame) -> pd.DataFrame:
    """Returns the ratios that decide choices, a column for each cell; below 1, "yes" is faster.

    Args:
        rounds: See `milliseconds`.
    """
    rows = {}
    for choice, pairs in _CHOICES.items():
        for first, second in pairs:
            if {first, second} <= set(rounds.index):
                ratios = rounds.loc[first] / rounds.loc[second]
                if ratios.notna().any():
                    rows[f"{choice}: {first} / {second}"] = ratios
    others = rounds[rounds.index.str.startswith(("jax", "torch"))] if len(rounds) else rounds
    if len(others) and "stacked+xla" in rounds.index:
        rows["stacked+xla / the best of JAX and PyTorch"] = rounds.loc["stacked+xla"] / others.min()
    return pd.DataFrame(rows).T
