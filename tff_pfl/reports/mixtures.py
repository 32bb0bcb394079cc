"""Pictures of what clients mix their models of, over the rounds, from the snapshots of a run."""

import os
from collections.abc import Iterable

import numpy as np

from tff_pfl.experiment import OutputDirectoryError, RunFiles
from tff_pfl.names import unknown_name
from tff_pfl.reports import figures

_MOST_CLIENTS = 15  # that are shown where none are chosen


def plot_mixtures(
    run_dir: str | os.PathLike,
    output: str | os.PathLike,
    *,
    name: str = "alpha",
    clients: Iterable[int] | None = None,
) -> None:
    """Draws the parts of each client's mixture over the rounds, a row a layer, a column a client.

    Args:
        run_dir: The run's output directory.
        output: The picture, .png, .pdf or .svg.
        name: Of the coefficients, which the snapshots have as `NAME/LAYER`, `[clients, parts]`.
        clients: Ids of the clients that are shown, in this order; default the first ones.

    Raises:
        OutputDirectoryError: As in `RunFiles.snapshots`; or there is no such mixture, or client.
    """
    from matplotlib.figure import Figure

    files = RunFiles(run_dir)
    names = files.snapshot_names()
    layers = [other.removeprefix(f"{name}/") for other in names if other.startswith(f"{name}/")]
    if not layers:
        mixtures = sorted({other.partition("/")[0] for other in names if "/" in other})
        raise OutputDirectoryError(unknown_name(f"mixture of {run_dir}", name, mixtures))
    snapshots = [files.snapshots(f"{name}/{layer}") for layer in layers]
    rounds = snapshots[0][0]
    mixtures = [np.array(of_rounds) for _, of_rounds in snapshots]
    if any(mixture.ndim != 3 or len(mixture[0]) != len(mixtures[0][0]) for mixture in mixtures):
        raise OutputDirectoryError(f"{name!r} in {run_dir} is no mixture of each client and layer.")
    if len(rounds) == 1:  # which alone would have no width
        rounds, mixtures = np.append(rounds, rounds + 1), [np.repeat(m, 2, 0) for m in mixtures]
    _, num_clients, num_parts = mixtures[0].shape
    shown = list(range(min(num_clients, _MOST_CLIENTS)) if clients is None else clients)
    if unknown := [i for i in shown if not 0 <= i < num_clients]:
        raise OutputDirectoryError(f"Clients of {run_dir} are 0 to {num_clients - 1}: {unknown}")

    # Not pyplot, which keeps figures and looks for a display.
    figure = Figure(figsize=(1.2 + 1.1 * len(shown), 1 + 1.1 * len(layers)), layout="constrained")
    axes = figure.subplots(len(layers), len(shown), sharex=True, sharey=True, squeeze=False)
    for row, layer, mixture in zip(axes, layers, mixtures, strict=True):
        for axis, client in zip(row, shown, strict=True):
            parts = axis.stackplot(rounds, mixture[:, client].T, colors=_colors(num_parts))
            axis.set(xlim=(rounds[0], rounds[-1]), ylim=(0, 1))
            axis.set(xticks=rounds[[0, -1]], yticks=())
        row[0].set_ylabel(layer, rotation=0, ha="right", va="center")
    for axis, client in zip(axes[0], shown, strict=True):
        axis.set_title(f"client {client}", fontsize="small")
    figure.supxlabel("round", fontsize="small")
    labels = [f"branch {part}" for part in range(num_parts)]
    figure.legend(parts, labels, loc="outside right upper", fontsize="small")
    figures.save(figure, output)


def _colors(number):
    from matplotlib import colormaps

    return [colormaps["tab10"](i % 10) for i in range(number)]
