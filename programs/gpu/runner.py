"""Runs the parts one after another, each in a process with a time limit of its own."""

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from gpu.parts import PARTS, CheckError, Task
from gpu.report import Report

# A part that has less is not started.
_SHORTEST_SECONDS = 15.0
_SECONDS_TO_END = 10.0


def check(
    output_dir: str | os.PathLike,
    root: str | os.PathLike,
    *,
    devices: str = "GPU",
    parts: Sequence[int] = tuple(PARTS),
    minutes: float = 45.0,
) -> int:
    """Runs parts of the check, but those that are complete, and prints what they found.

    Args:
        output_dir: Receives `partN_NAME.json`, the figures, and `partN_NAME.log` of each part.
        root: The repository.
        devices: See `Task`.
        parts: Keys of `PARTS`, in the order in which they are run.
        minutes: How long all of it may take.

    Returns:
        The exit code of the program: 1 if any of the parts failed, 0 otherwise.

    Raises:
        CheckError: In `output_dir` are results of other devices.
    """
    os.makedirs(output_dir, exist_ok=True)
    output_dir = os.path.abspath(output_dir)
    end = time.monotonic() + 60 * minutes
    reports = {number: report_of(number, output_dir, devices) for number in parts}
    for report in reports.values():
        if report["devices"] != devices:
            raise CheckError(
                f"{report.path} has results of --devices={report['devices']}. Name another "
                f"--output_dir for {devices}."
            )
    with _interrupted_by_signals():
        for number, report in reports.items():
            part, title = PARTS[number], f"part {number}, {PARTS[number].name}"
            if report["status"] == "complete":
                print(f"{title}: complete already\n{report.table()}", flush=True)
                continue
            left = end - time.monotonic()
            if left < _SHORTEST_SECONDS:
                print(f"{title}: left out, the {minutes:g} minutes are over", flush=True)
                if not report.path.exists():
                    report.update(status="left_out")
                continue
            seconds = min(60 * part.minutes, left)
            bound = "" if left > 60 * part.minutes else f", all that is left of {minutes:g} minutes"
            print(f"{title}: at most {seconds:.0f} s{bound}", flush=True)
            report = reports[number] = _run(number, output_dir, os.fspath(root), devices, seconds)
            print(f"{report.table()}\n  figures: {report.path}", flush=True)
    failed = [str(number) for number, report in reports.items() if report["status"] == "failed"]
    for status in dict.fromkeys(report["status"] for report in reports.values()):
        numbers = [str(n) for n, report in reports.items() if report["status"] == status]
        print(f"{status}: {', '.join(numbers)}")
    return 1 if failed else 0


def files_of(number: int, output_dir: str | os.PathLike) -> tuple[pathlib.Path, pathlib.Path]:
    """The JSON and the log of a part."""
    stem = pathlib.Path(output_dir, f"part{number}_{PARTS[number].name}")
    return stem.with_suffix(".json"), stem.with_suffix(".log")


def report_of(number: int, output_dir: str | os.PathLike, devices: str) -> Report:
    """The report of a part, as far as there is one."""
    path, _ = files_of(number, output_dir)
    return Report(path, part=number, name=PARTS[number].name, devices=devices)


def _run(number, output_dir, root, devices, seconds) -> Report:
    """Runs a part, and runs it again where its process died: of all else there are figures."""
    deadline = time.monotonic() + seconds
    _, log = files_of(number, output_dir)
    log.unlink(missing_ok=True)
    report_of(number, output_dir, devices).restart()
    while True:
        left = deadline - time.monotonic()
        task = Task(number, output_dir, root, devices, left, time.time())
        code = _process(task, log)
        report = report_of(number, output_dir, devices)
        if code is None:
            during = f" ({report['in_progress']})" if report["in_progress"] else ""
            report.fail(f"it did not end within {seconds:.0f} s{during}", log)
        elif report["status"] == "running":
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            during = report["in_progress"]
            if during:
                report.add(during, error=f"the process ended with {how}", died=True)
            report.fail(f"the process ended with {how}", log)
            if during and deadline - time.monotonic() > _SHORTEST_SECONDS:
                report.update(status="running")
                continue
        return report


def _process(task: Task, log: pathlib.Path) -> int | None:
    """The exit code of the part's process; `None` if it had to be ended."""
    # The repository's library, whatever is installed, and the folder that holds this package.
    found = [task.root, os.path.join(task.root, "programs"), os.environ.get("PYTHONPATH")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, found)),
        "PYTHONUNBUFFERED": "1",
        # All that TensorFlow has to say is for the log.
        "TF_CPP_MIN_LOG_LEVEL": "0",
    }
    # Only kernels that are used are loaded, and compiled by the driver; those are kept.
    environment.setdefault("CUDA_MODULE_LOADING", "LAZY")
    environment.setdefault("CUDA_CACHE_MAXSIZE", str(2**32 - 1))
    if task.devices == "CPU":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    command = [sys.executable, "-m", __package__, json.dumps(dataclasses.asdict(task))]
    with open(log, "ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=task.root,
            env=environment,
            start_new_session=True,
        )
        try:
            return process.wait(task.seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT)  # so that what it started is ended by it
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_SECONDS_TO_END)
            return None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextlib.contextmanager
def _interrupted_by_signals():
    """Ctrl-C, also where a shell has it ignored, and SIGTERM end the part's process as well."""

    def terminate(number, frame):
        sys.exit(128 + number)

    handlers = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
        signal.SIGTERM: signal.signal(signal.SIGTERM, terminate),
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
