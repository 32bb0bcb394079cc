"""Figures of a quantity against rounds, bytes and epsilon."""

import math

import numpy as np
import pandas as pd

from tff_pfl.analysis import figures
from tff_pfl.analysis.frames import column_of, means, over_runs, select
from tff_pfl.analysis.metric_text import in_words
from tff_pfl.analysis.runs import SEPARATOR, Runs
from tff_pfl.evaluation import MetricName
from tff_pfl.experiment.run_directory import OutputDirectoryError

_MARKS = 12  # markers on a line, about
_TICKS = 12  # numbers on an axis, at most
_PANEL_WIDTH = 4.2  # inches, for each of several panels
_WITHOUT = "without\nprivacy"
_SHIFT = 0.03  # between points of one epsilon; neighbouring epsilons are 1 apart


def over_seeds(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns mean and deviation over the seeds of each label, at the rounds that all seeds have.

    Args:
        frame: One quantity of the metrics of `Runs`, or of their clients at all rounds; see
            `select`. Values of clients are averaged over the clients first.

    Returns:
        Columns `label`, `round`, `mean`, `deviation` (0 for a single run). Values are NaN where a
        run has diverged.

    Raises:
        OutputDirectoryError: No round was evaluated in all runs of a label.
    """
    values = means(frame, ["label", "round", "run"]).reset_index()
    found, number = over_runs(values, ["label", "round"]), frame.groupby("label")["run"].nunique()
    found["deviation"] = found["deviation"].where(found["runs"] > 1, 0.0)
    found = found[found["runs"].eq(number, level="label")].reset_index()
    if absent := set(frame["label"]) - set(found["label"]):
        runs = ", ".join(frame["run"][frame["label"] == min(absent)].unique())
        raise OutputDirectoryError(f"No round was evaluated in all of {runs}.")
    found["order"] = pd.factorize(found["label"])[0]
    found = found.sort_values(["order", "round"], ignore_index=True)
    return found[["label", "round", "mean", "deviation"]]


@figures.styled
def plot_curves(
    frame: pd.DataFrame,
    column: str | None = None,
    *,
    exclude_clients=(),
    log_scale: bool = False,
):
    """Draws the mean over clients of a quantity against the round, with a line for each label.

    Runs of one label differ in their seeds. The line is their mean, and the band is their standard
    deviation. Values that are not finite leave a gap.

    Args:
        frame: The metrics of `Runs`, or their clients at all rounds.
        column: "MODEL/POOL/QUANTITY", such as "global/local_test/loss", by default the
            `main_metric`.
        exclude_clients: Ids of clients to leave out, such as attackers. Needs a frame of clients.
        log_scale: Whether to draw the quantity on a logarithmic scale.

    Returns:
        The Matplotlib figure.

    Raises:
        UnknownNameError: The frame does not have the quantity.
        OutputDirectoryError: See `over_seeds`.
    """
    from matplotlib.ticker import MaxNLocator

    exclude_clients = list(exclude_clients)
    selected = select(frame, column, exclude_clients)
    curves = over_seeds(selected)
    figure = figures.new_figure()
    axes = figure.subplots()
    labels = list(curves["label"].unique())
    for index, label in enumerate(labels):
        curve = curves[curves["label"] == label]
        shown = label if np.isfinite(curve["mean"]).any() else f"{label} (never finite)"
        step = max(1, len(curve) // _MARKS)
        style = figures.series(index) | {"label": shown, "markevery": (index % step, step)}
        figures.draw_band(axes, curve["round"], curve["mean"], curve["deviation"], style)
    title = "mean over clients"
    if exclude_clients:
        title += f" except {', '.join(map(str, exclude_clients))}"
    num_seeds = selected.groupby("label")["run"].nunique().max()
    if num_seeds > 1:
        title += f"; bands: standard deviation over {num_seeds} seeds"
    axes.set(xlabel="round", ylabel=_axis_label(frame, column), title=figures.wrapped(title, 64))
    if log_scale:
        figures.set_log_scale(axes, "y")
    rounds = sorted(curves["round"].unique())
    if len(rounds) > _TICKS:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=(1, 2, 5, 10)))
    else:
        axes.set_xticks(_apart(rounds))
    lines = axes.get_lines()
    figures.legend_above(figure, lines, [line.get_label() for line in lines])
    return figure


def curves_against_bytes(runs: Runs, column: str | None = None) -> pd.DataFrame:
    """Returns `over_seeds` of finished runs with a further column `megabytes`.

    The column has the megabytes sent so far by a client that takes part in every round, as a mean
    over the runs of a label.
    """
    runs = runs.finished
    sent = runs.summaries.groupby("label")["bytes_up"].mean()
    curves = over_seeds(select(runs.metrics, column))
    return curves.assign(megabytes=curves["round"] * curves["label"].map(sent) / 1e6)


@figures.styled
def plot_against_bytes(runs: Runs, column: str | None = None):
    """Draws a quantity against the megabytes that a client has sent, with a line for each label.

    The axis is logarithmic. A method that sends nothing, such as local training, has a horizontal
    line at its last value.

    Args:
        runs: Runs, of which the finished ones are drawn. Labels "PANEL | LINE" draw a panel for
            each PANEL; a LINE has the same style in all panels.
        column: "MODEL/POOL/QUANTITY", by default the `main_metric`.

    Returns:
        The Matplotlib figure.
    """
    curves = curves_against_bytes(runs, column)
    curves["panel"], curves["line"] = _parts(curves["label"])
    lines = {line: figures.series(i) for i, line in enumerate(curves["line"].unique())}
    groups = list(curves.groupby("panel", sort=False))
    width = _PANEL_WIDTH if len(groups) > 1 else figures.WIDTH
    figure, every_axes = figures.panels(len(groups), len(groups), width, 3.8)
    handles = {}
    for axes, (panel, of_panel) in zip(every_axes, groups, strict=True):
        for line, curve in of_panel.groupby("line", sort=False):
            handles[line] = _draw_over_bytes(axes, curve, lines[line])
        figures.set_log_scale(axes, "x")
        axes.set(xlabel="MB sent by a client that is in every round", title=panel)
    every_axes[0].set_ylabel(_axis_label(runs.finished.metrics, column))
    figures.legend_above(figure, list(handles.values()), list(handles))
    return figure


def points_against_epsilon(runs: Runs, column: str | None = None) -> pd.DataFrame:
    """Returns a quantity after the last round, and the epsilon, of finished runs.

    Args:
        runs: Runs, of which the finished ones are shown. Labels are "LINE | POINT", or "LINE" for a
            line with one point. The epsilon is the one that the runs have spent, regardless of the
            label.
        column: "MODEL/POOL/QUANTITY", by default the `main_metric`.

    Returns:
        Columns `line`, `epsilon` (of all rounds, to two digits, infinite without privacy), `mean`
        and `deviation` over the seeds. Lines keep their order; points are sorted by epsilon.
    """
    runs = runs.finished
    final = select(runs.metrics, column).groupby("run", sort=False)["value"].last(skipna=False)
    table = runs.summaries.set_index("run").assign(value=final)
    points = over_runs(table, ["label"])
    # Noise that targets an epsilon of 2 may spend 1.999.
    epsilon = table.groupby("label")["epsilon"].mean().map(lambda found: float(f"{found:.2g}"))
    deviation = points["deviation"].where(points["runs"] > 1, 0.0)
    points = points.assign(epsilon=epsilon, deviation=deviation).reset_index()
    panels, lines = _parts(points["label"])
    points["line"] = [panel or line for panel, line in zip(panels, lines, strict=True)]
    points["order"] = pd.factorize(points["line"])[0]
    points = points.sort_values(["order", "epsilon"], ignore_index=True)
    return points[["line", "epsilon", "mean", "deviation"]]


@figures.styled
def plot_against_epsilon(runs: Runs, column: str | None = None):
    """Draws a quantity against epsilon, with a line per method and error bars for the deviation.

    Runs without privacy are separate points at the right.

    Args:
        runs: See `points_against_epsilon`.
        column: See `points_against_epsilon`.

    Returns:
        The Matplotlib figure.
    """
    points = points_against_epsilon(runs, column)
    places = {epsilon: place for place, epsilon in enumerate(sorted(set(points["epsilon"])))}
    figure = figures.new_figure()
    axes = figure.subplots()
    lines, handles = list(points.groupby("line", sort=False)), {}
    for index, (line, of_line) in enumerate(lines):
        shift = _SHIFT * (index - (len(lines) - 1) / 2)
        # The point without privacy is not joined to the line.
        for _, part in of_line.groupby(np.isinf(of_line["epsilon"])):
            handles[line] = axes.errorbar(
                part["epsilon"].map(places) + shift,
                part["mean"],
                yerr=part["deviation"],
                capsize=3,
                elinewidth=1,
                **figures.series(index),
            )
    names = [_WITHOUT if math.isinf(epsilon) else f"{epsilon:g}" for epsilon in places]
    axes.set_xticks(list(places.values()), names)
    axes.set_xlabel("epsilon of all rounds (smaller is more private)")
    axes.set_ylabel(_axis_label(runs.finished.metrics, column))
    figures.legend_above(figure, list(handles.values()), list(handles))
    return figure


def _apart(rounds):
    """Returns sorted rounds without those whose numbers would touch below an axis."""
    shown, least = [], (rounds[-1] - rounds[0]) / _TICKS
    for number in rounds:
        if not shown or number - shown[-1] >= least:
            shown.append(number)
    return shown


def _axis_label(frame, column):
    return figures.wrapped(in_words(MetricName.parse(column_of(frame, column))))


def _parts(labels):
    """Returns the parts of labels "PANEL | LINE"; "LINE" has an empty panel."""
    split = [label.rpartition(SEPARATOR) for label in labels]
    return [panel for panel, *_ in split], [line for *_, line in split]


def _draw_over_bytes(axes, curve, style):
    if not curve["megabytes"].any():
        style = {name: style[name] for name in ("color", "linestyle")}
        return axes.axhline(curve["mean"].iloc[-1], **style)
    return figures.draw_band(axes, curve["megabytes"], curve["mean"], curve["deviation"], style)
