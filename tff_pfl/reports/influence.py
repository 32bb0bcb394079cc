"""Pictures of who helps whom: a matrix over clients, from the snapshots of a run."""

import os

import numpy as np

from tff_pfl.experiment import OutputDirectoryError, RunFiles
from tff_pfl.reports import figures

_MOST_PANELS = 4


def plot_influence(
    run_dir: str | os.PathLike, output: str | os.PathLike, name: str = "alpha"
) -> None:
    """Draws a matrix over clients at some rounds, and its means against the clients' data.

    Row `i` is the client that takes, column `j` the one it takes from; clients are in the order of
    their numbers of training examples.

    Args:
        run_dir: The run's output directory.
        output: The picture, .png, .pdf or .svg.
        name: Of the matrix, as the algorithm calls it.

    Raises:
        OutputDirectoryError: As in `RunFiles.snapshots`; or the array is no matrix over clients.
    """
    from matplotlib.figure import Figure

    files = RunFiles(run_dir)
    rounds, matrices = files.snapshots(name)
    sizes = np.array([len(rows) for rows in files.partition().train])
    if matrices[0].shape != (len(sizes), len(sizes)):
        raise OutputDirectoryError(
            f"{name!r} in {run_dir} has shape {matrices[0].shape}, which is no matrix over its "
            f"{len(sizes)} clients."
        )
    order = np.argsort(sizes)
    chosen = np.unique(np.linspace(0, len(rounds) - 1, _MOST_PANELS).round().astype(int))
    least, most = np.min(matrices), np.max(matrices)

    # Not pyplot, which keeps figures and looks for a display.
    figure = Figure(figsize=(4 * len(chosen), 8), layout="constrained")
    panels, charts = figure.subfigures(2, 1)
    axes = panels.subplots(1, len(chosen), squeeze=False)[0]
    for axis, index in zip(axes, chosen, strict=True):
        matrix = matrices[index][np.ix_(order, order)]
        image = axis.imshow(matrix, vmin=least, vmax=most, cmap="viridis", interpolation="nearest")
        axis.set(title=f"round {rounds[index]}", xticks=(), yticks=())
        axis.set_xlabel("who helps: few to many examples")
    axes[0].set_ylabel("who is helped: many to few examples")
    panels.colorbar(image, ax=axes, label=name)

    others = np.where(np.eye(len(sizes), dtype=bool), np.nan, matrices[-1])
    helps, is_helped = charts.subplots(1, 2)
    helps.scatter(sizes, np.nanmean(others, axis=0))
    helps.set_title(f"how much it helps others, round {rounds[-1]}")
    is_helped.scatter(sizes, np.nanmean(others, axis=1))
    is_helped.set_title(f"how much others help it, round {rounds[-1]}")
    for axis in (helps, is_helped):
        axis.set(
            xlabel="training examples of the client", ylabel=f"mean of {name}, itself left out"
        )
        axis.grid(color="0.92")
        axis.set_axisbelow(True)
    figures.save(figure, output)
