"""Pictures of what clients mix their models of, over the rounds, from the snapshots of a run."""

import os
from collections.abc import Iterable

import numpy as np

from tff_pfl.experiment import OutputDirectoryError, RunFiles
from tff_pfl.names import unknown_name
from tff_pfl.reports import figures

_MOST_CLIENTS = 15  # that are shown where none are chosen
_HATCHES = ("", "//", "..", "\\\\", "xx")  # of parts, which are told apart in grey, too


@figures.styled
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
        clients: Ids of the clients that are shown, in this order; by default, and if there are
            none, the first ones.

    Raises:
        OutputDirectoryError: As in `RunFiles.snapshots`; or there is no such mixture, or client.
    """
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
    ids = list(range(num_clients))
    if "client_id" in names:  # of a sample
        ids = files.snapshots("client_id")[1][0].tolist()
    shown = list(clients or ()) or ids[:_MOST_CLIENTS]
    if unknown := [i for i in shown if i not in ids]:
        of_them = f", {num_clients} of them" * ("client_id" in names)
        raise OutputDirectoryError(
            f"Clients of {run_dir} are {ids[0]} to {ids[-1]}{of_them}: {unknown}"
        )

    figure = figures.new_figure(1.6 + 1.1 * len(shown), 1 + 1.1 * len(layers))
    axes = figure.subplots(len(layers), len(shown), sharex=True, sharey=True, squeeze=False)
    for row, layer, mixture in zip(axes, layers, mixtures, strict=True):
        for axis, client in zip(row, shown, strict=True):
            of_client = mixture[:, ids.index(client)]
            parts = axis.stackplot(rounds, of_client.T, colors=_colors(num_parts))
            for number, part in enumerate(parts):
                part.set(hatch=_HATCHES[number % len(_HATCHES)], edgecolor="white", linewidth=0)
            axis.set(xlim=(rounds[0], rounds[-1]), ylim=(0, 1))
            axis.set(xticks=rounds[[0, -1]], yticks=())
        row[0].set_ylabel(layer, rotation=0, ha="right", va="center")
    for axis, client in zip(axes[0], shown, strict=True):
        axis.set_title(f"client {client}", fontsize="small")
    figure.supxlabel("round", fontsize="medium")
    figure.supylabel("parts of each client's mixture, by layer", fontsize="medium")
    figures.legend_above(figure, parts, [f"branch {part}" for part in range(num_parts)])
    figures.save(figure, output)


def _colors(number):
    return [figures.series(part).color for part in range(number)]
