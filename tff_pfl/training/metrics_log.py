"""Where the numbers of a run go: CSV files and TensorBoard."""

import asyncio
import csv
import os
from collections.abc import Mapping

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.training.run_directory import RunDirectory, flatten


class MetricsLog:
    """Releases metrics by round. A round released again replaces itself and all later ones.

    `metrics.csv` holds nothing that differs between two runs of the same config on the same
    machine; seconds go to `timings.csv`.
    """

    def __init__(self, directory: RunDirectory):
        self._directory = directory
        self._tables = {
            name: tff.program.CSVFileReleaseManager(
                directory.file(f"{name}.csv"),
                save_mode=tff.program.CSVSaveMode.WRITE,
                key_fieldname="round",
            )
            for name in ("metrics", "timings")
        }
        self._tensorboard = tf.summary.create_file_writer(directory.file("tensorboard"))

    def release(self, round_num: int, metrics: Mapping, timings: Mapping[str, float]) -> None:
        """Writes the metrics of a round, in all places.

        Args:
            round_num: Rounds done, from 1.
            metrics: Scalars; nested names are joined by "/".
            timings: Seconds.
        """
        metrics, timings = flatten(metrics, "/"), flatten(timings, "/")
        asyncio.run(self._release(round_num, metrics, timings))
        with self._tensorboard.as_default(step=round_num):
            for name, value in (metrics | timings).items():
                tf.summary.scalar(name, value)
        self._tensorboard.flush()

    def release_clients(self, round_num: int, columns: Mapping[str, np.ndarray]) -> str:
        """Writes the table of an evaluation, a row a client; returns the path of the file."""
        path = self._directory.file("clients", f"round_{round_num:06d}.csv")
        temporary = f"{path}.tmp"
        with open(temporary, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
        os.replace(temporary, path)
        return path

    async def _release(self, round_num, metrics, timings):
        await self._tables["metrics"].release(metrics, round_num)
        await self._tables["timings"].release(timings, round_num)
