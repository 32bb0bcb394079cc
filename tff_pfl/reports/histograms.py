"""Pictures of how a quantity is distributed over the clients of runs."""

import itertools
import math
import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from tff_pfl.evaluation import MetricName, direction, over_clients
from tff_pfl.experiment import RunFiles
from tff_pfl.reports import figures
from tff_pfl.reports.runs import Runs
from tff_pfl.reports.words import in_words
from tff_pfl.tables import aligned, decimal

_BINS = 20
_MOST_PER_ROW = 3
_PANEL = (2.9, 2.4)  # inches
_TITLE_CHARACTERS = 34  # that fit on a panel
# Of a distribution, what is marked: name, colour, line style.
_MARKS = {
    "lowest": ("mean of the lowest 5 %", figures.COLORS[1], "--"),
    "mean": ("mean", "black", "-"),
    "top": ("mean of the top 5 %", figures.COLORS[2], "-."),
}


class Distribution(NamedTuple):
    """A quantity of the clients of runs.

    Attributes:
        round_nums: The evaluations that it is of, one of each run.
        values: float64, one of each client that has examples.
        direction: 1 where more is better, or -1.
    """

    round_nums: tuple[int, ...]
    values: np.ndarray
    direction: int = 1

    @property
    def rounds(self) -> str:
        """The evaluations in words: "10", or "5 to 10"."""
        return " to ".join(map(str, sorted({min(self.round_nums), max(self.round_nums)})))

    @property
    def statistics(self) -> dict[str, float]:
        """`mean`, and those of 5 % of the clients: `lowest` and `top`; NaN is the worst value."""
        found = over_clients(self.values, self.direction)
        low, high = (found[f"{end}_5_percent"] for end in ("worst", "best")[:: self.direction])
        return {"lowest": low, "mean": found["mean"], "top": high}

    def share_below(self, threshold: float) -> float:
        """The share of clients with less than `threshold`; NaN is not less."""
        return float(np.mean(self.values < threshold))


def read_distribution(
    run_dir: str | os.PathLike,
    column: str,
    *,
    round_num: int | None = None,
    exclude_clients: Iterable[int] = (),
) -> Distribution:
    """One quantity of a run's clients; those with no examples are left out.

    Args:
        run_dir: The run's output directory.
        column: Of `clients/round_*.csv`, as `personalized/local_test/accuracy`.
        round_num: An evaluated round; by default the last.
        exclude_clients: Ids of clients that are left out, such as attackers.

    Raises:
        OutputDirectoryError: If there are no evaluations, or none of this round, or it has no such
            column.
    """
    files = RunFiles(run_dir)
    if round_num is None:
        round_num = max(files.evaluated_rounds())
    values = files.clients(round_num).values(column, exclude_clients)
    return Distribution((round_num,), values, direction(MetricName.parse(column).quantity))


def pooled_distribution(
    run_dirs: Iterable[str | os.PathLike],
    column: str,
    *,
    round_num: int | None = None,
    exclude_clients: Iterable[int] = (),
) -> Distribution:
    """The clients of several runs together, such as those of several seeds.

    Arguments are as of `read_distribution`.
    """
    exclude_clients = tuple(exclude_clients)
    read = [
        read_distribution(run_dir, column, round_num=round_num, exclude_clients=exclude_clients)
        for run_dir in run_dirs
    ]
    values = np.concatenate([distribution.values for distribution in read])
    round_nums = tuple(itertools.chain(*(distribution.round_nums for distribution in read)))
    return Distribution(round_nums, values, read[0].direction)


@figures.styled
def plot_histograms(
    runs: Runs,
    column: str,
    path: str | os.PathLike,
    *,
    round_num: int | None = None,
    threshold: float | None = None,
    exclude_clients: Iterable[int] = (),
) -> str:
    """Draws a histogram over clients for each name, all with the same bins and axes.

    Args:
        runs: Output directories by the names to show; clients of several runs, such as those of
            several seeds, are in one histogram.
        column: See `read_distribution`.
        path: The image file; its ending is the format (.png, .pdf, .svg).
        round_num: See `read_distribution`.
        threshold: The share of clients below it is told, if given.
        exclude_clients: See `read_distribution`.

    Returns:
        The numbers as a table, a line a name: `table_of_distributions`.

    Raises:
        OutputDirectoryError: See `read_distribution`.
    """
    exclude_clients = tuple(exclude_clients)
    distributions = {
        name: pooled_distribution(
            run_dirs, column, round_num=round_num, exclude_clients=exclude_clients
        )
        for name, run_dirs in runs.items()
    }
    figures.save(figure_of_distributions(distributions, column, threshold), path)
    return table_of_distributions(distributions, threshold)


@figures.styled
def figure_of_distributions(
    distributions: Mapping[str, Distribution], column: str, threshold: float | None = None
):
    """The Matplotlib figure of `plot_histograms`."""
    from matplotlib.ticker import MaxNLocator

    edges = shared_edges([distribution.values for distribution in distributions.values()])
    rows = math.ceil(len(distributions) / _MOST_PER_ROW)
    per_row = math.ceil(len(distributions) / rows)
    size = (max(_PANEL[0] * per_row, figures.WIDTH), _PANEL[1] * rows + 0.9)
    figure = figures.new_figure(*size)
    panels = figure.subplots(rows, per_row, sharex=True, sharey=True, squeeze=False).flat
    for index, (axes, name) in enumerate(zip(panels, distributions, strict=False)):
        _draw(axes, name, distributions[name], edges, threshold)
        # The last of its column keeps the numbers of the axis, where there is no panel below.
        axes.tick_params(labelbottom=index + per_row >= len(distributions))
    for axes in panels[len(distributions) :]:
        axes.remove()
    margin = 0.02 * (edges[-1] - edges[0])  # marks at an end are seen
    panels[0].set_xlim(edges[0] - margin, edges[-1] + margin)
    panels[0].yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    figure.supxlabel(figures.wrapped(in_words(MetricName.parse(column)), 64), fontsize="medium")
    figure.supylabel("clients", fontsize="medium")
    figures.legend_above(figure, *panels[0].get_legend_handles_labels())
    return figure


def table_of_distributions(
    distributions: Mapping[str, Distribution], threshold: float | None = None
) -> str:
    """Mean, tails and, with a threshold, the share of clients below it; a line for each name."""
    rows = [["", "round", "clients", "mean", "lowest 5 %", "top 5 %"]]
    for name, distribution in distributions.items():
        statistics = distribution.statistics
        rows.append([name, distribution.rounds, str(len(distribution.values))])
        rows[-1] += [decimal(statistics[key]) for key in ("mean", "lowest", "top")]
    if threshold is not None:
        rows[0].append(f"below {threshold:g}")
        for row, distribution in zip(rows[1:], distributions.values(), strict=True):
            row.append(f"{100 * distribution.share_below(threshold):.1f} %")
    return "\n".join(aligned(rows))


def shared_edges(values: Iterable[np.ndarray]) -> np.ndarray:
    """The edges of at most 20 equal bins at round numbers, which hold all that is finite."""
    from matplotlib.ticker import MaxNLocator

    values = np.concatenate(list(values))
    values = values[np.isfinite(values)]
    low, high = (values.min(), values.max()) if len(values) else (0.0, 1.0)
    if low == high:
        low, high = low - 0.5, high + 0.5
    edges = MaxNLocator(nbins=_BINS, steps=(1, 2, 2.5, 5, 10)).tick_values(low, high)
    # A multiple such as 12 * 0.05 is not the number 0.6 that a client may have.
    edges = np.array([float(f"{edge:.12g}") for edge in edges])
    edges[[0, -1]] = min(edges[0], low), max(edges[-1], high)
    return edges


def _draw(axes, name, distribution, edges, threshold):
    """A panel."""
    values = distribution.values
    finite = values[np.isfinite(values)]
    if threshold is not None:
        least = min(edges[0] - 1.0, threshold)  # out of sight
        axes.axvspan(
            least, threshold, color="0.88", zorder=0, label=f"below {threshold:g}", linewidth=0
        )
    axes.hist(finite, edges, color=figures.COLORS[0], alpha=0.6, edgecolor="white", linewidth=0.5)
    statistics = distribution.statistics
    for key, (label, color, style) in _MARKS.items():
        axes.axvline(statistics[key], color=color, linestyle=style, linewidth=1.5, label=label)
    rounds, num_runs = distribution.rounds, len(distribution.round_nums)
    when = f"round {rounds}" if rounds.isdecimal() else f"rounds {rounds}"
    title = figures.wrapped(f"{name}, {when}", _TITLE_CHARACTERS)
    title += f"\n{len(values)} clients"
    if num_runs > 1:
        title += f" of {num_runs} runs"
    if threshold is not None:
        title += f",\n{100 * distribution.share_below(threshold):.1f} % below {threshold:g}"
    if len(finite) < len(values):
        title += f", {len(values) - len(finite)} not finite"
    axes.set_title(title, fontsize="small")
