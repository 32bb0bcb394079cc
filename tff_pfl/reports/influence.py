"""Pictures of who helps whom: a matrix over clients, from the snapshots of a run."""

import os

import numpy as np

from tff_pfl.experiment import OutputDirectoryError, RunFiles
from tff_pfl.reports import figures

_MOST_PANELS = 4


@figures.styled
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

    figure = figures.new_figure(max(2.6 * len(chosen), figures.WIDTH), 6.2)
    panels, charts = figure.subfigures(2, 1)
    axes = panels.subplots(1, len(chosen), squeeze=False)[0]
    for axis, index in zip(axes, chosen, strict=True):
        matrix = matrices[index][np.ix_(order, order)]
        image = axis.imshow(matrix, vmin=least, vmax=most, cmap="viridis", interpolation="nearest")
        axis.set(title=f"round {rounds[index]}", xticks=(), yticks=())
        axis.set_xlabel("who helps:\nfew to many examples")
    axes[0].set_ylabel("who is helped:\nmany to few examples")
    panels.colorbar(image, ax=axes, label=name)

    others = np.where(np.eye(len(sizes), dtype=bool), np.nan, matrices[-1])
    helps, is_helped = charts.subplots(1, 2)
    titles = ("how much it helps others", "how much others help it")
    for index, (axis, title) in enumerate(zip((helps, is_helped), titles, strict=True)):
        axis.scatter(sizes, np.nanmean(others, axis=index), color=figures.COLORS[0], alpha=0.7)
        axis.set(
            title=f"{title}, round {rounds[-1]}",
            xlabel="training examples of the client",
            ylabel=f"mean of {name},\nitself left out",
        )
    figures.save(figure, output)
