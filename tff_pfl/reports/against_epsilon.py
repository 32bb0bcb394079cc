"""Pictures of what was reached with how much privacy."""

import math
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tff_pfl.evaluation import MetricName
from tff_pfl.experiment import OutputDirectoryError, RunFiles
from tff_pfl.reports import figures
from tff_pfl.reports.comparison import Comparison, RunResult
from tff_pfl.reports.cross_table import SEPARATOR
from tff_pfl.reports.words import in_words

_WITHOUT = "without privacy"
# Between the largest epsilon and what has no privacy, or the smallest and 0, and between points of
# one epsilon, as parts of the width of what has an epsilon.
_GAP, _SHIFT = 0.3, 0.015


class PrivatePoint(NamedTuple):
    """A quantity, and what the runs reveal that it is of.

    Attributes:
        epsilon: Of all rounds, the mean over the runs; infinite without privacy.
        mean: Over the runs, of the mean over clients after the last round.
        deviation: The standard deviation over the runs; 0 of one run.
    """

    epsilon: float
    mean: float
    deviation: float


def points_against_epsilon(
    comparison: Comparison, column: str
) -> dict[str, Sequence[PrivatePoint]]:
    """The points of each line, in ascending order of epsilon.

    Args:
        comparison: Of variants with labels "LINE | POINT", or "LINE" of a single point. Epsilon is
            what the runs have spent, whatever the label says.
        column: Of the tables of clients, as "personalized/local_test/accuracy".

    Raises:
        OutputDirectoryError: If there is no finished run, or one has no such column.
    """
    if not comparison.finished:
        raise OutputDirectoryError(f"{comparison.title} has no finished run.")
    lines = {}
    for label, results in comparison.finished.items():
        line, separator, last = label.rpartition(SEPARATOR)
        point = _point_of(results, column)
        lines.setdefault(line if separator else last, []).append(point)
    return {line: sorted(points) for line, points in lines.items()}


@figures.styled
def plot_against_epsilon(comparison: Comparison, column: str, path: str | os.PathLike) -> None:
    """Draws a quantity over epsilon, a line a method, with the deviation over seeds as bars.

    What has no privacy stands by itself, at the right.

    Args:
        comparison: See `points_against_epsilon`.
        column: See `points_against_epsilon`.
        path: The image file; its ending is the format (.png, .pdf, .svg).

    Raises:
        OutputDirectoryError: See `points_against_epsilon`.
    """
    lines = points_against_epsilon(comparison, column)
    places = _places({point.epsilon for points in lines.values() for point in points})
    figure = figures.new_figure()
    axes = figure.subplots()
    handles = {}
    for index, (line, points) in enumerate(lines.items()):
        shift = _SHIFT * (index - (len(lines) - 1) / 2) * _width(places)
        handles[line] = _draw(axes, points, places, shift, figures.series(index))
    axes.set_xticks(list(places.values()), [_words(epsilon) for epsilon in places])
    axes.set_xlabel("epsilon of all rounds; the smaller, the more private")
    axes.set_ylabel(figures.wrapped(in_words(MetricName.parse(column))))
    figures.legend_above(figure, list(handles.values()), list(handles))
    figures.save(figure, path)


def _point_of(results: Sequence[RunResult], column: str) -> PrivatePoint:
    epsilons, means = [], []
    for run in results:
        files = RunFiles(run.path)
        spent = files.metrics().get("privacy/epsilon")
        epsilons.append(math.inf if spent is None else spent[-1])
        means.append(files.clients(run.final.round_num).values(column).mean())
    deviation = np.std(means, ddof=1) if len(means) > 1 else 0.0
    return PrivatePoint(_rounded(np.mean(epsilons)), float(np.mean(means)), float(deviation))


def _rounded(epsilon) -> float:
    """To two digits: noise that is made for an epsilon of 2 has one of 1.999."""
    return float(f"{epsilon:.2g}")


def _places(epsilons: set[float]) -> Mapping[float, float]:
    """Where each epsilon stands: on a logarithmic axis, 0 at the left of it, infinity right."""
    places = {epsilon: math.log2(epsilon) for epsilon in epsilons - {0.0, math.inf}}
    gap = _GAP * _width(places)
    start, end = (extreme(places.values(), default=0.0) for extreme in (min, max))
    places |= {0.0: start - gap, math.inf: end + gap}
    return {epsilon: places[epsilon] for epsilon in sorted(epsilons)}


def _width(places) -> float:
    """Of the axis as far as there is an epsilon that has a logarithm."""
    on_it = [place for epsilon, place in places.items() if 0 < epsilon < math.inf]
    return max(on_it, default=0.0) - min(on_it, default=0.0) or 1.0


def _words(epsilon) -> str:
    return f"{epsilon:g}" if epsilon < math.inf else figures.wrapped(_WITHOUT, len("without"))


def _draw(axes, points, places, shift, style):
    """A line with bars, which ends where there is no privacy: that is a point by itself."""
    private = [point for point in points if point.epsilon < math.inf]
    for part in filter(None, (private, points[len(private) :])):
        handle = axes.errorbar(
            [places[point.epsilon] + shift for point in part],
            [point.mean for point in part],
            yerr=[point.deviation for point in part],
            capsize=3,
            elinewidth=1,
            **style._asdict(),
        )
    return handle
