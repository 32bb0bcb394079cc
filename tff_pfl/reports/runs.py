"""Which runs are shown, by the names that they are shown by."""

import os
from collections.abc import Iterable, Mapping, Sequence

from tff_pfl.experiment import OutputDirectoryError, RunFiles

Runs = Mapping[str, Sequence[str | os.PathLike]]
"""Output directories by the name to show: those of a name differ in their seeds."""


def named_runs(arguments: Iterable[str]) -> dict[str, list[str]]:
    """The runs of a command line, `NAME:DIR` each.

    Several runs of one name are those of several seeds.

    Raises:
        OutputDirectoryError: If one is not of this form, or two of a name have the same seed.
    """
    runs = {}
    for argument in arguments:
        name, _, run_dir = argument.partition(":")
        if not name or not run_dir:
            where = "" if os.path.exists(argument) else ", which is no folder either"
            raise OutputDirectoryError(f"Each run is NAME:DIR, found {argument!r}{where}.")
        if not os.path.exists(os.path.join(run_dir, "config.json")):
            raise OutputDirectoryError(f"{run_dir} has no config.json of a run.")
        runs.setdefault(name, []).append(run_dir)
    for name, run_dirs in runs.items():
        _check_seeds(name, run_dirs)
    return runs


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
