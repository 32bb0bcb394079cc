"""Reads runs and studies, once, as tidy pandas data frames.

from tff_pfl import analysis

runs = analysis.read("runs/quickstart")
last = runs.metrics[runs.metrics["round"] == runs.metrics["round"].max()]
"""

import dataclasses
import functools
import math
import os
import pathlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from tff_pfl.arguments.names import unknown_name
from tff_pfl.arguments.quantities import Quantities, Quantity
from tff_pfl.evaluation import MetricName
from tff_pfl.experiment.changes import flatten
from tff_pfl.experiment.run_directory import (
    OutputDirectoryError,
    has_begun,
    read_json,
    reading,
)
from tff_pfl.experiment.run_files import RunFiles
from tff_pfl.experiment.summary import Result

STUDY = "study.json"
"""The name of the record in a study's folder: its title, its variants and their runs, the settings
that tuning has chosen, and the flags of each run by its folder."""

SEPARATOR = " | "
"""Separates the two parts of a label, such as a method and its privacy."""

Path = str | os.PathLike
NAME = list(MetricName._fields)

_RUN = ["run", "label", "seed"]
_WARM_UP = 2  # The first rounds are slower, because they trace the graphs.


@dataclasses.dataclass(frozen=True, eq=False)
class Runs:
    """Runs by labels, as data frames. Runs of one label differ in their seeds.

    Every frame begins with the columns `run` (the folder), `label` and `seed`, and names a quantity
    by the columns `model`, `pool`, `quantity` (and `statistic`) of `tff_pfl.MetricName`. For a
    quantity that is not measured on a model, such as `bytes_up_per_client`, `quantity` is its whole
    name and the other columns are empty. Values are not in percent. A diverged model has NaN or
    infinite values. Each file is read once, when a frame needs it; an `OutputDirectoryError` names
    a file that is damaged or missing.

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
    _files: dict[str, RunFiles] = dataclasses.field(default_factory=dict, repr=False)

    def __iter__(self) -> Iterator[tuple[str, pathlib.Path]]:
        """Iterates over `(label, folder)` of all runs."""
        return ((label, path) for label, paths in self.folders.items() for path in paths)

    def files(self, run: Path) -> RunFiles:
        """Returns the reader of a run's folder."""
        return self._files.setdefault(str(run), RunFiles(run))

    @functools.cached_property
    def finished(self) -> "Runs":
        """The same labels with only the finished runs."""
        folders = {
            label: [path for path in paths if self.files(path).summary is not None]
            for label, paths in self.folders.items()
        }
        return dataclasses.replace(self, folders=folders)

    def only(self, labels: Iterable[str]) -> "Runs":
        """Returns the runs of some labels."""
        return dataclasses.replace(self, folders={it: self.folders[it] for it in labels})

    @functools.cached_property
    def quantities(self) -> Quantities:
        """The quantities that the runs state.

        Raises:
            OutputDirectoryError: More of a quantity is better in one run, and worse in another.
        """
        found = Quantities()
        for _, path in self:
            for name, quantity in self.files(path).quantities.items():
                if found.setdefault(name, quantity).better != quantity.better:
                    raise OutputDirectoryError(
                        f"More of {name!r} is better in some of the runs and worse in {path}. "
                        "Compare runs of one task."
                    )
        return found

    def quantity_of(self, rows: pd.DataFrame) -> Quantity:
        """Returns what the runs state about the quantity of rows that `select` returned."""
        (name,) = rows["quantity"].unique()
        return self.quantities[name]

    @functools.cached_property
    def metrics(self) -> pd.DataFrame:
        """The metrics of every round, of finished and unfinished runs: `round`, a name, `value`."""
        found = [
            _named(files.metrics_file.long("round").sort_values("round", kind="stable"), run)
            for run, files in self._each()
            if (files.path / "metrics.csv").exists()
        ]
        return _joined(found, ["round", *NAME, "value"])

    def clients(self, rounds: int | str = "last") -> pd.DataFrame:
        """Returns the quantities of each client that has examples, from `clients/round_*.csv`.

        Args:
            rounds: The number of a round, for the evaluation after it; "last"; "all"; or the name
                of an evaluation in `summary.json`, such as "best_on_validation" or "late_mean".

        Returns:
            Columns `round`, `client_id` (with the clients' names, if they have any),
            `num_examples` (those that were evaluated), `num_train_examples` (NaN for a run without
            `partition.npz`), a name and `value`. Quantities that are undefined for a client, as the
            area under the curve is for examples of one class, have no row.

        Raises:
            OutputDirectoryError: A run was not evaluated then.
        """
        found = []
        for run, files in self._each():
            for round_num in _rounds(files, rounds):
                long = files.clients(round_num).long("client_id", "num_examples")
                long["num_train_examples"] = long["client_id"].map(files.num_train_examples)
                found.append(_named(long[long["num_examples"] > 0], run, round=round_num))
        sizes = ["num_examples", "num_train_examples"]
        columns = ["round", "client_id", *sizes, *NAME[:-1], "value"]
        return _joined(found, columns).astype({"num_examples": int})

    @functools.cached_property
    def timings(self) -> pd.DataFrame:
        """The seconds of every round: `round`, `round_seconds` and the parts, or NaN."""
        found = [files.timings.assign(**run) for run, files in self._each()]
        columns = dict.fromkeys(name for frame in found for name in frame if name not in _RUN)
        return _joined(found, list(columns))

    @functools.cached_property
    def evaluations(self) -> pd.DataFrame:
        """The evaluations of finished runs: `evaluation`, such as "final", a name, `value`."""
        rows = [
            {**run, "evaluation": evaluation, **name._asdict(), "value": value}
            for run, _, result in self._each_finished()
            for evaluation, evaluated in result.evaluations.items()
            for name, value in evaluated.metrics.items()
        ]
        return pd.DataFrame(rows, columns=[*_RUN, "evaluation", *NAME, "value"])

    @functools.cached_property
    def summaries(self) -> pd.DataFrame:
        """The methods and the costs of finished runs, with a row for each run.

        Columns `algorithm` and `data`, the names in the config; `rounds`; `bytes_down` and
        `bytes_up`, which a client receives and sends in a round; `round_seconds`, the median
        without the first two rounds; `epsilon` of all rounds, 0 if clients send nothing and
        infinite without privacy.
        """
        rows = []
        for run, files, result in self._each_finished():
            numbers, timings = files.metrics, files.timings
            with reading(files.path):
                seconds = timings["round_seconds"]
                seconds = seconds[_WARM_UP if len(seconds) > _WARM_UP else 0 :]
                bytes_up = numbers["bytes_up_per_client"].iloc[-1]
                epsilon = numbers.get("privacy/epsilon", pd.Series(math.inf if bytes_up else 0.0))
                rows.append(
                    {
                        **run,
                        **{key: _choice(files.settings.get(key)) for key in ("algorithm", "data")},
                        "rounds": result.final.round_num,
                        "bytes_down": numbers["bytes_down_per_client"].iloc[-1],
                        "bytes_up": bytes_up,
                        "round_seconds": seconds.median(),
                        "epsilon": epsilon.iloc[-1],
                    }
                )
        numbers = ["rounds", "bytes_down", "bytes_up", "round_seconds", "epsilon"]
        return pd.DataFrame(rows, columns=[*_RUN, "algorithm", "data", *numbers])

    @functools.cached_property
    def settings(self) -> pd.DataFrame:
        """The resolved configs: `key` and `value`."""
        rows = [
            {**run, "key": key, "value": value}
            for run, files in self._each()
            for key, value in flatten(files.settings, ".").items()
        ]
        return pd.DataFrame(rows, columns=[*_RUN, "key", "value"])

    @functools.cached_property
    def versions(self) -> pd.DataFrame:
        """The recorded versions: `rounds_before`, `key` and `value`.

        A resumed run has rows for each session, which began after `rounds_before` rounds.
        """
        rows = [
            {**run, "rounds_before": session.rounds_before, "key": key, "value": value}
            for run, files in self._each()
            for session in files.sessions
            for key, value in session.versions.items()
        ]
        return pd.DataFrame(rows, columns=[*_RUN, "rounds_before", "key", "value"])

    def _each(self) -> Iterator[tuple[dict[str, Any], RunFiles]]:
        """Yields `({run, label, seed}, files)` for each run."""
        for label, path in self:
            files = self.files(path)
            yield {"run": str(path), "label": label, "seed": files.seed}, files

    def _each_finished(self) -> Iterator[tuple[dict[str, Any], RunFiles, Result]]:
        """Yields `({run, label, seed}, files, result)` for each finished run."""
        for run, files in self._each():
            if files.summary is not None:
                yield run, files, files.summary


def _named(long: pd.DataFrame, run: Mapping[str, Any], **columns: Any) -> pd.DataFrame:
    """Splits the column `name` into its parts, and adds columns of one value."""
    names = long["name"].unique()
    parts = pd.DataFrame(list(map(MetricName.parse, names)), names, NAME)
    return long.join(parts, on="name").assign(**run, **columns)


def _joined(frames: Sequence[pd.DataFrame], columns: list[str]) -> pd.DataFrame:
    columns = [*_RUN, *columns]
    return pd.concat(frames or [pd.DataFrame(columns=columns)], ignore_index=True)[columns]


def _rounds(files: RunFiles, rounds: int | str) -> list[int]:
    if rounds in ("all", "last"):
        return files.evaluated_rounds[-1 if rounds == "last" else 0 :]
    if not isinstance(rounds, str):
        return [rounds]
    evaluated = {} if files.summary is None else files.summary.evaluations
    if rounds not in evaluated:
        message = unknown_name(f"evaluation of {files.path}", rounds, evaluated)
        if rounds == "best_on_validation":
            message = (
                f"{files.path} has no evaluation {rounds!r}. It needs validation examples that are "
                "evaluated (validation=True)."
            )
        raise OutputDirectoryError(message)
    return list(evaluated[rounds].rounds)


def _choice(section: Any) -> Any:
    """Returns the name in a section of the settings."""
    return section.get("name") if isinstance(section, Mapping) else section


def read(
    source: Path | Iterable[Path] | Mapping[str, Iterable[Path]],
    record: Mapping[str, Any] | None = None,
) -> Runs:
    """Finds the runs that a caller or a command line names.

    Args:
        source: One or several folders: of a run, of runs, or of a study. A run's label is the name
            of its folder, or NAME in `NAME:DIR`. Alternatively a mapping from labels to folders of
            runs.
        record: The record of the study in the folder, in place of its `study.json`.

    Raises:
        OutputDirectoryError: A run does not exist, or two runs of one label have the same seed.
    """
    if record is not None:
        (root,) = _several(source)
        return _of_study(os.path.expanduser(root), record)
    if isinstance(source, Mapping):
        return _merged([_single(label, *_several(paths)) for label, paths in source.items()])
    return _merged([_of_argument(os.fspath(argument)) for argument in _several(source)])


def _several(paths):
    return [paths] if isinstance(paths, str | os.PathLike) else list(paths)


def _single(label: str, *paths: Path) -> Runs:
    folders = [pathlib.Path(path).expanduser() for path in paths]
    for path in folders:
        if not is_run(path):
            where = "" if path.exists() else ": there is no such folder"
            raise OutputDirectoryError(f"{path} has no config.json of a run{where}.")
    return Runs(label, {label: folders}, {label: len(folders)}, label)


def _of_argument(argument: str) -> Runs:
    """Returns the runs that one argument of a command line names."""
    name, _, folder = ("", "", argument) if os.path.isdir(argument) else argument.rpartition(":")
    path = pathlib.Path(folder).expanduser()
    if (path / STUDY).exists():
        return _of_study(path, read_record(path))
    inside = [] if is_run(path) else sorted(filter(is_run, path.glob("*")))
    inside = list(filter(has_begun, inside)) or inside
    return _merged([_single(name or _name(run), run) for run in inside or [path]])


def is_run(path: Path) -> bool:
    """Checks whether a folder belongs to a run, which may have just begun."""
    return os.path.exists(os.path.join(path, "config.json"))


def _name(path: Path) -> str:
    """Returns the name of a run's folder, or of its parent if it is named by a seed."""
    path = pathlib.Path(os.path.abspath(path))
    is_named_by_seed = re.fullmatch(r"seed\d+(-[0-9a-f]{8})?", path.name)
    return path.parent.name if is_named_by_seed else path.name


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


def _merged(parts: Sequence[Runs]) -> Runs:
    """Merges runs. Runs with equal labels are different seeds of one label."""
    folders: dict[str, list[pathlib.Path]] = {}
    planned: Counter[str] = Counter()
    chosen: dict[str, str] = {}
    for part in parts:
        for label, paths in part.folders.items():
            folders.setdefault(label, []).extend(paths)
        planned.update(part.planned)
        chosen |= part.chosen
    title = "; ".join(dict.fromkeys(part.title for part in parts))
    studies = [part.baseline for part in parts if len(part.folders) > 1]
    runs = Runs(title, folders, planned, (studies or list(folders))[0], chosen)
    for label, paths in folders.items():
        seeds = [runs.files(path).seed for path in paths] if len(paths) > 1 else []
        if len(set(seeds)) < len(seeds):
            raise OutputDirectoryError(
                f"{label!r} has two runs with the same seed: {', '.join(map(str, paths))} have the "
                f"seeds {seeds}. Runs of one name need different seeds; rename one as NAME:DIR."
            )
    return runs
