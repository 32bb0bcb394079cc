"""Runs the parts one after another, each in a process with a time limit of its own."""

import contextlib
import importlib
import os
import pathlib
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.gpu.report import ROOT, CheckError, Report
from tff_pfl.experiment.interruption import interruptible

_SHORTEST_SECONDS = 15.0  # a part that has less is not started
_SECONDS_TO_END = 10.0


class Part(NamedTuple):
    """A part: the name of its files, the function `(report) -> None`, and minutes at most."""

    name: str
    function: str
    minutes: float


PARTS = {
    1: Part("device", "benchmarks.gpu.device:run", 5),
    2: Part("tests", "benchmarks.gpu.suites:run", 12),
    3: Part("rounds", "benchmarks.gpu.rounds:run", 15),
    4: Part("trainings", "benchmarks.gpu.trainings:run", 12),
    5: Part("long_training", "benchmarks.gpu.trainings:run_long", 60),
}


def check(
    output_dir: str | os.PathLike,
    *,
    devices: str = "GPU",
    parts: Sequence[int] = tuple(PARTS),
    minutes: float = 45.0,
) -> int:
    """Runs parts of the check, but those that are complete, and prints what they found.

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
        if (found := Report(path, devices)["devices"]) != devices:
            raise CheckError(
                f"{path} has results of --devices={found}. Name another --output_dir for {devices}."
            )
    with interruptible():
        for number, path in paths.items():
            title, left = f"part {number}, {PARTS[number].name}", end - time.monotonic()
            report = Report(path, devices)
            if report["status"] == "complete":
                print(f"{title}: complete already")
            elif left < _SHORTEST_SECONDS:
                print(f"{title}: left out, the {minutes:g} minutes are over", flush=True)
                continue
            else:
                seconds = min(60 * PARTS[number].minutes, left)
                print(f"{title}: at most {seconds:.0f} s", flush=True)
                report = _run(PARTS[number].function, path, devices, seconds)
            print(f"{report.table()}\n{title}: {report['status']}, see {path}", flush=True)
            failed |= report["status"] == "failed"
    return int(failed)


def _run(function, path, devices, seconds) -> Report:
    """Runs a part, and runs it again where its process died: of all else there are figures."""
    deadline, log = time.monotonic() + seconds, path.with_suffix(".log")
    log.unlink(missing_ok=True)
    Report(path, devices).restart()
    while True:
        code = _process(function, path, devices, deadline - time.monotonic(), log)
        report = Report(path, devices)
        what = report["in_progress"]
        if report["status"] != "running":
            return report
        if code is None:
            report.fail(f"it did not end within {seconds:.0f} s ({what}), see {log}")
            return report
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        if what is None or deadline - time.monotonic() < _SHORTEST_SECONDS:
            report.fail(f"the process ended with {how}, see {log}")
            return report
        report.add(what, error=f"the process ended with {how}", died=True)


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
        getattr(importlib.import_module(module), name)(report)
    except Exception as error:
        traceback.print_exc()
        report.fail(f"{type(error).__name__}: {error}")
    else:
        report.end()
