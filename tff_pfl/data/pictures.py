"""A plot of the number of examples of each class that each client has."""

import math
import os

import numpy as np

from tff_pfl.data.client_rows import ClientRows
from tff_pfl.data.federated_dataset import FederatedDataset
from tff_pfl.data.partition import class_counts

_MAX_CIRCLE_CLIENTS = 100
_MAX_CIRCLE_CLASSES = 20
_MAX_COLUMNS = 2000  # about one per pixel


def plot_partition(
    dataset: FederatedDataset, path: str | os.PathLike, split: str = "train"
) -> None:
    """Plots the number of examples of each client (x axis) in each class (y axis).

    Numbers are the areas of circles or, above 100 clients or 20 classes, the colours of a heat
    map. Bars above the plot show the clients' sizes. Above 2,000 clients, several clients with
    neighbouring ids share a column. Without class labels, only the sizes are drawn.

    Args:
        dataset: The data set to draw.
        path: The image file; its extension sets the format (.png, .pdf, .svg).
        split: `"train"`, `"validation"` or `"test"`.

    Raises:
        ValueError: The split is unknown.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    sizes = dataset.sizes(split)
    num_clients, num_classes = len(sizes), dataset.num_classes
    clients_per_column = math.ceil(num_clients / _MAX_COLUMNS)
    rows = getattr(dataset.partition, split)
    starts = rows.offsets[:-1:clients_per_column]
    columns = ClientRows(rows.rows, np.append(starts, rows.offsets[-1]))
    width = float(np.clip(2.5 + 0.15 * num_clients, 7, 17))
    height = 2.5 if num_classes is None else float(np.clip(2.0 + 0.3 * num_classes, 4, 9))
    figure = Figure(figsize=(width, height), layout="constrained")
    if num_classes is None:
        bars = lowest = figure.subplots()
    else:
        bars, lowest = figure.subplots(2, sharex=True, height_ratios=[1, max(height - 1.8, 2)])
        _draw_classes(lowest, class_counts(dataset.y, columns, num_classes), num_clients)
    bars.stairs(columns.sizes, np.arange(len(columns) + 1) - 0.5, fill=True, color="tab:gray")
    bars.set_ylabel("examples")
    bars.set_title(
        f"{dataset.name}, {split}: {sizes.sum():,} examples"
        f"{'' if num_classes is None else f' of {num_classes} classes'}\n"
        f"on {num_clients:,} clients, {sizes.min():,} to {sizes.max():,} examples each",
        parse_math=False,
    )
    xlabel = "client" if clients_per_column == 1 else f"clients, {clients_per_column} a column"
    lowest.set(xlabel=xlabel, xlim=(-0.6, len(columns) - 0.4))
    lowest.xaxis.set_major_locator(MaxNLocator(nbins=20, integer=True))
    figure.savefig(os.path.expanduser(path), dpi=120)


def _draw_classes(axes, counts, num_clients):
    """Draws the number of examples of each column, `[columns, C]`, in each class."""
    from matplotlib.ticker import LogFormatter, MaxNLocator

    num_classes = counts.shape[1]
    circles = num_clients <= _MAX_CIRCLE_CLIENTS and num_classes <= _MAX_CIRCLE_CLASSES
    drawn = _draw_circles(axes, counts) if circles else _draw_heat_map(axes, counts)
    label = "examples (also the area)" if circles else "examples (white: none)"
    bar = axes.figure.colorbar(drawn, ax=axes, label=label, format=LogFormatter(), pad=0.01)
    bar.minorformatter = LogFormatter()
    axes.set(ylabel="class", ylim=(-0.6, num_classes - 0.4))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=20, integer=True))


def _draw_circles(axes, counts):
    client, label = np.nonzero(counts)
    number = counts[client, label]
    width, height = axes.figure.get_size_inches()
    num_clients, num_classes = counts.shape
    # The distance between neighbours, in points (1/72 inch). The largest circle has 1.2 times it.
    pitch = 72 * min(width / (num_clients + 6), (height - 2) / (num_classes + 1))
    area = np.maximum((1.2 * pitch) ** 2 * number / counts.max(initial=1), 1.5)
    axes.grid(color="0.92", linewidth=0.6)
    axes.set_axisbelow(True)
    return axes.scatter(
        client, label, area, c=number, cmap="viridis_r", norm=_log_norm(counts), alpha=0.9
    )


def _draw_heat_map(axes, counts):
    # Empty cells stay white, so that "none" and "few" do not look the same.
    return axes.imshow(
        np.ma.masked_equal(counts.T, 0),
        aspect="auto",
        origin="lower",
        interpolation="nearest",
        cmap="viridis_r",
        norm=_log_norm(counts),
    )


def _log_norm(counts):
    """Returns a logarithmic colour scale, since most cells are far smaller than the largest."""
    from matplotlib.colors import LogNorm

    return LogNorm(1, max(counts.max(initial=1), 2))
