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
    neighbouring ids share a column.

    Args:
        dataset: The data set to draw.
        path: The image file; its extension sets the format (.png, .pdf, .svg).
        split: `"train"`, `"validation"` or `"test"`.

    Raises:
        ValueError: The split is unknown.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogFormatter, MaxNLocator

    sizes = dataset.sizes(split)
    num_clients, num_classes = len(sizes), dataset.num_classes
    clients_per_column = math.ceil(num_clients / _MAX_COLUMNS)
    rows = getattr(dataset.partition, split)
    starts = rows.offsets[:-1:clients_per_column]
    columns = ClientRows(rows.rows, np.append(starts, rows.offsets[-1]))
    counts = class_counts(dataset.y, columns, num_classes)
    circles = num_clients <= _MAX_CIRCLE_CLIENTS and num_classes <= _MAX_CIRCLE_CLASSES
    width = float(np.clip(2.5 + 0.15 * num_clients, 7, 17))
    height = float(np.clip(2.0 + 0.3 * num_classes, 4, 9))
    figure = Figure(figsize=(width, height), layout="constrained")
    bars, main = figure.subplots(2, sharex=True, height_ratios=[1, max(height - 1.8, 2)])
    edges = np.arange(len(columns) + 1) - 0.5
    bars.stairs(columns.sizes, edges, fill=True, color="tab:gray")
    bars.set_ylabel("examples")
    bars.set_title(
        f"{dataset.name}, {split}: {sizes.sum():,} examples of {num_classes} classes\n"
        f"on {num_clients:,} clients, {sizes.min():,} to {sizes.max():,} examples each",
        parse_math=False,
    )
    drawn = _draw_circles(main, counts) if circles else _draw_heat_map(main, counts)
    label = "examples (also the area)" if circles else "examples (white: none)"
    bar = figure.colorbar(drawn, ax=main, label=label, format=LogFormatter(), pad=0.01)
    bar.minorformatter = LogFormatter()
    xlabel = "client" if clients_per_column == 1 else f"clients, {clients_per_column} a column"
    main.set(xlabel=xlabel, ylabel="class", xlim=(-0.6, len(columns) - 0.4))
    main.set_ylim(-0.6, num_classes - 0.4)
    for axis in (main.xaxis, main.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=20, integer=True))
    figure.savefig(path, dpi=120)


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
