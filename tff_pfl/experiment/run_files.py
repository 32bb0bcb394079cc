"""Reads the files of a run, for reports, evaluations and a user's own analysis."""

import csv
import functools
import io
import os
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tff_pfl.arguments.names import unknown_name
from tff_pfl.arguments.quantities import Quantities, Quantity
from tff_pfl.attacks.drawn import attackers_of
from tff_pfl.data import Partition
from tff_pfl.experiment.run_directory import (
    OutputDirectoryError,
    RunDirectory,
    read_json,
    read_settings,
    reading,
)
from tff_pfl.experiment.summary import Result, finished_summary

SESSIONS = "versions.json"
QUANTITIES = "quantities.json"
CODE = "code of "  # the prefix of the versions of users' modules


def write_quantities(directory: RunDirectory, quantities: Quantities) -> None:
    """Writes what a task states about its quantities."""
    content = {name: quantity._asdict() for name, quantity in quantities.items()}
    directory.write_json(QUANTITIES, content)


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


class CsvFile(NamedTuple):
    """The content of a CSV file.

    Attributes:
        path: The file.
        numbers: float64, NaN for empty cells. `client_id` has ids or names, int64 or text.
        is_empty: Which cells are empty: a round has no such number, or a quantity is undefined for
            a client. Their NaN says nothing, unlike the NaN of a diverged model.
    """

    path: pathlib.Path
    numbers: pd.DataFrame
    is_empty: pd.DataFrame

    def long(self, *keys: str) -> pd.DataFrame:
        """Returns a row for each number, with columns `name` and `value` beside the keys."""
        long, is_empty = (frame.melt([*keys], var_name="name") for frame in self[1:])
        return long[~is_empty["value"].astype(bool)]


class ClientTable(CsvFile):
    """The table of an evaluation, with a row for each evaluated client."""

    @property
    def has_examples(self) -> pd.Series:
        """The clients with examples, as bool. The others do not count in means."""
        return self.numbers["num_examples"] > 0

    def values(self, column: str) -> np.ndarray:
        """Returns a float64 column, for the clients that have examples.

        Raises:
            OutputDirectoryError: The column does not exist.
        """
        if column not in self.numbers:
            raise OutputDirectoryError(unknown_name(f"column of {self.path}", column, self.numbers))
        return self.numbers[column][self.has_examples].to_numpy()


class RunFiles:
    """A reader for the files of a run, finished or not, each of which it reads once.

        rounds, matrices = RunFiles("runs/digits_pgfed").snapshots("alpha")

    If a file is missing or damaged, an `OutputDirectoryError` names it, unless stated otherwise.
    Nothing in the directory is changed.
    """

    def __init__(self, path: str | os.PathLike):
        """Prepares the reader without reading files.

        Args:
            path: The run's output directory; see `RunDirectory`.
        """
        self.path = pathlib.Path(path).expanduser()
        self._clients: dict[int, ClientTable] = {}

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        """The resolved config as JSON values, with infinities and NaN as numbers."""
        try:
            return read_settings(self.path)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise OutputDirectoryError(f"{self.path} has no config.json of a run.") from error

    @property
    def seed(self) -> int:
        """`config.seed`, or 0 if the settings have none."""
        return self.settings.get("seed", 0)

    @functools.cached_property
    def quantities(self) -> Quantities:
        """The quantities that the run states; without the file, their names say what they are."""
        path = self.path / QUANTITIES
        if not path.exists():
            return Quantities()
        with reading(path):
            stated = read_json(path)
            return Quantities((name, Quantity(**facts)) for name, facts in stated.items())

    @functools.cached_property
    def summary(self) -> Result | None:
        """The result of the run; `None` if it is not finished or `summary.json` is damaged."""
        return finished_summary(self.path)

    @functools.cached_property
    def sessions(self) -> list[Session]:
        """The sessions of the run, in order; `[]` if they were not recorded."""
        path = self.path / SESSIONS
        if not path.exists():
            return []
        with reading(path):
            found = read_json(path)["sessions"]
            return [Session(it["rounds_before"], it["versions"]) for it in found]

    @functools.cached_property
    def attackers(self) -> tuple[int | str, ...]:
        """The names, or ids, of the attackers of `config.attack`, in the order of ids."""
        options, partition = self.settings.get("attack", {}), self.partition
        with reading(self.path / "config.json"):
            drawn = attackers_of(options, partition.num_clients, self.seed)
            return tuple(map(partition.name_of, drawn))

    @functools.cached_property
    def partition(self) -> Partition:
        """The partition of the examples among clients.

        Raises:
            PartitionFileError: The file is damaged.
        """
        try:
            return Partition.load(str(self.path / "partition.npz"))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise OutputDirectoryError(
                f"{self.path} has no partition.npz, the partition of the run's examples."
            ) from error

    @functools.cached_property
    def num_train_examples(self) -> pd.Series:
        """The number of training examples by the name or id of a client; empty without the file."""
        if not (self.path / "partition.npz").exists():
            return pd.Series(dtype=np.float64)
        partition = self.partition
        ids = map(partition.name_of, range(partition.num_clients))
        return pd.Series(np.diff(partition.train.offsets), list(ids))

    @property
    def metrics(self) -> pd.DataFrame:
        """`metrics.csv`, a row a round: float64 by name, NaN where a round has no number."""
        return self.metrics_file.numbers

    @functools.cached_property
    def metrics_file(self) -> CsvFile:
        """`metrics.csv` with its empty cells."""
        return _read_rounds(self.path / "metrics.csv")

    @functools.cached_property
    def timings(self) -> pd.DataFrame:
        """`timings.csv`, a row a round: seconds by name, NaN where a round lacks the part."""
        return _read_rounds(self.path / "timings.csv").numbers

    @functools.cached_property
    def evaluated_rounds(self) -> list[int]:
        """The rounds that have a table of clients, in ascending order; at least one."""
        return list(self._tables())

    def clients(self, round_num: int | None = None) -> ClientTable:
        """Returns the table of clients of an evaluation, by default of the last one."""
        if round_num is None:
            round_num = self.evaluated_rounds[-1]
        if round_num not in self.evaluated_rounds:
            rounds = ", ".join(map(str, self.evaluated_rounds))
            raise OutputDirectoryError(
                f"{self.path} was not evaluated at round {round_num}, but at {rounds}."
            )
        if round_num not in self._clients:
            path = self._tables()[round_num]
            table = ClientTable(*_read_csv(path, ("client_id", "num_examples")))
            with reading(path):
                ids = table.numbers["client_id"].astype(self._kind_of_names)
            self._clients[round_num] = table._replace(numbers=table.numbers.assign(client_id=ids))
        return self._clients[round_num]

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


def _read_rounds(path: pathlib.Path) -> CsvFile:
    try:
        found = _read_csv(path, ("round",), grows=True)
    except FileNotFoundError as error:
        raise OutputDirectoryError(f"There is no {path}: no round was finished.") from error
    with reading(path):
        rounds = found.numbers["round"].astype(int)
        found.numbers.set_index("round", verify_integrity=True)
    return found._replace(numbers=found.numbers.assign(round=rounds))


def _read_csv(path: pathlib.Path, needed: tuple[str, ...], grows: bool = False) -> CsvFile:
    """Reads a CSV file.

    If a file `grows`, a full disk or a killed process may have cut off its last line.
    """
    with reading(path):
        text = path.read_bytes().decode()  # "\r" alone does not end a line
        whole = text[: text.rfind("\n") + 1]
        if whole != text and not grows:
            raise ValueError("its last line is cut off")
        names, *rows = list(csv.reader(io.StringIO(whole, newline=""))) or [[]]
        missing = [name for name in needed if name not in names]
        if missing:
            raise ValueError(f"it has no column {' or '.join(missing)}")
        if any(len(row) != len(names) for row in rows):
            raise ValueError("its rows have different numbers of cells")
        cells = pd.DataFrame(rows, columns=names, dtype=object)
        types = dict.fromkeys(cells.columns.drop("client_id", errors="ignore"), np.float64)
        return CsvFile(path, cells.replace("", "nan").astype(types), cells == "")
