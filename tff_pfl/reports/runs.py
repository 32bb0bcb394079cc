"""Which runs are shown, by the names that they are shown by."""

import os
from collections.abc import Iterable, Mapping, Sequence

from tff_pfl.experiment import OutputDirectoryError, RunFiles

Runs = Mapping[str, Sequence[str | os.PathLike]]
"""Output directories by the name to show: those of a name differ in their seeds."""


def named_runs(arguments: Iterable[str]) -> dict[str, list[str]]:
    """Returns the runs of a command line, `NAME:DIR` or `DIR` each.

    A run without a name is named after its folder. Several runs of one name differ in their seeds,
    and have to be named by hand.

    Raises:
        OutputDirectoryError: If a folder holds no run, if two runs of one name have the same seed,
            or if several runs would have the name of a folder.
    """
    runs, of_folders = {}, set()
    for argument in arguments:
        name, _, run_dir = argument.partition(":")
        if is_run(argument) or not (name and run_dir):
            run_dir = argument
            name = os.path.basename(os.path.abspath(run_dir))
            of_folders.add(name)
        if not is_run(run_dir):
            where = "" if os.path.exists(run_dir) else ": there is no such folder"
            raise OutputDirectoryError(f"{run_dir} has no config.json of a run{where}.")
        runs.setdefault(name, []).append(run_dir)
    for name, run_dirs in runs.items():
        if name in of_folders and len(run_dirs) > 1:
            raise OutputDirectoryError(
                f"{name!r} is the name of several runs, {', '.join(run_dirs)}. Name each, as in "
                f"NAME:{run_dirs[0]}."
            )
        _check_seeds(name, run_dirs)
    return runs


def is_run(path: str | os.PathLike) -> bool:
    """Checks whether a directory has the settings of a run."""
    return os.path.exists(os.path.join(path, "config.json"))


def _check_seeds(name, run_dirs):
    if len(run_dirs) == 1:
        return
    seeds = [RunFiles(run_dir).settings().get("seed") for run_dir in run_dirs]
    for seed in seeds:
        if seeds.count(seed) > 1:
            raise OutputDirectoryError(
                f"{name!r} is the name of two runs with seed {seed}; runs of one name are those of "
                "several seeds."
            )
