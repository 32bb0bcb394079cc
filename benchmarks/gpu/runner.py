"""Runs the parts of the check one after another, each in a process with a time limit of its own.

A part is a function that yields tasks. The process of a part does those tasks that no earlier run
has done, and writes `partN_NAME.json` anew after each, so that the file has all there is, however
the process ends.
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
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import pandas as pd

from tff_pfl.experiment.interruption import interruptible
from tff_pfl.files import write_json

ROOT = pathlib.Path(__file__).resolve().parents[2]
_SHORTEST_SECONDS = 15.0  # a part that has less is not started
_SECONDS_TO_END = 10.0
_WIDEST = 44  # longer texts and lists are in the file, not in the table


class CheckError(RuntimeError):
    """A result is wrong, or the check cannot be run as it was asked for."""


class OutOfTime(Exception):
    """Raised by a task that found too little time; the next run does it."""


class Task(NamedTuple):
    """One step of a part.

    Attributes:
        what: Its unique name.
        measure: A function that returns its figures.
        seconds: How long it is expected to take; it is left out if less time is left.
    """

    what: str
    measure: Callable[[], dict[str, Any]]
    seconds: float = 0.0


class Part(NamedTuple):
    """A part: the name of its files, the function `(report) -> tasks`, and minutes at most."""

    name: str
    function: str
    minutes: float


PARTS = {
    1: Part("device", "benchmarks.gpu.device:tasks", 5),
    2: Part("tests", "benchmarks.gpu.suites:tasks", 12),
    3: Part("rounds", "benchmarks.gpu.rounds:tasks", 15),
    4: Part("trainings", "benchmarks.gpu.trainings:tasks", 12),
    5: Part("long_training", "benchmarks.gpu.trainings:long_tasks", 60),
}


class Report:
    """The figures of a part, in a file, and how much time the part has.

    Its status is `running`, `complete`, `partial` (no time for the tasks in `left_out`) or
    `failed`. `records` has the figures of each task; those with an `error` failed.

    Args:
        path: The file, whose content is kept.
        devices: "GPU", or "CPU" for toy sizes on logical CPU devices.
        seconds: How long the process may take.
    """

    def __init__(self, path: str | os.PathLike, devices: str, seconds: float = 0.0):
        self.path = pathlib.Path(path)
        self.devices, self.is_toy = devices, devices == "CPU"
        self._end = time.monotonic() + 0.9 * seconds  # a tenth of the time is for the end
        self.content: dict[str, Any] = {"devices": devices, "status": "running", "records": {}}
        self.content |= {"message": "", "in_progress": None, "left_out": []}
        if self.path.exists():
            self.content |= json.loads(self.path.read_text())

    @property
    def records(self) -> dict[str, dict[str, Any]]:
        """The figures of each task that was done."""
        return self.content["records"]

    def left(self) -> float:
        """Returns the seconds until the part should stop."""
        return self._end - time.monotonic()

    def update(self, **values) -> None:
        """Sets and saves."""
        self.content |= values
        write_json(self.path, self.content)

    def restart(self) -> None:
        """Forgets tasks that failed or were left out, but not those that a process died of."""
        kept = {k: r for k, r in self.records.items() if "error" not in r or r.get("died")}
        fresh = {"message": "", "in_progress": None, "left_out": []}
        self.update(status="running", records=kept, **fresh)

    def run(self, tasks: Iterable[Task]) -> None:
        """Does the tasks that have no record yet, and sets the status."""
        for what, measure, seconds in tasks:
            if what in self.records:
                continue
            self.update(in_progress=what)
            start = time.monotonic()
            try:
                if self.left() < seconds:
                    raise OutOfTime(f"{max(self.left(), 0):.0f} s were left")
                figures = measure()
            except OutOfTime as error:
                self.content["left_out"].append(f"{what}: {error}")
            except Exception as error:
                traceback.print_exc()
                self.records[what] = {"error": f"{type(error).__name__}: {error}"}
            else:
                self.records[what] = {"seconds": time.monotonic() - start} | figures
            self.update(in_progress=None)
        failed = [what for what, record in self.records.items() if "error" in record]
        status = "failed" if failed else "partial" if self.content["left_out"] else "complete"
        self.update(status=status, message=f"see {', '.join(failed)}" if failed else "")

    def fail(self, message: str) -> None:
        """Marks a part that could not go on as failed."""
        self.update(status="failed", message=message, in_progress=None)

    def table(self) -> str:
        """Returns the records as lines of text, with errors and left-out tasks below."""
        rows = [{"what": k} | {n: _cell(v) for n, v in r.items()} for k, r in self.records.items()]
        shown = pd.DataFrame(rows).drop(columns=["error", "died"], errors="ignore").fillna("")
        lines = [] if shown.empty else [shown.to_string(index=False)]
        errors = {k: r["error"] for k, r in self.records.items() if "error" in r}
        lines += [f"  error: {what}: {error[:300]}" for what, error in errors.items()]
        lines += [f"  no time for: {what}" for what in self.content["left_out"]]
        if self.content["message"]:
            lines.append(f"  {self.content['status']}: {self.content['message'][:300]}")
        return "\n".join(lines)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | dict):
        return f"{len(value)}, see the file"
    text = "" if value is None else str(value)
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..."


def check(
    output_dir: str | os.PathLike,
    *,
    devices: str = "GPU",
    parts: Sequence[int] = tuple(PARTS),
    minutes: float = 45.0,
) -> int:
    """Runs parts of the check, except for complete ones, and prints what they found.

    Args:
        output_dir: Receives `partN_NAME.json`, the figures, and `partN_NAME.log` of each part.
        devices: "GPU", or "CPU" for toy sizes.
        parts: Keys of `PARTS`, in the order in which they are run.
        minutes: How long all of it may take.

    Returns:
        The exit code of the program: 1 if any of the parts failed, 0 otherwise.

    Raises:
        CheckError: In `output_dir` are results of other devices.
    """
    folder = pathlib.Path(output_dir).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    end, failed = time.monotonic() + 60 * minutes, False
    paths = {n: folder / f"part{n}_{PARTS[n].name}.json" for n in parts}
    for path in paths.values():
        if (found := Report(path, devices).content["devices"]) != devices:
            raise CheckError(
                f"{path} has results of --devices={found}. Name another --output_dir for {devices}."
            )
    with interruptible():
        for number, path in paths.items():
            title, left = f"part {number}, {PARTS[number].name}", end - time.monotonic()
            report = Report(path, devices)
            if report.content["status"] == "complete":
                print(f"{title}: complete already")
            elif left < _SHORTEST_SECONDS:
                print(f"{title}: left out, the {minutes:g} minutes are over", flush=True)
                continue
            else:
                seconds = min(60 * PARTS[number].minutes, left)
                print(f"{title}: at most {seconds:.0f} s", flush=True)
                report = _run(PARTS[number].function, path, devices, seconds)
            status = report.content["status"]
            print(f"{report.table()}\n{title}: {status}, see {path}", flush=True)
            failed |= status == "failed"
    return int(failed)


def _run(function, path, devices, seconds) -> Report:
    """Runs a part, and goes on with its next task where its process died."""
    deadline, log = time.monotonic() + seconds, path.with_suffix(".log")
    log.unlink(missing_ok=True)
    Report(path, devices).restart()
    while True:
        code = _process(function, path, devices, deadline - time.monotonic(), log)
        report = Report(path, devices)
        what = report.content["in_progress"]
        if report.content["status"] != "running":
            return report
        if code is None:
            report.fail(f"it did not end within {seconds:.0f} s ({what}), see {log}")
            return report
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        if what is None or deadline - time.monotonic() < _SHORTEST_SECONDS:
            report.fail(f"the process ended with {how}, see {log}")
            return report
        report.records[what] = {"error": f"the process ended with {how}", "died": True}
        report.update(in_progress=None)


def _process(function, path, devices, seconds, log) -> int | None:
    """Returns the exit code of a part's process; `None` if it had to be ended."""
    # TensorFlow says all it has to; only kernels that are used are loaded, and those are kept.
    environment = {"CUDA_MODULE_LOADING": "LAZY", "CUDA_CACHE_MAXSIZE": str(2**32 - 1)}
    environment |= os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "0"}
    if devices == "CPU":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    arguments = [function, str(path), devices, str(seconds)]
    with open(log, "ab") as output:
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
            os.killpg(process.pid, signal.SIGINT)  # so that what it started is ended by it
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_SECONDS_TO_END)
            return None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def run_part(function: str, path: str, devices: str, seconds: str) -> None:
    """Does the work of a part's process; its report says how it went."""
    report = Report(path, devices, float(seconds))
    module, _, name = function.partition(":")
    try:
        report.run(getattr(importlib.import_module(module), name)(report))
    except Exception as error:
        traceback.print_exc()
        report.fail(f"{type(error).__name__}: {error}")
