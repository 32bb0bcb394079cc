"""Pictures of who helps whom: a matrix over clients, from the snapshots of a run."""

import os

import numpy as np

from tff_pfl.data import Partition
from tff_pfl.names import unknown_name
from tff_pfl.training.curves import files_of_rounds
from tff_pfl.training.run_directory import OutputDirectoryError

_MOST_PANELS = 4


def read_snapshots(
    run_dir: str | os.PathLike, name: str = "alpha"
) -> tuple[np.ndarray, list[np.ndarray]]:
    """`(rounds, arrays)`: one array of a run's snapshots, at each evaluation.

    Args:
        run_dir: The run's output directory.
        name: Of the array, as the algorithm calls it.

    Raises:
        OutputDirectoryError: If there are no snapshots, or they have no such array.
    """
    paths = files_of_rounds(run_dir, "snapshots", ".npz")
    if not paths:
        raise OutputDirectoryError(
            f"{run_dir} has no snapshots/round_*.npz: its algorithm has nothing to show, or it was "
            "not evaluated yet."
        )
    arrays = []
    for path in paths.values():
        with np.load(path) as snapshot:
            if name not in snapshot:
                raise OutputDirectoryError(unknown_name(f"array of {path}", name, list(snapshot)))
            arrays.append(snapshot[name])
    return np.array(list(paths)), arrays


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
        OutputDirectoryError: As in `read_snapshots`; or the array is no matrix over clients.
    """
    from matplotlib.figure import Figure

    rounds, matrices = read_snapshots(run_dir, name)
    partition = Partition.load(os.path.join(run_dir, "partition.npz"))
    sizes = np.array([len(rows) for rows in partition.train])
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
    figure.savefig(output, dpi=120)
