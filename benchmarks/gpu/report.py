"""The figures of a check: lines of JSON, each written as soon as it is known."""

import json
import os
import pathlib
import time
import traceback
from collections.abc import Callable
from typing import Any

from tff_pfl.output.files import to_json

FIGURES = "figures.jsonl"


class CheckError(RuntimeError):
    """A result is wrong, or the check cannot be run with these settings."""


class Report:
    """The results of a part, in the file of all parts, and the time that is left.

    A line of the file has the `part` and either a `task` with its figures, or the `status` of the
    part: `complete`, `partial` (there was no time for some tasks) or `failed`. Failed tasks have an
    `error`. The last line about a task counts.

    Args:
        folder: The folder of the file. Existing lines are kept.
        part: The name of the part.
        devices: "GPU", or "CPU" for toy sizes on logical CPU devices.
        seconds: The time limit of the part.

    Raises:
        CheckError: The file has results of other devices.
    """

    def __init__(self, folder: str | os.PathLike, part: str, devices: str, seconds: float = 0.0):
        self.folder = pathlib.Path(folder)
        self.part, self.devices, self.is_toy = part, devices, devices == "CPU"
        self._end = time.monotonic() + 0.95 * seconds  # leaves time to finish
        self.records: dict[str, dict[str, Any]] = {}
        self.status, self.message = "new", ""
        for line in read(self.folder):
            if line["devices"] != devices:
                raise CheckError(
                    f"{self.folder / FIGURES} has results of --devices={line['devices']}. Use "
                    f"another --output_dir for {devices}."
                )
            if line["part"] == part and "task" in line:
                self.records[line["task"]] = {k: line[k] for k in line if k not in _LABELS}
            elif line["part"] == part:
                self.status, self.message = line["status"], line["message"]

    def left(self) -> float:
        """Returns the seconds until the part should stop."""
        return self._end - time.monotonic()

    def write(self, task: str, figures: dict[str, Any]) -> None:
        """Writes the figures of a task, instead of former ones."""
        self.records[task] = figures
        self._append({"task": task} | figures)

    def set_status(self, status: str, message: str = "") -> None:
        """Writes the status of the part and its message."""
        self.status, self.message = status, message
        self._append({"status": status, "message": message})

    def do(self, task: str, measure: Callable[[], dict[str, Any]], seconds: float = 0.0) -> None:
        """Does a task, unless it was done before.

        Args:
            task: The unique name of the task.
            measure: A function that returns the figures of the task.
            seconds: The expected time. The task is left out if less time is left.
        """
        if "error" not in self.records.get(task, {"error": ""}):
            return
        if self.left() < seconds:
            self.leave_out(task)
            return
        self.set_status("running", task)
        start = time.monotonic()
        try:
            figures = measure()
        except Exception as error:
            traceback.print_exc()
            figures = {"error": f"{type(error).__name__}: {error}"}
        self.write(task, figures | {"task_seconds": round(time.monotonic() - start, 3)})

    def leave_out(self, task: str) -> None:
        """Writes that there was no time for a task."""
        self.write(task, {"error": f"no time: {max(self.left(), 0):.0f} s were left"})

    def close(self) -> None:
        """Sets the status at the end of the part."""
        records = self.records.items()
        errors = {task: record["error"] for task, record in records if "error" in record}
        failed = [task for task, error in errors.items() if not error.startswith("no time")]
        status = "failed" if failed else "partial" if errors else "complete"
        self.set_status(status, ", ".join(failed or errors))

    def _append(self, line):
        labels = {"part": self.part, "devices": self.devices}
        with open(self.folder / FIGURES, "a") as file:
            file.write(to_json(labels | line) + "\n")


_LABELS = ("part", "devices", "task")


def read(folder: pathlib.Path) -> list[dict[str, Any]]:
    """Returns the lines of a folder's figures."""
    path = folder / FIGURES
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
