"""Draws which clients help which, for PGFed: `python -m docs.results.influence RUN OUTPUT`."""

import numpy as np

from docs.results import command
from tff_pfl.analysis import figures
from tff_pfl.experiment import RunFiles

_MOST_MATRICES = 4


@figures.styled
def draw(run: str, matrix: str = "alpha"):
    """Draws a matrix over clients at some rounds, and its means against clients' data sizes.

    Row `i` is the client that receives help, and column `j` is the client that gives it. Clients
    are sorted by their numbers of training examples.

    Args:
        run: The run's folder.
        matrix: The name of the matrix in the run's snapshots, such as `xi` of FedAMP.
    """
    files = RunFiles(run)
    rounds, matrices = files.snapshots(matrix)
    sizes = np.array([len(rows) for rows in files.partition.train])
    order = np.argsort(sizes)
    chosen = np.unique(np.linspace(0, len(rounds) - 1, _MOST_MATRICES).round().astype(int))
    figure = figures.new_figure(max(2.6 * len(chosen), figures.WIDTH), 6.2)
    above, below = figure.subfigures(2, 1)
    panels = above.subplots(1, len(chosen), squeeze=False)[0]
    scale = {"vmin": np.min(matrices), "vmax": np.max(matrices)}
    for axes, index in zip(panels, chosen, strict=True):
        image = axes.imshow(matrices[index][np.ix_(order, order)], **scale)
        axes.set(title=f"round {rounds[index]}", xticks=(), yticks=())
        axes.set_xlabel("helping client:\nfew to many examples")
    panels[0].set_ylabel("helped client:\nmany to few examples")
    above.colorbar(image, ax=panels, label=matrix)

    others = np.where(np.eye(len(sizes), dtype=bool), np.nan, matrices[-1])
    titles = ("help given to others", "help received from others")
    for index, (axes, title) in enumerate(zip(below.subplots(1, 2), titles, strict=True)):
        axes.scatter(sizes, np.nanmean(others, axis=index), color=figures.COLORS[0], alpha=0.7)
        axes.set(
            title=f"{title}, round {rounds[-1]}",
            xlabel="training examples of the client",
            ylabel=f"mean of {matrix}\nover other clients",
        )
    return figure


if __name__ == "__main__":
    command.main(draw)
