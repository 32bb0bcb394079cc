"""The common style of all figures: legible at half a page, in grey and to colour-blind readers.

Series differ in colour (from Okabe and Ito's palette), in marker and in line style. Functions that
draw have the decorator `styled`, begin with `new_figure` and return the figure. A notebook shows
the figure; `save` writes it.
"""

import functools
import io
import math
import os
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

# Okabe and Ito, "Color universal design", 2008, without yellow, which is too light for a line.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "p")
_LINE_STYLES = ("-", "--", "-.", ":")
# Sizes in points are large, because a column in print halves a figure of 6.4 inches.
_STYLE = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.labelsize": 11,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 11,
    "figure.titlesize": 12,
    "font.size": 11,
    "grid.color": "0.9",
    "legend.fontsize": 10,
    "legend.frameon": False,
    "legend.handlelength": 3.0,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.0,
    "savefig.dpi": 150,
    "svg.hashsalt": "tff_pfl",  # makes equal figures equal files
    "text.parse_math": False,  # names of runs may have dollar signs
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
}
WIDTH = 6.4  # inches, for a figure with one panel
PANELS_A_ROW = 3
PANEL_CHARACTERS = 34  # fit above a panel
_LABEL_CHARACTERS = 36  # fit beside an axis of 3.5 inches
_CHARACTERS_AN_INCH = 11  # in a legend
_BAND_OPACITY = 0.18


def series(index: int) -> dict[str, str]:
    """Returns Matplotlib's options for line number `index`: 7 colours, 252 different styles."""
    styles = {"color": COLORS, "marker": _MARKERS, "linestyle": _LINE_STYLES}
    return {name: choice[index % len(choice)] for name, choice in styles.items()}


def styled(draw: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a function that draws, so that it uses the common style."""

    @functools.wraps(draw)
    def drawn(*args, **options):
        import matplotlib

        with matplotlib.rc_context(_STYLE):
            return draw(*args, **options)

    return drawn


def new_figure(width: float = WIDTH, height: float = 3.8):
    """Returns an empty Matplotlib figure, sized in inches, with constrained layout."""
    # pyplot would keep figures in memory and look for a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    class NotebookFigure(Figure):
        def _repr_png_(self) -> bytes:
            """Shows the figure in notebooks that do not use pyplot."""
            return _written(self, format="png")

    figure = NotebookFigure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def panels(
    count: int,
    most_a_row: int,
    width: float,
    height: float,
    extra: float = 0.0,
    least: float = WIDTH,
):
    """Returns a figure and its axes: `count` panels, sized in inches, with shared scales.

    Args:
        count: The number of panels.
        most_a_row: The largest number of panels in a row.
        width: The width of a panel.
        height: The height of a panel.
        extra: The height beside that of the panels.
        least: The least width of the figure.
    """
    rows = math.ceil(count / most_a_row)
    a_row = math.ceil(count / rows)
    figure = new_figure(max(width * a_row, least), height * rows + extra)
    axes = list(figure.subplots(rows, a_row, sharex=True, sharey=True, squeeze=False).flat)
    for rest in axes[count:]:
        rest.remove()
    for index, each in enumerate(axes[:count]):
        # The lowest panel of each column keeps the numbers of the axis.
        each.tick_params(labelbottom=index + a_row >= count)
    return figure, axes[:count]


def draw_band(axes, x, mean, deviation, style):
    """Draws a line, with a band of one deviation unless all are zero; returns the line."""
    (line,) = axes.plot(x, mean, **style)
    if (deviation > 0).any():
        low, high = mean - deviation, mean + deviation
        axes.fill_between(x, low, high, color=style["color"], alpha=_BAND_OPACITY, linewidth=0)
    return line


def wrapped(label: str, characters: int = _LABEL_CHARACTERS) -> str:
    """Breaks a label into lines that fit beside an axis."""
    return textwrap.fill(label, characters)


def legend_above(figure, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """Adds a legend above a figure, in as many columns as fit, and enlarges the figure."""
    if not labels:
        return
    width, height = figure.get_size_inches()
    entry = max(map(len, labels)) + 8  # label and line sample, in characters
    rows = math.ceil(len(labels) / max(1, int(_CHARACTERS_AN_INCH * width / entry)))
    columns = math.ceil(len(labels) / rows)
    figure.set_size_inches(width, height + 0.21 * rows)
    # Matplotlib ignores labels that begin with an underscore, so the texts are set afterwards.
    placeholders = ["-" * len(label) for label in labels]
    legend = figure.legend(handles, placeholders, loc="outside upper center", ncols=columns)
    for text, label in zip(legend.get_texts(), labels, strict=True):
        text.set_text(label)


def few_in_decades(low: float, high: float) -> list[float]:
    """Returns two to five round numbers for a logarithmic axis; `high` is at least `10 * low`."""
    powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    if len(powers) > 2:
        return [10.0**power for power in powers[:: math.ceil(len(powers) / 4)]]
    ticks = [digit * 10.0**power for power in (powers[0] - 1, *powers) for digit in (1, 3)]
    return [tick for tick in ticks if low <= tick <= high]


def set_log_scale(axes, axis: str, ticks: Sequence[float] | None = None) -> None:
    """Makes the axis "x" or "y" logarithmic, with plain numbers: `styled` draws no formulas.

    Args:
        axes: The axes of Matplotlib.
        axis: "x" or "y".
        ticks: The numbers on the axis; by default Matplotlib chooses them.
    """
    from matplotlib.ticker import LogFormatterSciNotation, NullFormatter

    class Plain(LogFormatterSciNotation):
        def __call__(self, x, pos=None):
            return f"{x:g}" if super().__call__(x, pos) else ""

    axes.set(**{f"{axis}scale": "log"})
    numbers = getattr(axes, f"{axis}axis")
    if ticks is None:
        numbers.set_major_formatter(Plain())
        numbers.set_minor_formatter(Plain(labelOnlyBase=False))
    else:
        numbers.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
        numbers.set_minor_formatter(NullFormatter())


@styled
def save(figure, path: str | os.PathLike) -> None:
    """Saves a figure as .png, .pdf or .svg, by the path's ending; makes the folder."""
    path = os.path.expanduser(path)
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    figure.savefig(path)


@styled
def as_svg(figure) -> bytes:
    """Returns a figure as SVG; equal figures give equal bytes."""
    return _written(figure, format="svg", metadata={"Date": None})


@styled
def _written(figure, **options: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, **options)
    return file.getvalue()
