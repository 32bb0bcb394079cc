"""Writes the metrics of a run to CSV files and TensorBoard."""

import csv
import json
import os
import pathlib
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.experiment.run_directory import OutputDirectoryError, RunDirectory, reading
from tff_pfl.output.files import save_compressed, whole_file, writing

# These numbers differ between two runs of the same config on the same machine.
WHOLE_SECONDS = ("round_seconds", "evaluation_seconds")
PART_SECONDS = tuple(f"{part}_seconds" for part in ("select", "compute", "write", "update"))
TIMINGS = (*WHOLE_SECONDS, *PART_SECONDS)

NEW_CLIENTS = "new_clients.csv"
_ROUND_FILE = re.compile(r"(?:clients/round_(\d{6,})\.csv|snapshots/round_(\d{6,})\.npz)")


class MetricsLog(tff.program.ReleaseManager[Mapping[str, float], int]):
    """A release manager that writes a run's metrics to its directory, round after round.

    `timings.csv` receives the `TIMINGS`, `metrics.csv` all other numbers. A resumed run drops the
    rows after its last checkpoint from both files. TensorBoard shows steps twice that are released
    again. `tff.program.CSVFileReleaseManager` fails on a row that is cut off, does not detect that
    a file was changed, and does not wait for the disk.

    A checkpoint has `released`, the checksums of all files that were written before it. A run can
    only be resumed with the files that it left.

    Attributes:
        directory: The directory of the run.
        rounds: The number of released rounds.
    """

    def __init__(self, directory: RunDirectory, rounds_done: int, released: Mapping[str, Any]):
        """Opens the log and deletes the files of rounds that were not committed.

        `new_clients.csv` is kept until the run ends again.

        Args:
            directory: The directory of the run.
            rounds_done: The number of rounds up to the checkpoint.
            released: The value of `released` at the checkpoint; empty for a new run.

        Raises:
            OutputDirectoryError: A released file is missing or has changed.
        """
        self.directory = directory
        self.rounds = released.get("rounds", rounds_done)
        self._tables = {
            name: _Table(directory.file(name), self.rounds, released.get(name, (0, 0))[1])
            for name in ("metrics.csv", "timings.csv")
        }
        others = ("rounds", *self._tables)
        self._files = {name: sum_ for name, sum_ in released.items() if name not in others}
        for name, checksum in self._files.items():
            if not directory.has(name) or _checksum(directory.file(name)) != checksum:
                raise changed_file_error(directory.file(name))
        self._delete_later_rounds()
        self._tensorboard = tff.program.TensorBoardReleaseManager(directory.file("tensorboard"))

    @property
    def released(self) -> dict[str, Any]:
        """The number of rounds and the checksums of all files, as JSON values.

        Tables with a row for each round have two checksums, see `_Table`.
        """
        tables = {name: table.checksums for name, table in self._tables.items()}
        return {"rounds": self.rounds, **tables, **self._files}

    def released_before_the_end(self, rounds: int) -> dict[str, Any]:
        """Returns `released` without the files that a run writes only at its end.

        Args:
            rounds: The number of rounds that stay released: all, or all except the last one.
        """
        released = self.released
        released.pop(NEW_CLIENTS, None)
        if rounds < self.rounds:
            for name, table in self._tables.items():
                released[name] = (0, table.checksums[0])
            for name in self._files:
                if _round_of(name) == self.rounds:
                    del released[name]
            released["rounds"] = rounds
        return released

    def record(self, name: str) -> None:
        """Adds a file that was written elsewhere to the released files."""
        self._files[name] = _checksum(self.directory.file(name))

    def _delete_later_rounds(self):
        root = pathlib.Path(self.directory.path)
        for path in root.glob("*/round_*"):
            if _round_of(path.relative_to(root).as_posix()) > self.rounds:
                path.unlink()

    async def release(self, value: Mapping[str, float], key: int) -> None:
        """Writes the numbers of a round to the CSV files and to TensorBoard.

        Args:
            value: The numbers, by name.
            key: The number of rounds done, from 1.
        """
        metrics = {name: number for name, number in value.items() if name not in TIMINGS}
        timings = {name: value[name] for name in TIMINGS if name in value}
        self._tables["metrics.csv"].append({"round": key, **metrics})
        self._tables["timings.csv"].append({"round": key, **timings})
        self.rounds = key
        try:
            await self._tensorboard.release(value, key)
        except tf.errors.OpError as error:  # its subclass depends on the disk's error
            reason = error.message.splitlines()[0].rpartition("; ")[2]
            raise OSError(f"{self.directory.file('tensorboard')}: {reason}") from error

    def release_table(self, name: str, columns: Mapping[str, np.ndarray]) -> None:
        """Writes the table of an evaluation, with a row for each client.

        Args:
            name: The name of the file.
            columns: The columns, of equal length, by name.
        """
        write_table(self.directory.file(name), columns)
        self.record(name)

    def release_snapshot(self, round_num: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Writes the snapshot of an algorithm, completely or not at all."""
        name = f"snapshots/round_{round_num:06d}.npz"
        path = self.directory.file(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with whole_file(path, "wb") as file:
            save_compressed(file, arrays)
        self.record(name)


class _Table:
    """A CSV file to which each round appends a row, and later rounds may add columns.

    Attributes:
        checksums: The checksum of all rows except the last, and the checksum of all rows.
    """

    def __init__(self, path: str, rounds_done: int, checksum: int):
        self._path = path
        self._columns = ["round"]
        self.checksums = (0, 0)
        rows = []
        if rounds_done and os.path.exists(path):
            columns, rows = self._read()
            # The row of an uncommitted round may be cut off. It is dropped unread, and so are the
            # columns that it added.
            rows = rows[:rounds_done]
            filled = {i for row in rows for i, cell in enumerate(row[: len(columns)]) if cell}
            self._columns = [columns[i] for i in sorted(filled)]
            rows = [[row[i] for i in sorted(filled) if i < len(row)] for row in rows]
        for row in rows:
            self._count(zip(self._columns, row, strict=False))
        if self.checksums[1] != checksum:
            raise changed_file_error(path)
        _write(path, self._columns, rows)

    def append(self, row: Mapping) -> None:
        """Appends a row and waits for the disk."""
        new = [name for name in row if name not in self._columns]
        if new:
            _, rows = self._read()
            self._columns += new
            _write(self._path, self._columns, rows)
        with writing(self._path), open(self._path, "a", newline="") as file:
            csv.DictWriter(file, self._columns).writerow(row)
            file.flush()
            os.fsync(file.fileno())
        self._count((name, str(value)) for name, value in row.items())

    def _count(self, cells):
        """Adds a row to the checksums, without empty cells, whose columns came later."""
        cells = sorted(cell for cell in cells if cell[1])
        checksum = self.checksums[1]
        self.checksums = (checksum, zlib.crc32(json.dumps(cells).encode(), checksum))

    def _read(self):
        with reading(self._path), open(self._path, newline="") as file:
            lines = list(csv.reader(file))
            if not lines or lines[0][:1] != ["round"]:
                raise ValueError("it has no header")
        columns, *rows = lines
        return columns, rows


def _round_of(name: str) -> int:
    """Returns the round of a table of clients or a snapshot; 0 for other files."""
    match = _ROUND_FILE.fullmatch(name)
    return int(match[1] or match[2]) if match else 0


def _checksum(path: str) -> int:
    with open(path, "rb") as file:
        return zlib.crc32(file.read())


def changed_file_error(path: str) -> OutputDirectoryError:
    """Returns the error for a file that has changed since its run wrote it."""
    return OutputDirectoryError(
        f"{path} is missing or has changed since the last checkpoint. Restore it from a copy, or "
        "start the run in a new directory."
    )


def write_table(path: str, columns: Mapping[str, np.ndarray]) -> None:
    """Writes columns of equal length to a CSV file."""
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    _write(path, list(columns), rows)


def _write(path: str, columns: list[str], rows: Iterable[Sequence]) -> None:
    """Writes a CSV file, completely or not at all; rows may lack the last columns."""
    with whole_file(path, newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows([*row, *[""] * (len(columns) - len(row))] for row in rows)
