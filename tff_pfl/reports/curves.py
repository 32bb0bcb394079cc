"""Pictures of how runs went, drawn from their tables of clients."""

import functools
import itertools
import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from tff_pfl.evaluation import MetricName
from tff_pfl.experiment import OutputDirectoryError, RunFiles
from tff_pfl.names import unknown_name
from tff_pfl.reports import figures
from tff_pfl.reports.runs import Runs
from tff_pfl.reports.words import in_words

_MARKS = 12  # of a line, about


class Curve(NamedTuple):
    """A quantity over the rounds.

    Attributes:
        rounds: int `[evaluations]`: those that all of its runs were evaluated at.
        means: float64 `[evaluations]`: over the runs, of the mean over clients.
        deviations: float64 `[evaluations]`: the standard deviation over the runs; 0 of one run.
    """

    rounds: np.ndarray
    means: np.ndarray
    deviations: np.ndarray


def read_curve(
    run_dir: str | os.PathLike, column: str, exclude_clients: Iterable[int] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """`(rounds, means)`: the mean over clients of a quantity, at each evaluation of a run.

    Of evaluations whose table of clients is not there any more, it is that of `metrics.csv`, which
    says it of all clients alone.

    Args:
        run_dir: The run's output directory.
        column: Of `clients/round_*.csv`, as `global/local_test/loss`.
        exclude_clients: Ids of clients that are left out, such as attackers.

    Raises:
        OutputDirectoryError: If there are no evaluations, or they have no such column.
    """
    files, exclude_clients = RunFiles(run_dir), tuple(exclude_clients)
    means = {} if exclude_clients else _means_of_metrics(files, column)
    columns = {}
    try:
        rounds = files.evaluated_rounds()
    except OutputDirectoryError:
        if not means:
            raise
        rounds = []
    for round_num in rounds:
        clients = files.clients(round_num)
        columns |= clients.columns
        if column in clients.columns:  # not all evaluations have all
            means[round_num] = clients.values(column, exclude_clients).mean()
    if not means:
        raise OutputDirectoryError(unknown_name(f"column of {run_dir}", column, columns))
    means = dict(sorted(means.items()))
    return np.array(list(means)), np.array(list(means.values()))


def _means_of_metrics(files, column):
    """By rounds; none of a run without `metrics.csv`."""
    if not (files.path / "metrics.csv").exists():
        return {}
    metrics = files.metrics()
    means = metrics.get(f"{column}_mean", np.full_like(metrics["round"], np.nan))
    known = np.isfinite(means)
    return dict(zip(metrics["round"][known].astype(int).tolist(), means[known], strict=True))


def curve_over_seeds(
    run_dirs: Sequence[str | os.PathLike], column: str, exclude_clients: Iterable[int] = ()
) -> Curve:
    """Mean and deviation over runs that differ in their seeds; arguments as of `read_curve`.

    Raises:
        OutputDirectoryError: As `read_curve`; or no round was evaluated in all runs.
    """
    exclude_clients = tuple(exclude_clients)
    read = [read_curve(run_dir, column, exclude_clients) for run_dir in run_dirs]
    rounds = functools.reduce(np.intersect1d, [rounds for rounds, _ in read])
    if not len(rounds):
        raise OutputDirectoryError(
            f"No round was evaluated in all of {', '.join(map(str, run_dirs))}."
        )
    means = np.array([means[np.isin(own_rounds, rounds)] for own_rounds, means in read])
    with np.errstate(invalid="ignore"):  # what has diverged is a gap
        deviations = means.std(axis=0, ddof=1) if len(means) > 1 else np.zeros(len(rounds))
        return Curve(rounds, means.mean(axis=0), deviations)


@figures.styled
def plot_curves(
    runs: Runs,
    column: str,
    path: str | os.PathLike,
    *,
    exclude_clients: Iterable[int] = (),
    log_scale: bool = False,
    top: float | None = None,
) -> None:
    """Draws a quantity over the rounds, a line a name; what is not finite leaves a gap.

    Args:
        runs: Output directories by the names to show. Those of one name are those of several seeds:
            the line is their mean, the band their standard deviation.
        column: See `read_curve`.
        path: The image file; its ending is the format (.png, .pdf, .svg).
        exclude_clients: See `read_curve`.
        log_scale: Whether the quantity is drawn on a logarithmic scale.
        top: Where the vertical axis ends; by default at the largest value.

    Raises:
        OutputDirectoryError: See `curve_over_seeds`.
    """
    figure = figure_of_curves(
        runs, column, exclude_clients=exclude_clients, log_scale=log_scale, top=top
    )
    figures.save(figure, path)


@figures.styled
def figure_of_curves(
    runs: Runs,
    column: str,
    *,
    exclude_clients: Iterable[int] = (),
    log_scale: bool = False,
    top: float | None = None,
):
    """The Matplotlib figure of `plot_curves`."""
    from matplotlib.ticker import MaxNLocator

    exclude_clients = tuple(exclude_clients)
    figure = figures.new_figure()
    axes = figure.subplots()
    for index, (name, run_dirs) in enumerate(runs.items()):
        curve = curve_over_seeds(run_dirs, column, exclude_clients)
        _draw(axes, name, curve, figures.series(index), shift=index / len(runs))
    axes.set(xlabel="round", ylabel=figures.wrapped(in_words(MetricName.parse(column))))
    run_dirs = list(itertools.chain(*runs.values()))
    axes.set_title(_title(run_dirs, exclude_clients, max(map(len, runs.values()))))
    if log_scale:
        figures.set_log_scale(axes, "y")
    if top is not None:
        axes.set_ylim(top=top)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    lines = axes.get_lines()
    figures.legend_above(figure, lines, [line.get_label() for line in lines])
    return figure


def _title(run_dirs, exclude_clients, num_seeds):
    of_samples = [RunFiles(run_dir).evaluates_sample() for run_dir in run_dirs]
    title = "mean over all clients"
    if any(of_samples):
        title = "mean over a sample of the clients" + ("" if all(of_samples) else ", or all")
    if exclude_clients:
        title += f" but {', '.join(map(str, exclude_clients))}"
    if num_seeds > 1:
        title += f"; bands: deviation over {num_seeds} seeds"
    return figures.wrapped(title, 64)


def _draw(axes, name, curve, style, shift):
    label = name if np.isfinite(curve.means).any() else f"{name} (never finite)"
    marks = _marks(np.isfinite(curve.means), shift)
    axes.plot(curve.rounds, curve.means, label=label, markevery=marks, **style._asdict())
    if np.any(curve.deviations > 0):
        axes.fill_between(
            curve.rounds,
            curve.means - curve.deviations,
            curve.means + curve.deviations,
            color=style.color,
            alpha=figures.BAND_OPACITY,
            linewidth=0,
        )


def _marks(is_drawn, shift):
    """Which points of a line have a marker: some, and those beside no other, without a line."""
    step = max(1, len(is_drawn) // _MARKS)
    is_marked = np.arange(len(is_drawn)) % step == int(shift * step)
    beside = np.pad(is_drawn, 1)
    is_marked |= is_drawn & ~beside[:-2] & ~beside[2:]
    return np.flatnonzero(is_marked).tolist()
