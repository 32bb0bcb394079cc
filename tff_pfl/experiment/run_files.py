"""Reads the files of a run, for reports, evaluations and a user's own analysis."""

import csv
import functools
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tff_pfl.arguments.names import unknown_name
from tff_pfl.attacks.drawn import attackers_of
from tff_pfl.data import Partition
from tff_pfl.evaluation import direction
from tff_pfl.experiment.run_directory import (
    OutputDirectoryError,
    RunDirectory,
    read_json,
    read_settings,
    reading,
)

SESSIONS = "versions.json"
DIRECTIONS = "directions.json"
CODE = "code of "  # the prefix of the versions of users' modules


def write_directions(directory: RunDirectory, directions: Mapping[str, int]) -> None:
    """Writes the directions of metrics that differ from the rule by name, if there are any."""
    stated = {name: sign for name, sign in directions.items() if direction(name) != sign}
    if stated:
        directory.write_json(DIRECTIONS, stated)


class Session(NamedTuple):
    """The versions with which the rounds of a session were computed.

    Attributes:
        rounds_before: The number of rounds of earlier sessions.
        versions: See `tff_pfl.experiment.current_versions`.
    """

    rounds_before: int
    versions: Mapping[str, Any]

    @property
    def code(self) -> dict[str, str]:
        """The digests of a user's own modules, see `tff_pfl.experiment.versions.code_of`."""
        return {key: digest for key, digest in self.versions.items() if key.startswith(CODE)}


class ClientTable(NamedTuple):
    """The table of an evaluation, with a row for each evaluated client.

    Attributes:
        path: The file.
        columns: The float64 columns by name, such as `global/local_test/loss`. `client_id` has ids
            or names, int64 or text.
        undefined: Which values of a column are undefined, bool `[clients]` by name. Their cells are
            empty, and their NaN says nothing, unlike the NaN of a diverged model.
    """

    path: pathlib.Path
    columns: Mapping[str, np.ndarray]
    undefined: Mapping[str, np.ndarray]

    @property
    def has_examples(self) -> np.ndarray:
        """The clients with examples, as bool `[clients]`. The others do not count in means."""
        return self.columns["num_examples"] > 0

    def values(self, column: str) -> np.ndarray:
        """Returns a float64 column, for the clients that have examples.

        Raises:
            OutputDirectoryError: The column does not exist.
        """
        if column not in self.columns:
            raise OutputDirectoryError(unknown_name(f"column of {self.path}", column, self.columns))
        return self.columns[column][self.has_examples]


class RunFiles:
    """A reader for the files of a run, finished or not.

        rounds, matrices = RunFiles("runs/digits_pgfed").snapshots("alpha")

    If a file is missing or damaged, methods raise an `OutputDirectoryError` that names it, unless
    stated otherwise. Nothing in the directory is changed.
    """

    def __init__(self, path: str | os.PathLike):
        """Prepares the reader without reading files.

        Args:
            path: The run's output directory; see `RunDirectory`.
        """
        self.path = pathlib.Path(path)

    def settings(self) -> dict[str, Any]:
        """Returns the resolved config as JSON values, with infinities and NaN as numbers."""
        try:
            return read_settings(self.path)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise OutputDirectoryError(f"{self.path} has no config.json of a run.") from error

    def directions(self) -> dict[str, int]:
        """Returns 1 (more is better) or -1 by quantity, where the name does not tell it.

        Other quantities, and all of runs without the file, follow the rule of
        `tff_pfl.evaluation.direction`.
        """
        path = self.path / DIRECTIONS
        if not path.exists():
            return {}
        with reading(path):
            return {name: int(sign) for name, sign in read_json(path).items()}

    def sessions(self) -> list[Session]:
        """Returns the sessions of the run, in order; `[]` if they were not recorded."""
        path = self.path / SESSIONS
        if not path.exists():
            return []
        with reading(path):
            found = read_json(path)["sessions"]
            return [Session(it["rounds_before"], it["versions"]) for it in found]

    def attackers(self) -> tuple[int | str, ...]:
        """Returns the names, or ids, of the attackers of `config.attack`, in the order of ids."""
        settings, partition = self.settings(), self.partition()
        options, seed = settings.get("attack", {}), settings.get("seed", 0)
        with reading(self.path / "config.json"):
            return tuple(map(partition.name_of, attackers_of(options, partition.num_clients, seed)))

    def partition(self) -> Partition:
        """Returns the partition of the examples among clients.

        Raises:
            PartitionFileError: The file is damaged.
        """
        try:
            return Partition.load(str(self.path / "partition.npz"))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise OutputDirectoryError(
                f"{self.path} has no partition.npz, the partition of the run's examples."
            ) from error

    def metrics(self) -> dict[str, np.ndarray]:
        """Returns `metrics.csv`: float64 `[rounds]` by name, NaN where a round has no number."""
        return _read_rounds(self.path / "metrics.csv")

    def timings(self) -> dict[str, np.ndarray]:
        """Returns `timings.csv`: seconds as float64 `[rounds]`, by name."""
        return _read_rounds(self.path / "timings.csv")

    def evaluated_rounds(self) -> list[int]:
        """Returns the rounds that have a table of clients, in ascending order; at least one."""
        return list(self._tables())

    def clients(self, round_num: int | None = None) -> ClientTable:
        """Returns the table of clients of an evaluation, by default of the last one."""
        paths = self._tables()
        if round_num is None:
            round_num = max(paths)
        if round_num not in paths:
            rounds = ", ".join(map(str, paths))
            raise OutputDirectoryError(
                f"{self.path} was not evaluated at round {round_num}, but at {rounds}."
            )
        cells = _read_cells(paths[round_num], ("client_id", "num_examples"))
        with reading(paths[round_num]):
            undefined = {
                name: np.array([cell == "" for cell in column], bool)
                for name, column in cells.items()
                if "/" in name
            }
            columns = {
                name: _column(name, column, "nan" if name in undefined else "")
                for name, column in cells.items()
            }
            columns["client_id"] = columns["client_id"].astype(self._kind_of_names)
        return ClientTable(paths[round_num], columns, undefined)

    @functools.cached_property
    def _kind_of_names(self) -> type:
        """The type of the clients' names or ids, text or int64, which a CSV file does not tell."""
        path = self.path / "partition.npz"
        if not path.exists():
            return np.int64
        with reading(path), np.load(path) as content:
            are_text = "names" in content and content["names"].dtype.kind == "U"
        return np.str_ if are_text else np.int64

    def snapshot_names(self) -> list[str]:
        """Returns the names of the arrays of the run's snapshots."""
        path = next(iter(self._snapshots().values()))
        with reading(path), np.load(path) as snapshot:
            return list(snapshot)

    def snapshots(self, name: str = "alpha") -> tuple[np.ndarray, list[np.ndarray]]:
        """Returns `(rounds, arrays)`: the array of each snapshot, and the rounds of the snapshots.

        Args:
            name: The name of the array, which the algorithm chooses; see `snapshot_names`.
        """
        arrays = []
        paths = self._snapshots()
        for path in paths.values():
            with reading(path), np.load(path) as snapshot:
                if name not in snapshot:
                    raise OutputDirectoryError(
                        unknown_name(f"array of {path}", name, list(snapshot))
                    )
                arrays.append(snapshot[name])
        return np.array(list(paths)), arrays

    def _tables(self):
        return self._files_of_rounds("clients/round_*.csv", "the run was not evaluated yet")

    def _snapshots(self):
        reason = "its algorithm takes no snapshots, or the run was not evaluated yet"
        return self._files_of_rounds("snapshots/round_*.npz", reason)

    def _files_of_rounds(self, pattern, reason) -> dict[int, pathlib.Path]:
        """Returns the files that match a pattern, by round; without any, `reason` explains it."""
        files = [(path.stem.removeprefix("round_"), path) for path in self.path.glob(pattern)]
        found = dict(sorted((int(number), path) for number, path in files if number.isdecimal()))
        if not found:
            raise OutputDirectoryError(f"{self.path} has no {pattern}: {reason}.")
        return found


def _read_rounds(path: pathlib.Path) -> dict[str, np.ndarray]:
    try:
        cells = _read_cells(path, ("round",), grows=True)
        with reading(path):
            return {name: _column(name, column, "nan") for name, column in cells.items()}
    except FileNotFoundError as error:
        raise OutputDirectoryError(f"There is no {path}: no round was finished.") from error


def _read_cells(path, needed, grows=False) -> dict[str, Sequence[str]]:
    """Reads the texts of columns by name.

    If a file `grows`, a full disk or a killed process may have cut off its last line.
    """
    with reading(path), open(path, newline="") as file:
        lines = list(file)
        if lines and not lines[-1].endswith("\n"):
            if not grows:
                raise ValueError("its last line is cut off")
            lines.pop()
        names, *rows = list(csv.reader(lines)) or [[]]
        missing = [name for name in needed if name not in names]
        if missing:
            raise ValueError(f"it has no column {' or '.join(missing)}")
        if any(len(row) != len(names) for row in rows):
            raise ValueError("its rows have different numbers of cells")
        columns = zip(*rows, strict=True) if rows else [()] * len(names)
        return dict(zip(names, columns, strict=True))


def _column(name, cells, empty) -> np.ndarray:
    """Returns float64, with `empty` for empty cells; of names or ids of clients, text."""
    if name == "client_id":
        return np.array(cells, np.str_)
    return np.array([cell or empty for cell in cells], np.float64)
