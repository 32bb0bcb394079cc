"""What algorithms had to show in a run: the arrays of `snapshots/round_*.npz`."""

import os

import numpy as np

from tff_pfl.names import unknown_name
from tff_pfl.reports.curves import files_of_rounds
from tff_pfl.experiment.run_directory import OutputDirectoryError, reading


def read_snapshots(
    run_dir: str | os.PathLike, name: str = "alpha"
) -> tuple[np.ndarray, list[np.ndarray]]:
    """`(rounds, arrays)`: one array of a run's snapshots, at each evaluation.

    Args:
        run_dir: The run's output directory.
        name: Of the array, as the algorithm calls it.

    Raises:
        OutputDirectoryError: If there are no snapshots, or they have no such array, or are damaged.
    """
    arrays = []
    paths = _files(run_dir)
    for path in paths.values():
        with reading(path), np.load(path) as snapshot:
            if name not in snapshot:
                raise OutputDirectoryError(unknown_name(f"array of {path}", name, list(snapshot)))
            arrays.append(snapshot[name])
            if arrays[-1].dtype.kind not in "biuf":
                raise ValueError(f"{name!r} has no numbers, but {arrays[-1].dtype}")
            if arrays[-1].shape != arrays[0].shape:
                shapes = f"{list(arrays[-1].shape)}, before {list(arrays[0].shape)}"
                raise ValueError(f"{name!r} has the shape {shapes}")
    return np.array(list(paths)), arrays


def snapshot_names(run_dir: str | os.PathLike) -> list[str]:
    """The names of the arrays of a run's snapshots.

    Raises:
        OutputDirectoryError: If there are no snapshots.
    """
    path = next(iter(_files(run_dir).values()))
    with reading(path), np.load(path) as snapshot:
        return list(snapshot)


def _files(run_dir):
    paths = files_of_rounds(run_dir, "snapshots", ".npz")
    if not paths:
        raise OutputDirectoryError(
            f"{run_dir} has no snapshots/round_*.npz: its algorithm has nothing to show, or it was "
            "not evaluated yet."
        )
    return paths
