"""A picture of what the last rounds of a run did when, from its `timings.csv`."""

import os
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tff_pfl.experiment import OutputDirectoryError, RunFiles
from tff_pfl.reports import figures

# What a round does, and what is done while it is computed; from the top of the picture to its end.
_LANES = {
    "select": "select the cohort",
    "compute": "compute it",
    "write": "write the last round",
    "update": "take its new states",
    "evaluation": "evaluate",
}
_CHARACTER = 0.014  # of a label, of the width of the picture


class Span(NamedTuple):
    """Something that a round does.

    Attributes:
        lane: Of "select", "compute", "write", "update" and "evaluation".
        start: In seconds from the start of the round.
        seconds: That it takes.
    """

    lane: str
    start: float
    seconds: float


def spans_of_round(seconds: Mapping[str, float]) -> list[Span]:
    """When a round did what.

    Args:
        seconds: A row of `timings.csv`, with NaN where nothing is.
    """
    lengths = {lane: float(seconds.get(f"{lane}_seconds", np.nan)) for lane in _LANES}
    compute = lengths["select"]
    starts = {
        "select": 0.0,
        "compute": compute,
        "write": compute,
        "update": seconds["round_seconds"] - lengths["update"],
        "evaluation": seconds["round_seconds"],
    }
    return [Span(lane, starts[lane], n) for lane, n in lengths.items() if np.isfinite(n)]


@figures.styled
def plot_timeline(
    run_dir: str | os.PathLike, output: str | os.PathLike, *, num_rounds: int = 3
) -> None:
    """Draws the last rounds of a run, a lane for each thing that a round does.

    Args:
        run_dir: The run's output directory.
        output: The picture, .png, .pdf or .svg.
        num_rounds: How many rounds are shown, of which a run may have fewer.

    Raises:
        OutputDirectoryError: If the run has done no round, or does not say what its rounds did.
    """
    rows = _rows(RunFiles(run_dir))[-num_rounds:]
    figure = figures.new_figure(width=8.0, height=3.1)
    axes = figure.subplots()
    ends = []
    for row in rows:
        start = ends[-1] if ends else 0.0
        for span in spans_of_round(row):
            color = figures.COLORS[1 if span.lane == "write" else 0]
            left, width = 1000 * (start + span.start), 1000 * span.seconds
            # The edge shows what takes too little to be seen otherwise.
            axes.barh(_LANES[span.lane], width, left=left, color=color, edgecolor=color)
        ends.append(start + row["round_seconds"] + np.nan_to_num(row["evaluation_seconds"]))
    numbers = [row["round"] for row in rows]
    for label, middle in _labels(numbers, ends):
        axes.text(1000 * middle, -0.75, label, ha="center", va="bottom")
    for end in ends[:-1]:
        axes.axvline(1000 * end, color="black", linestyle=":", linewidth=1.2)
    axes.set_yticks(range(len(_LANES)), _LANES.values())
    axes.set(xlabel="milliseconds", xlim=(0, 1000 * ends[-1]), ylim=(len(_LANES) - 0.5, -0.6))
    axes.grid(axis="y", visible=False)
    handles = [axes.barh(0, 0, color=figures.COLORS[index]) for index in (0, 1)]
    labels = ["one after the other", "meanwhile, in another thread"]
    figures.legend_above(figure, handles, labels)
    figures.save(figure, output)


def _labels(numbers, ends) -> list[tuple[str, float]]:
    """Of rounds that end then, where there is room: what is written, and above which second."""
    labels, free = [], 0.0
    for number, start, end in zip(numbers, [0.0, *ends], ends, strict=False):
        label = f"{number:.0f}" if labels else f"round {number:.0f}"
        middle, half = (start + end) / 2, _CHARACTER * ends[-1] * len(label) / 2
        if middle - half >= free or not labels:
            labels.append((label, middle))
            free = middle + half
    return labels


def _rows(files: RunFiles) -> list[dict[str, float]]:
    """The rows of `timings.csv` that say what rounds did, which older ones do not."""
    timings = files.timings()
    parts = timings.get("compute_seconds", np.full_like(timings["round"], np.nan))
    timings.setdefault("evaluation_seconds", np.full_like(timings["round"], np.nan))
    rows = [{name: column[i] for name, column in timings.items()} for i in range(len(parts))]
    rows = [row for row, seconds in zip(rows, parts, strict=True) if np.isfinite(seconds)]
    if not rows:
        raise OutputDirectoryError(
            f"{files.path / 'timings.csv'} does not say what rounds did: it has no numbers in a "
            "column compute_seconds. An earlier version of this library has written it; a round "
            "that is done with this one adds them."
        )
    return rows
