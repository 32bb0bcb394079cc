"""One style of all figures: legible at half a page, in grey and to colour-blind readers.

Series differ in colour (of Okabe and Ito's palette), in marker and in line style. A function that
draws is `styled`; it begins with `new_figure` and returns the figure, which a notebook shows, and
`save` writes.
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
# Points are larger than in print: a figure 6.4 inches wide is half of that in a column.
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
    "svg.hashsalt": "tff_pfl",  # the same figure is the same file
    "text.parse_math": False,  # names of runs are text, whatever is in them
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
}
WIDTH = 6.4  # inches, of a figure with one panel
PANELS_A_ROW = 3
PANEL_CHARACTERS = 34  # that fit above one of them
_LABEL_CHARACTERS = 36  # that fit beside an axis of 3.5 inches
_CHARACTERS_AN_INCH = 11  # of a legend
_BAND_OPACITY = 0.18


def series(index: int) -> dict[str, str]:
    """Returns Matplotlib's options of a line by its number, from 0: 7 colours, 252 styles."""
    styles = {"color": COLORS, "marker": _MARKERS, "linestyle": _LINE_STYLES}
    return {name: choice[index % len(choice)] for name, choice in styles.items()}


def styled(draw: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a function draw in the style."""

    @functools.wraps(draw)
    def drawn(*args, **options):
        import matplotlib

        with matplotlib.rc_context(_STYLE):
            return draw(*args, **options)

    return drawn


def new_figure(width: float = WIDTH, height: float = 3.8):
    """Returns an empty Matplotlib figure, of a size in inches, that lays itself out."""
    # Not pyplot, which keeps figures and looks for a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def panels(count: int, most_a_row: int, width: float, height: float, extra: float = 0.0):
    """Returns a figure and its axes, `count` panels of a size in inches that share their axes."""
    rows = math.ceil(count / most_a_row)
    a_row = math.ceil(count / rows)
    figure = new_figure(max(width * a_row, WIDTH), height * rows + extra)
    axes = list(figure.subplots(rows, a_row, sharex=True, sharey=True, squeeze=False).flat)
    for rest in axes[count:]:
        rest.remove()
    for index, each in enumerate(axes[:count]):
        # The last of its column keeps the numbers of the axis, where there is no panel below.
        each.tick_params(labelbottom=index + a_row >= count)
    return figure, axes[:count]


def draw_band(axes, x, mean, deviation, style):
    """Draws a line, with a band of one deviation where there is one; returns the line."""
    (line,) = axes.plot(x, mean, **style)
    if (deviation > 0).any():
        low, high = mean - deviation, mean + deviation
        axes.fill_between(x, low, high, color=style["color"], alpha=_BAND_OPACITY, linewidth=0)
    return line


def wrapped(label: str, characters: int = _LABEL_CHARACTERS) -> str:
    """Returns a label in lines that fit beside an axis."""
    return textwrap.fill(label, characters)


def legend_above(figure, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """Explains series above a figure, in as many columns as fit; the figure grows by its height."""
    if not labels:
        return
    width, height = figure.get_size_inches()
    entry = max(map(len, labels)) + 8  # with its line
    rows = math.ceil(len(labels) / max(1, int(_CHARACTERS_AN_INCH * width / entry)))
    columns = math.ceil(len(labels) / rows)
    figure.set_size_inches(width, height + 0.21 * rows)
    # Matplotlib leaves out labels that begin with an underscore, so they are set afterwards.
    places = ["-" * len(label) for label in labels]
    legend = figure.legend(handles, places, loc="outside upper center", ncols=columns)
    for text, label in zip(legend.get_texts(), labels, strict=True):
        text.set_text(label)


def set_log_scale(axes, axis: str) -> None:
    """Makes an axis, "x" or "y", logarithmic, with plain numbers, as `styled` draws no formulas."""
    from matplotlib.ticker import LogFormatterSciNotation

    class Plain(LogFormatterSciNotation):
        def __call__(self, x, pos=None):
            return f"{x:g}" if super().__call__(x, pos) else ""

    axes.set(**{f"{axis}scale": "log"})
    ticks = getattr(axes, f"{axis}axis")
    ticks.set_major_formatter(Plain())
    ticks.set_minor_formatter(Plain(labelOnlyBase=False))


@styled
def save(figure, path: str | os.PathLike) -> None:
    """Saves a figure in the format of the path's ending, .png, .pdf or .svg; makes the folder."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    figure.savefig(path)


@styled
def as_svg(figure) -> bytes:
    """Returns a figure as SVG, the same bytes each time."""
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()
