"""Reads the files of a run, for reports, evaluations, and a user's own analysis."""

import csv
import os
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tff_pfl.clients.attackers import attackers_of
from tff_pfl.data import Partition
from tff_pfl.experiment.run_directory import OutputDirectoryError, read_json, read_settings, reading
from tff_pfl.names import unknown_name

SESSIONS = "versions.json"
CODE = "code of "  # a module of a user's own, in the names of versions


class Session(NamedTuple):
    """The versions that the rounds of a run were computed with, up to the next session.

    Attributes:
        rounds_before: Rounds that earlier sessions did.
        versions: See `tff_pfl.experiment.current_versions`.
    """

    rounds_before: int
    versions: Mapping[str, Any]

    @property
    def code(self) -> dict[str, str]:
        """The versions of a user's own modules, see `tff_pfl.experiment.versions.code_of`."""
        return {name: of for name, of in self.versions.items() if name.startswith(CODE)}


class ClientTable(NamedTuple):
    """The table of an evaluation, a row for each client that was evaluated.

    Attributes:
        path: The file.
        columns: float64 columns by name, as `global/local_test/loss`.
    """

    path: pathlib.Path
    columns: Mapping[str, np.ndarray]

    @property
    def has_examples(self) -> np.ndarray:
        """Returns bool `[clients]`; clients without examples count in no mean."""
        return self.columns["num_examples"] > 0

    def values(self, column: str) -> np.ndarray:
        """Returns a float64 column of the clients that have examples.

        Raises:
            OutputDirectoryError: If there is no such column.
        """
        if column not in self.columns:
            raise OutputDirectoryError(unknown_name(f"column of {self.path}", column, self.columns))
        return self.columns[column][self.has_examples]


class RunFiles:
    """The files of a run, finished or not; nothing in its directory is changed.

        rounds, matrices = RunFiles("runs/digits_pgfed").snapshots("alpha")

    A file that is missing or damaged is an `OutputDirectoryError` that names it, unless a method
    says otherwise.
    """

    def __init__(self, path: str | os.PathLike):
        """Reads nothing yet.

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

    def sessions(self) -> list[Session]:
        """Returns the sessions of the run, in order; none if it did not record any."""
        path = self.path / SESSIONS
        if not path.exists():
            return []
        with reading(path):
            found = read_json(path)["sessions"]
            return [Session(of["rounds_before"], of["versions"]) for of in found]

    def attackers(self) -> tuple[int, ...]:
        """Returns the ids of the clients of `config.attack`, in ascending order."""
        settings, num_clients = self.settings(), self.partition().num_clients
        with reading(self.path / "config.json"):
            return attackers_of(settings.get("attack", {}), num_clients, settings.get("seed", 0))

    def partition(self) -> Partition:
        """Returns who owns which examples.

        Raises:
            PartitionFileError: If the file is damaged.
        """
        try:
            return Partition.load(str(self.path / "partition.npz"))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise OutputDirectoryError(
                f"{self.path} has no partition.npz, which says whose examples are whose."
            ) from error

    def metrics(self) -> dict[str, np.ndarray]:
        """Returns float64 `[rounds]` by name, of `metrics.csv`; NaN where a round has no number."""
        return _read_rounds(self.path / "metrics.csv")

    def timings(self) -> dict[str, np.ndarray]:
        """Returns seconds, as `metrics`, of `timings.csv`."""
        return _read_rounds(self.path / "timings.csv")

    def evaluated_rounds(self) -> list[int]:
        """Returns the rounds with a table of clients, in ascending order; one at least."""
        return list(self._tables())

    def clients(self, round_num: int | None = None) -> ClientTable:
        """Returns the table of the clients at an evaluation, by default at the last."""
        paths = self._tables()
        if round_num is None:
            round_num = max(paths)
        if round_num not in paths:
            rounds = ", ".join(map(str, paths))
            raise OutputDirectoryError(
                f"{self.path} was not evaluated at round {round_num}, but at {rounds}."
            )
        columns = _read_table(paths[round_num], ("client_id", "num_examples"))
        return ClientTable(paths[round_num], columns)

    def snapshot_names(self) -> list[str]:
        """Returns the names of the arrays of the run's snapshots."""
        path = next(iter(self._snapshots().values()))
        with reading(path), np.load(path) as snapshot:
            return list(snapshot)

    def snapshots(self, name: str = "alpha") -> tuple[np.ndarray, list[np.ndarray]]:
        """Returns `(rounds, arrays)`: one array of the run's snapshots, at each evaluation.

        Args:
            name: The name of the array, as the algorithm calls it.
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
        return self._files_of_rounds("clients/round_*.csv", "it was not evaluated yet")

    def _snapshots(self):
        reason = "its algorithm has nothing to show, or it was not evaluated yet"
        return self._files_of_rounds("snapshots/round_*.npz", reason)

    def _files_of_rounds(self, pattern, why_not) -> dict[int, pathlib.Path]:
        """Returns the files of a pattern by their rounds, in ascending order; one at least."""
        files = [(path.stem.removeprefix("round_"), path) for path in self.path.glob(pattern)]
        found = dict(sorted((int(number), path) for number, path in files if number.isdecimal()))
        if not found:
            raise OutputDirectoryError(f"{self.path} has no {pattern}: {why_not}.")
        return found


def _read_rounds(path: pathlib.Path) -> dict[str, np.ndarray]:
    try:
        return _read_table(path, ("round",), empty="nan", grows=True)
    except FileNotFoundError as error:
        raise OutputDirectoryError(f"There is no {path}: no round was done.") from error


def _read_table(path, needed, empty="", grows=False) -> dict[str, np.ndarray]:
    """Reads float64 columns by name; `empty` replaces empty cells.

    The last line of a file that `grows` may be cut off, by a full disk or a kill.
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
        rows = [[cell or empty for cell in row] for row in rows]
        columns = np.array(rows, np.float64).reshape(-1, len(names)).T
    return dict(zip(names, columns, strict=True))
