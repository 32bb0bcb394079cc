"""A picture of how the classes of a data set fall on its clients."""

import math
import os

import numpy as np

from tff_pfl.data.client_rows import ClientRows
from tff_pfl.data.federated_dataset import FederatedDataset
from tff_pfl.data.partition import class_counts

_MAX_CIRCLE_CLIENTS = 100
_MAX_CIRCLE_CLASSES = 20
_MAX_COLUMNS = 2000  # as many as there are pixels


def plot_partition(
    dataset: FederatedDataset, path: str | os.PathLike, split: str = "train"
) -> None:
    """Draws clients on the x axis, classes on the y axis, and how many examples each pair has.

    Circles whose area is the number of examples; a heat map where circles would be too small to
    read, above 100 clients or 20 classes. Bars on top are the sizes of the clients. Above 2,000
    clients, a column is of some clients with neighbouring ids, together.

    Args:
        dataset: The data set to draw.
        path: The image file; its ending is the format (.png, .pdf, .svg).
        split: `"train"`, `"validation"` or `"test"`.

    Raises:
        ValueError: There is no such split.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogFormatter, MaxNLocator

    sizes = dataset.sizes(split)
    num_clients, num_classes = len(sizes), dataset.num_classes
    together = math.ceil(num_clients / _MAX_COLUMNS)
    rows = getattr(dataset.partition, split)
    columns = ClientRows(rows.rows, np.append(rows.offsets[:-1:together], rows.offsets[-1]))
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
    meaning = "examples (also the area)" if circles else "examples (white: none)"
    bar = figure.colorbar(drawn, ax=main, label=meaning, format=LogFormatter(), pad=0.01)
    bar.minorformatter = LogFormatter()
    xlabel = "client" if together == 1 else f"clients, {together} of them in a column"
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
    # Points (1/72 inch) between neighbours: the largest circle has a diameter of 1.2 of them.
    pitch = 72 * min(width / (num_clients + 6), (height - 2) / (num_classes + 1))
    area = np.maximum((1.2 * pitch) ** 2 * number / counts.max(initial=1), 1.5)
    axes.grid(color="0.92", linewidth=0.6)
    axes.set_axisbelow(True)
    return axes.scatter(
        client, label, area, c=number, cmap="viridis_r", norm=_log_norm(counts), alpha=0.9
    )


def _draw_heat_map(axes, counts):
    # Empty cells stay white: "none" and "few" must not look the same.
    return axes.imshow(
        np.ma.masked_equal(counts.T, 0),
        aspect="auto",
        origin="lower",
        interpolation="nearest",
        cmap="viridis_r",
        norm=_log_norm(counts),
    )


def _log_norm(counts):
    """Returns colours by the logarithm: most cells are far smaller than the largest."""
    from matplotlib.colors import LogNorm

    return LogNorm(1, max(counts.max(initial=1), 2))
