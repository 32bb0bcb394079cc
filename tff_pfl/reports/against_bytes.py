"""Pictures of what was reached with how many bytes."""

import os
from typing import NamedTuple

import numpy as np

from tff_pfl.evaluation import MetricName
from tff_pfl.experiment import OutputDirectoryError, RunFiles
from tff_pfl.reports import figures
from tff_pfl.reports.comparison import Comparison
from tff_pfl.reports.cross_table import SEPARATOR
from tff_pfl.reports.curves import curve_over_seeds
from tff_pfl.reports.words import in_words

_PANEL_WIDTH = 4.2  # inches, of one of several panels


class BytesCurve(NamedTuple):
    """A quantity over what clients have sent.

    Attributes:
        megabytes: float64 `[evaluations]`: sent, up to an evaluation, by a client that takes part
            in every round; the mean over the runs.
        means: float64 `[evaluations]`: over the runs, of the mean over clients.
        deviations: float64 `[evaluations]`: see `Curve`.
    """

    megabytes: np.ndarray
    means: np.ndarray
    deviations: np.ndarray


def curve_against_bytes(run_dirs, column: str) -> BytesCurve:
    """The curve of runs that differ in their seeds; arguments and errors of `curve_over_seeds`."""
    curve = curve_over_seeds(run_dirs, column)
    a_round = [RunFiles(path).metrics()["bytes_up_per_client"][-1] for path in run_dirs]
    return BytesCurve(curve.rounds * np.mean(a_round) / 1e6, curve.means, curve.deviations)


@figures.styled
def plot_against_bytes(comparison: Comparison, column: str, path: str | os.PathLike) -> None:
    """Draws a quantity over the megabytes that a client has sent, a line a variant.

    The axis is logarithmic. Where nothing is sent, as by local training, it is a level line at the
    last value.

    Args:
        comparison: Of variants with labels "PANEL | LINE", each drawn in the panel of its method,
            and in all panels by the same line; those of other labels share a panel.
        column: See `read_curve`.
        path: The image file; its ending is the format (.png, .pdf, .svg).

    Raises:
        OutputDirectoryError: See `curve_over_seeds`; or there is no finished run.
    """
    if not comparison.finished:
        raise OutputDirectoryError(f"{comparison.title} has no finished run.")
    panels, lines = {}, {}
    for label, results in comparison.finished.items():
        panel, separator, line = label.rpartition(SEPARATOR)
        curve = curve_against_bytes([run.path for run in results], column)
        panels.setdefault(panel if separator else "", {})[line] = curve
        lines.setdefault(line, figures.series(len(lines)))
    width = _PANEL_WIDTH * len(panels) if len(panels) > 1 else figures.WIDTH
    figure = figures.new_figure(width)
    every_axes = figure.subplots(1, len(panels), squeeze=False, sharex=True, sharey=True)[0]
    handles = {}
    for axes, (panel, curves) in zip(every_axes, panels.items(), strict=True):
        for line, curve in curves.items():
            handles[line] = _draw(axes, curve, lines[line])
        figures.set_log_scale(axes, "x")
        axes.set(xlabel="MB sent by a client that is in every round", title=panel)
    every_axes[0].set_ylabel(figures.wrapped(in_words(MetricName.parse(column))))
    figures.legend_above(figure, list(handles.values()), list(handles))
    figures.save(figure, path)


def _draw(axes, curve, style):
    if not curve.megabytes.any():
        return axes.axhline(curve.means[-1], color=style.color, linestyle=style.linestyle)
    (line,) = axes.plot(curve.megabytes, curve.means, **style._asdict())
    if np.any(curve.deviations > 0):
        low, high = curve.means - curve.deviations, curve.means + curve.deviations
        opacity = figures.BAND_OPACITY
        axes.fill_between(curve.megabytes, low, high, color=style.color, alpha=opacity, linewidth=0)
    return line
