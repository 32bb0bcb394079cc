"""Which runs are analysed: folders of runs and studies, by the labels they are shown by."""

import dataclasses
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tff_pfl.analysis.study import load_study
from tff_pfl.experiment.run_directory import OutputDirectoryError, read_json, reading
from tff_pfl.experiment.run_files import RunFiles
from tff_pfl.experiment.summary import finished_summary

VARIANTS = "variants.json"
"""The file in a study's folder with its title, variants, their runs and what tuning has chosen."""

Path = str | os.PathLike


@dataclasses.dataclass(frozen=True)
class Runs:
    """Runs by labels; those of one label differ in their seeds.

    Attributes:
        title: Of tables and pages.
        folders: The output directories that exist, by labels; a label may have none yet.
        planned: How many runs each label is to have.
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
        """The same with the finished runs alone."""
        folders = {
            label: [path for path in paths if finished_summary(path) is not None]
            for label, paths in self.folders.items()
        }
        return dataclasses.replace(self, folders=folders)


def find_runs(source: "Runs | Path | Iterable[Path] | Mapping[str, Iterable[Path]]") -> Runs:
    """Finds the runs that a caller or a command line names.

    Args:
        source: One or several of: a run's folder, which is named after the folder, or a folder of
            such folders, both also as `NAME:DIR` or `NAME=DIR`; a study's folder. Or a study's file
            and then its folder. Or folders of runs by labels.

    Raises:
        OutputDirectoryError: If there is no such run, or two runs of one label have the same seed.
        ValueError: If a study's file is wrong, see `load_study`.
    """
    if isinstance(source, Runs):
        return source
    if isinstance(source, Mapping):
        given = ((label, path) for label, paths in source.items() for path in _several(paths))
        return _together([_one(label, path) for label, path in given], list(source))
    arguments = [os.fspath(argument) for argument in _several(source)]
    if len(arguments) == 2 and re.search(r"\.py(:|$)", arguments[0]):
        study = load_study(arguments[0])
        path = pathlib.Path(arguments[1], VARIANTS)
        chosen = read_json(str(path))["chosen"] if path.exists() else {}
        return _of_study(path, study.record() | {"chosen": chosen})
    return _together([_found(argument) for argument in arguments])


def _several(paths):
    return [paths] if isinstance(paths, str | os.PathLike) else list(paths)


def _one(label: str, path: Path) -> Runs:
    path = pathlib.Path(path)
    if not _is_run(path):
        where = "" if path.exists() else ": there is no such folder"
        raise OutputDirectoryError(f"{path} has no config.json of a run{where}.")
    return Runs(label, {label: [path]}, {label: 1}, label)


def _found(argument: str) -> Runs:
    """What one argument of a command line names."""
    name, folder = "", argument
    if not os.path.isdir(argument):
        for separator in re.finditer("[:=]", argument):
            if separator.start() and os.path.isdir(argument[separator.end() :]):
                name, folder = argument[: separator.start()], argument[separator.end() :]
                break
    path = pathlib.Path(folder)
    if (path / VARIANTS).exists():
        return _of_study(path / VARIANTS, read_json(str(path / VARIANTS)))
    inside = [] if _is_run(path) else sorted(filter(_is_run, path.glob("*")))
    return _together([_one(name or _name(run), run) for run in inside or [path]])


def _is_run(path: Path) -> bool:
    return os.path.exists(os.path.join(path, "config.json"))


def _name(path: Path) -> str:
    """The name of a run's folder, or of the one above `seed0`."""
    path = pathlib.Path(os.path.abspath(path))
    return path.parent.name if re.fullmatch(r"seed\d+", path.name) else path.name


def _of_study(path: pathlib.Path, record: Mapping[str, Any]) -> Runs:
    with reading(path):
        planned = {
            label: [path.parent / folder for folder in folders]
            for label, folders in record["variants"].items()
        }
        return Runs(
            record["title"],
            {label: list(filter(_is_run, folders)) for label, folders in planned.items()},
            {label: len(folders) for label, folders in planned.items()},
            record["baseline"],
            dict(record["chosen"]),
        )


def _together(parts: Sequence[Runs], labels: Iterable[str] = ()) -> Runs:
    """Joins runs; those of equal labels are seeds of one another. Some labels may have none."""
    folders, planned, chosen = {label: [] for label in labels}, dict.fromkeys(labels, 0), {}
    for part in parts:
        for label, paths in part.folders.items():
            folders.setdefault(label, []).extend(paths)
            planned[label] = planned.get(label, 0) + part.planned[label]
        chosen |= part.chosen
    for label, paths in folders.items():
        seeds = [seed_of(path) for path in paths] if len(paths) > 1 else []
        for path, seed in zip(paths, seeds, strict=False):
            if seeds.count(seed) > 1:
                raise OutputDirectoryError(
                    f"{label!r} has two runs with seed {seed}, one of them {path}. Runs of one "
                    "name differ in their seeds; name others apart, as NAME:DIR."
                )
    title = "; ".join(dict.fromkeys(part.title for part in parts))
    studies = [part.baseline for part in parts if len(part.folders) > 1]
    return Runs(title, folders, planned, (studies or list(folders))[0], chosen)


def seed_of(path: Path) -> int:
    """Returns the seed of a run: `config.seed`, or 0 where its settings do not say."""
    return RunFiles(path).settings().get("seed", 0)
