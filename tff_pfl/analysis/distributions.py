"""Shows the distribution of a quantity over clients: histograms and a table."""

import numpy as np

from tff_pfl.analysis import figures
from tff_pfl.analysis.frames import names_of, select
from tff_pfl.analysis.metric_text import in_words
from tff_pfl.analysis.runs import Runs
from tff_pfl.analysis.tables import Table, table_of
from tff_pfl.evaluation import over_clients
from tff_pfl.output.tables import decimal

_BINS = 20
# The vertical lines in a histogram: label, colour, line style.
_MARKS = {
    "lowest 5 %": ("mean of the lowest 5 %", figures.COLORS[1], "--"),
    "mean": ("mean", "black", "-"),
    "top 5 %": ("mean of the top 5 %", figures.COLORS[2], "-."),
}


def tails(values: np.ndarray, better: int) -> dict[str, float]:
    """Returns the `mean`, and the means of the `lowest 5 %` and `top 5 %` of the clients.

    NaN, the value of a diverged model, counts as the worst value.

    Args:
        values: A value for each client, float64 `[clients]`.
        better: 1 if more of the quantity is better, or -1.
    """
    found = over_clients(values, better)
    low, high = (found[f"{end}_5_percent"] for end in ("worst", "best")[::better])
    return {"mean": found["mean"], "lowest 5 %": low, "top 5 %": high}


def distribution_table(
    runs: Runs,
    column: str | None = None,
    rounds: int | str = "last",
    *,
    threshold: float | None = None,
    exclude_clients=(),
) -> Table:
    """Returns a table with the mean, the tails and the share below a threshold for each label.

    Args:
        runs: The runs. Clients of several seeds are pooled.
        column: "MODEL/POOL/QUANTITY", by default the `main_metric`.
        rounds: See `Runs.clients`.
        threshold: If given, a column has the share of clients below it. NaN is not below it.
        exclude_clients: Ids of clients to leave out, such as attackers.
    """
    rows = []
    for label, of_label, found in _of_labels(runs, column, rounds, exclude_clients):
        row = {"": label, "round": _rounds(of_label), "clients": str(len(of_label))}
        row |= {name: decimal(value) for name, value in found.items()}
        if threshold is not None:
            row[f"below {threshold:g}"] = _below(of_label, threshold)
        rows.append(row)
    return table_of(rows)


def _of_labels(runs, column, rounds, exclude_clients):
    """Returns `(label, its rows, their tails)` of one quantity for each label."""
    selected = select(runs.clients(rounds), column, exclude_clients)
    better = runs.quantity_of(selected).better
    groups = selected.groupby("label", sort=False)
    return [(label, rows, tails(rows["value"].to_numpy(), better)) for label, rows in groups]


@figures.styled
def plot_histograms(
    runs: Runs,
    column: str | None = None,
    rounds: int | str = "last",
    *,
    threshold: float | None = None,
    exclude_clients=(),
):
    """Draws a histogram over clients for each label, with the same bins and axes.

    Args:
        runs: See `distribution_table`.
        column: See `distribution_table`.
        rounds: See `Runs.clients`.
        threshold: If given, the titles have the share of clients below it.
        exclude_clients: See `distribution_table`.

    Returns:
        The Matplotlib figure.
    """
    from matplotlib.ticker import MaxNLocator

    groups = _of_labels(runs, column, rounds, exclude_clients)
    edges = shared_edges(np.concatenate([of_label["value"] for _, of_label, _ in groups]))
    figure, every_axes = figures.panels(len(groups), figures.PANELS_A_ROW, 2.9, 2.4, extra=0.9)
    for axes, (label, of_label, found) in zip(every_axes, groups, strict=True):
        _draw_histogram(axes, label, of_label, edges, threshold, found)
    margin = 0.02 * (edges[-1] - edges[0])  # keeps lines at the ends visible
    every_axes[0].set_xlim(edges[0] - margin, edges[-1] + margin)
    every_axes[0].yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    words = in_words(names_of(groups[0][1])[0])
    figure.supxlabel(figures.wrapped(words, 64), fontsize="medium")
    figure.supylabel("clients", fontsize="medium")
    figures.legend_above(figure, *every_axes[0].get_legend_handles_labels())
    return figure


def shared_edges(values: np.ndarray) -> np.ndarray:
    """Returns the edges of at most 20 equal bins, at round numbers, covering all finite values."""
    from matplotlib.ticker import MaxNLocator

    values = values[np.isfinite(values)]
    low, high = (values.min(), values.max()) if len(values) else (0.0, 1.0)
    if low == high:
        low, high = low - 0.5, high + 0.5
    ticks = MaxNLocator(nbins=_BINS, steps=(1, 2, 2.5, 5, 10)).tick_values(low, high)
    # 12 * 0.05 is not exactly 0.6, a value that a client may have.
    edges = np.array([float(f"{tick:.12g}") for tick in ticks])
    edges[[0, -1]] = min(edges[0], low), max(edges[-1], high)
    return edges


def _draw_histogram(axes, label, of_label, edges, threshold, found):
    values = of_label["value"].to_numpy()
    finite = values[np.isfinite(values)]
    if threshold is not None:
        least = min(edges[0] - 1.0, threshold)  # outside the visible range
        axes.axvspan(
            least, threshold, color="0.88", zorder=0, label=f"below {threshold:g}", linewidth=0
        )
    axes.hist(finite, edges, color=figures.COLORS[0], alpha=0.6, edgecolor="white")
    for name, (words, color, style) in _MARKS.items():
        axes.axvline(found[name], color=color, linestyle=style, linewidth=1.5, label=words)
    rounds, num_runs = _rounds(of_label), of_label["run"].nunique()
    when = f"round {rounds}" if rounds.isdecimal() else f"rounds {rounds}"
    title = figures.wrapped(f"{label}, {when}", figures.PANEL_CHARACTERS)
    title += f"\n{len(values)} clients" + f" of {num_runs} runs" * (num_runs > 1)
    if threshold is not None:
        title += f",\n{_below(of_label, threshold)} below {threshold:g}"
    if len(finite) < len(values):
        title += f", {len(values) - len(finite)} not finite"
    axes.set_title(title, fontsize="small")


def _below(of_label, threshold) -> str:
    return f"{100 * (of_label['value'] < threshold).mean():.1f} %"


def _rounds(of_label) -> str:
    """Returns the evaluated rounds in words: "10", or "5 to 10"."""
    return " to ".join(map(str, sorted({of_label["round"].min(), of_label["round"].max()})))
