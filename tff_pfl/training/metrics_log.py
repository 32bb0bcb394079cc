"""Where the numbers of a run go: CSV files and TensorBoard."""

import csv
import os
from collections.abc import Iterable, Mapping

import numpy as np
import tensorflow as tf

from tff_pfl.training.run_directory import (
    OutputDirectoryError,
    RunDirectory,
    whole_file,
)


class MetricsLog:
    """Releases the metrics of a run, round after round.

    `metrics.csv` holds nothing that differs between two runs of the same config on the same
    machine; seconds go to `timings.csv`. What was released after the last checkpoint of a run that
    is resumed is dropped from both; TensorBoard shows the steps that are released again twice.
    """

    def __init__(self, directory: RunDirectory, rounds_done: int):
        """Opens the log.

        Args:
            directory: Of the run.
            rounds_done: Rounds whose metrics are kept, those up to the checkpoint.

        Raises:
            OutputDirectoryError: If the metrics of one of these are not there.
        """
        self._directory = directory
        self._metrics = _Table(directory.file("metrics.csv"), rounds_done)
        self._timings = _Table(directory.file("timings.csv"), rounds_done)
        self._tensorboard = tf.summary.create_file_writer(directory.file("tensorboard"))

    def release(
        self, round_num: int, metrics: Mapping[str, float], timings: Mapping[str, float]
    ) -> None:
        """Writes the metrics of a round, in all places.

        Args:
            round_num: Rounds done, from 1.
            metrics: Numbers by name.
            timings: Seconds.
        """
        self._metrics.append({"round": round_num, **metrics})
        self._timings.append({"round": round_num, **timings})
        with self._tensorboard.as_default(step=round_num):
            for name, value in {**metrics, **timings}.items():
                tf.summary.scalar(name, value)
        self._tensorboard.flush()

    def release_table(self, name: str, columns: Mapping[str, np.ndarray]) -> None:
        """Writes the table of an evaluation, a row a client.

        Args:
            name: Of the file.
            columns: Of equal length, by name.
        """
        write_table(self._directory.file(name), columns)

    def release_snapshot(self, round_num: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Writes what an algorithm has to show, completely or not at all."""
        path = self._directory.file("snapshots", f"round_{round_num:06d}.npz")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with whole_file(path, "wb") as file:
            np.savez_compressed(file, **arrays)


class _Table:
    """A CSV file with a row a round, appended to; columns may come later and then stay."""

    def __init__(self, path: str, rounds_done: int):
        self._path = path
        self._columns = ["round"]
        rows = []
        if os.path.exists(path):
            self._columns, rows = self._read()
        # A row of a round that is not done may be cut off in the middle: it is dropped unread.
        rows = rows[:rounds_done]
        _check_complete(path, self._columns, rows, rounds_done)
        _write(path, self._columns, rows)

    def append(self, row: Mapping) -> None:
        """Appends a row and waits until it is on the disk."""
        new = [name for name in row if name not in self._columns]
        if new:
            _, rows = self._read()
            self._columns += new
            _write(self._path, self._columns, rows)
        with open(self._path, "a", newline="") as file:
            csv.DictWriter(file, self._columns).writerow(row)
            file.flush()
            os.fsync(file.fileno())

    def _read(self):
        with open(self._path, newline="") as file:
            columns, *rows = csv.reader(file)
        return columns, rows


def _check_complete(path, columns, rows, rounds_done):
    """Refuses a table that does not have the rows of all rounds that the checkpoint has."""
    for round_num in range(1, rounds_done + 1):
        row = rows[round_num - 1] if len(rows) >= round_num else []
        if row[:1] != [str(round_num)] or len(row) != len(columns):
            raise OutputDirectoryError(
                f"{path} lacks the row of round {round_num}, or a part of it, but the checkpoint "
                f"beside it is of round {rounds_done}: the file was deleted or cut. Put it back as "
                "it was, or start the run again with --overwrite or another --output_dir."
            )


def write_table(path: str, columns: Mapping[str, np.ndarray]) -> None:
    """Writes columns of equal length to a CSV file."""
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    _write(path, list(columns), rows)


def _write(path: str, columns: list[str], rows: Iterable[list]) -> None:
    """Writes a CSV file completely or not at all; rows may lack the last columns."""
    with whole_file(path, newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows([*row, *[""] * (len(columns) - len(row))] for row in rows)
