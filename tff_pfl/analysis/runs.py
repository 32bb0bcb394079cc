"""Finds the folders of runs and studies to analyse, and gives them labels."""

import dataclasses
import os
import pathlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tff_pfl.config.study import load_study
from tff_pfl.experiment.run_directory import OutputDirectoryError, read_json, reading
from tff_pfl.experiment.run_files import RunFiles
from tff_pfl.experiment.summary import finished_summary

STUDY = "study.json"
"""The name of the record in a study's folder: its title, its variants and their runs, the settings
that tuning has chosen, and the flags of each run by its folder."""

Path = str | os.PathLike


@dataclasses.dataclass(frozen=True)
class Runs:
    """Runs by labels. Runs of one label differ in their seeds.

    Attributes:
        title: The title of tables and pages.
        folders: The existing output directories of each label. The list may be empty.
        planned: The planned number of runs of each label.
        baseline: The label that seconds are relative to.
        chosen: The settings that tuning has chosen, by labels; empty without tuning.
    """

    title: str
    folders: Mapping[str, Sequence[pathlib.Path]]
    planned: Mapping[str, int]
    baseline: str
    chosen: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __iter__(self) -> Iterator[tuple[str, pathlib.Path]]:
        """Iterates over `(label, folder)` of all runs."""
        return ((label, path) for label, paths in self.folders.items() for path in paths)

    @property
    def finished(self) -> "Runs":
        """The same labels with only the finished runs."""
        folders = {
            label: [path for path in paths if finished_summary(path) is not None]
            for label, paths in self.folders.items()
        }
        return dataclasses.replace(self, folders=folders)

    @property
    def directions(self) -> dict[str, int]:
        """The directions that metrics of the runs state; see `RunFiles.directions`.

        Raises:
            OutputDirectoryError: Two runs state opposite directions of a quantity.
        """
        found = {}
        for _, path in self:
            for quantity, sign in RunFiles(path).directions().items():
                if found.setdefault(quantity, sign) != sign:
                    raise OutputDirectoryError(
                        f"More of {quantity!r} is better in some of the runs and worse in {path}. "
                        "Compare runs of one task."
                    )
        return found


def find_runs(source: "Runs | Path | Iterable[Path] | Mapping[str, Iterable[Path]]") -> Runs:
    """Finds the runs that a caller or a command line names.

    Args:
        source: One or several folders: of a run, of runs, or of a study. A run's label is the name
            of its folder, or NAME in `NAME:DIR`. Alternatively a study's file followed by the
            study's folder, or a mapping from labels to folders of runs.

    Raises:
        OutputDirectoryError: A run does not exist, or two runs of one label have the same seed.
        ValueError: A study's file is wrong; see `load_study`.
    """
    if isinstance(source, Runs):
        return source
    if isinstance(source, Mapping):
        return _joined([_single(label, *_several(paths)) for label, paths in source.items()])
    arguments = [os.fspath(argument) for argument in _several(source)]
    if len(arguments) == 2 and re.search(r"\.py(:|$)", arguments[0]):
        return _of_study(arguments[1], load_study(arguments[0]).record())
    return _joined([_named(argument) for argument in arguments])


def _several(paths):
    return [paths] if isinstance(paths, str | os.PathLike) else list(paths)


def _single(label: str, *paths: Path) -> Runs:
    paths = list(map(pathlib.Path, paths))
    for path in paths:
        if not is_run(path):
            where = "" if path.exists() else ": there is no such folder"
            raise OutputDirectoryError(f"{path} has no config.json of a run{where}.")
    return Runs(label, {label: paths}, {label: len(paths)}, label)


def _named(argument: str) -> Runs:
    """Returns the runs that one argument of a command line names."""
    name, _, folder = ("", "", argument) if os.path.isdir(argument) else argument.rpartition(":")
    path = pathlib.Path(folder)
    if (path / STUDY).exists():
        return _of_study(path, read_record(path))
    inside = [] if is_run(path) else sorted(filter(is_run, path.glob("*")))
    return _joined([_single(name or _name(run), run) for run in inside or [path]])


def is_run(path: Path) -> bool:
    """Checks whether a folder belongs to a run, which may have just begun."""
    return os.path.exists(os.path.join(path, "config.json"))


def _name(path: Path) -> str:
    """Returns the name of a run's folder, or of its parent if it is a folder such as `seed0`."""
    path = pathlib.Path(os.path.abspath(path))
    return path.parent.name if re.fullmatch(r"seed\d+", path.name) else path.name


def read_record(root: Path) -> dict[str, Any]:
    """Returns the record of a study's folder, or an empty record if the file does not exist.

    Raises:
        OutputDirectoryError: The record is damaged.
    """
    path = pathlib.Path(root, STUDY)
    return read_json(str(path)) if path.exists() else {"flags": {}, "chosen": {}}


def _of_study(root: Path, record: Mapping[str, Any]) -> Runs:
    with reading(os.path.join(root, STUDY)):
        planned = {
            label: [pathlib.Path(root, folder) for folder in folders]
            for label, folders in record["variants"].items()
        }
        return Runs(
            record["title"],
            {label: list(filter(is_run, folders)) for label, folders in planned.items()},
            {label: len(folders) for label, folders in planned.items()},
            record["baseline"],
            read_record(root)["chosen"],
        )


def _joined(parts: Sequence[Runs]) -> Runs:
    """Joins runs. Runs with equal labels are different seeds of one label."""
    folders, planned, chosen = {}, Counter(), {}
    for part in parts:
        for label, paths in part.folders.items():
            folders.setdefault(label, []).extend(paths)
        planned.update(part.planned)
        chosen |= part.chosen
    for label, paths in folders.items():
        seeds = [seed_of(path) for path in paths] if len(paths) > 1 else []
        if len(set(seeds)) < len(seeds):
            raise OutputDirectoryError(
                f"{label!r} has two runs with the same seed: {', '.join(map(str, paths))} have the "
                f"seeds {seeds}. Runs of one name need different seeds; rename one as NAME:DIR."
            )
    title = "; ".join(dict.fromkeys(part.title for part in parts))
    studies = [part.baseline for part in parts if len(part.folders) > 1]
    return Runs(title, folders, planned, (studies or list(folders))[0], chosen)


def seed_of(path: Path) -> int:
    """Returns the seed of a run: `config.seed`, or 0 if its settings have none."""
    return RunFiles(path).settings().get("seed", 0)
