"""Runs the parts of the check one after another, each in a process with its own time limit.

A part is a function that gives one task after another to its `Report`. The report is saved after
each task, so the file is complete however the process ends. The next run of the program does the
missing tasks.
"""

import contextlib
import importlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pandas as pd

from tff_pfl.experiment.interruption import interruptible
from tff_pfl.files import write_json

ROOT = pathlib.Path(__file__).resolve().parents[2]
_SHORTEST_SECONDS = 15.0  # a part with less time is not started
_SECONDS_TO_END = 10.0


class CheckError(RuntimeError):
    """A result is wrong, or the check cannot be run with these settings."""


class Part(NamedTuple):
    """A part of the check.

    Attributes:
        name: The name of its files.
        function: Its function, `MODULE:NAME`.
        minutes: Its time limit.
    """

    name: str
    function: str
    minutes: float


PARTS = {
    1: Part("device", "benchmarks.gpu.device:check_device", 5),
    2: Part("tests", "benchmarks.gpu.suites:run_suites", 12),
    3: Part("rounds", "benchmarks.gpu.rounds:measure_rounds", 15),
    4: Part("trainings", "benchmarks.gpu.trainings:compare_trainings", 12),
    5: Part("long_training", "benchmarks.gpu.trainings:train_for_long", 60),
}


class Report:
    """The results of a part, in a file, and the time that is left.

    The status is `running`, `complete`, `partial` (there was no time for some tasks) or `failed`.
    `records` has the results of each task. Failed tasks have an `error`.

    Args:
        path: The file. Existing content is kept.
        devices: "GPU", or "CPU" for toy sizes on logical CPU devices.
        seconds: The time limit of the process.

    Raises:
        CheckError: The file has results of other devices.
    """

    def __init__(self, path: str | os.PathLike, devices: str, seconds: float = 0.0):
        self.path = pathlib.Path(path)
        self.devices, self.is_toy = devices, devices == "CPU"
        self._end = time.monotonic() + 0.9 * seconds  # leaves a tenth of the time to finish
        self.content: dict[str, Any] = {"devices": devices, "status": "running", "records": {}}
        if self.path.exists():
            self.content = json.loads(self.path.read_text())
        if (found := self.content["devices"]) != devices:
            raise CheckError(
                f"{path} has results of --devices={found}. Use another --output_dir for {devices}."
            )

    @property
    def records(self) -> dict[str, dict[str, Any]]:
        """The results of each task that was done."""
        return self.content["records"]

    def left(self) -> float:
        """Returns the seconds until the part should stop."""
        return self._end - time.monotonic()

    def update(self, status: str, message: str = "") -> None:
        """Sets the status and its message, and saves the report."""
        self.content |= {"status": status, "message": message}
        write_json(self.path, self.content)

    def do(self, task: str, measure: Callable[[], dict[str, Any]], seconds: float = 0.0) -> None:
        """Does a task, unless it was done before.

        Args:
            task: The unique name of the task.
            measure: A function that returns the results of the task.
            seconds: The expected time. The task is left out if less time is left.
        """
        if "error" not in self.records.get(task, {"error": ""}):
            return
        if self.left() < seconds:
            self.records[task] = {"error": f"no time: {max(self.left(), 0):.0f} s were left"}
            return
        self.update("running", task)
        start = time.monotonic()
        try:
            self.records[task] = measure()
        except Exception as error:
            traceback.print_exc()
            self.records[task] = {"error": f"{type(error).__name__}: {error}"}
        self.records[task] |= {"seconds": time.monotonic() - start}
        self.update("running")

    def close(self) -> None:
        """Sets the status at the end of the part."""
        records = self.records.items()
        errors = {task: record["error"] for task, record in records if "error" in record}
        failed = [task for task, error in errors.items() if not error.startswith("no time")]
        status = "failed" if failed else "partial" if errors else "complete"
        self.update(status, ", ".join(failed or errors))

    def table(self) -> str:
        """Returns the records as lines of text."""
        rows = [{"task": k} | {n: _cell(v) for n, v in r.items()} for k, r in self.records.items()]
        return pd.DataFrame(rows).fillna("").to_string(index=False) if rows else ""


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return f"{len(value)}, see the file"
    return "" if value is None else str(value)[:44]


def check(
    output_dir: str | os.PathLike,
    *,
    devices: str = "GPU",
    parts: Sequence[int] = tuple(PARTS),
    minutes: float = 45.0,
) -> int:
    """Runs parts of the check, except for complete ones, and prints their results.

    Args:
        output_dir: The folder for `partN_NAME.json`, the results, and `partN_NAME.log` of each
            part.
        devices: "GPU", or "CPU" for toy sizes.
        parts: Keys of `PARTS`, in the order of the runs.
        minutes: The time limit for all parts together.

    Returns:
        The exit code of the program: 1 if any of the parts failed, 0 otherwise.

    Raises:
        CheckError: `output_dir` has results of other devices.
    """
    folder = pathlib.Path(output_dir).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    end, failed = time.monotonic() + 60 * minutes, False
    with interruptible():
        for number in parts:
            name, function, limit = PARTS[number]
            title, path = f"part {number}, {name}", folder / f"part{number}_{name}.json"
            left = end - time.monotonic()
            report = Report(path, devices)
            if report.content["status"] != "complete":
                if left < _SHORTEST_SECONDS:
                    print(f"{title}: left out, the {minutes:g} minutes are over", flush=True)
                    continue
                seconds = min(60 * limit, left)
                print(f"{title}: at limit {seconds:.0f} s", flush=True)
                report = _run(function, report, seconds)
            status, message = report.content["status"], report.content["message"]
            print(f"{report.table()}\n{title}: {status}, see {path} {message}", flush=True)
            failed |= status == "failed"
    return int(failed)


def _run(function, report, seconds) -> Report:
    """Runs a part in a process, and returns its report."""
    report.update("running")
    log = report.path.with_suffix(".log")
    code = _process(function, report, seconds, log)
    report = Report(report.path, report.devices)
    if report.content["status"] == "running":
        reason = f"it did not end within {seconds:.0f} s"
        if code is not None:
            reason = f"the process ended with {signal.Signals(-code).name if code < 0 else code}"
        report.update("failed", f"{reason} ({report.content['message']}), see {log}")
    return report


def _process(function, report, seconds, log) -> int | None:
    """Runs a part's process and returns its exit code, or `None` if it ran out of time."""
    # TensorFlow logs everything. CUDA loads only the kernels in use, and caches compiled ones.
    environment = {"CUDA_MODULE_LOADING": "LAZY", "CUDA_CACHE_MAXSIZE": str(2**32 - 1)}
    environment |= os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "0"}
    if report.is_toy:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    arguments = [function, str(report.path), report.devices, str(seconds)]
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", __package__, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=environment,
            start_new_session=True,
        )
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT)  # lets it end its own processes
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_SECONDS_TO_END)
            return None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def run_part(function: str, path: str, devices: str, seconds: str) -> None:
    """Runs a part in this process; its report has the outcome."""
    report = Report(path, devices, float(seconds))
    module, _, name = function.partition(":")
    try:
        getattr(importlib.import_module(module), name)(report)
    except CheckError as error:
        report.update("failed", str(error))
    else:
        report.close()
