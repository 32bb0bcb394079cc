"""Part 2: the repository's tests of devices and of conformance, where they lie beside it."""

import importlib.util
import os
import pathlib
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree

from gpu.parts import CheckError, Task
from gpu.report import Report

_FOLDER = "tests/runtime"
_CPUS_FOR_FOUR = 8


def run(task: Task, report: Report) -> None:
    """Runs each suite by pytest.

    Raises:
        CheckError: There is no GPU, without which tests pass on the CPU.
    """
    if not pathlib.Path(task.root, _FOLDER).is_dir():
        report.note(f"no tests were run: {task.root} has no {_FOLDER}")
        return
    import tensorflow as tf

    if not tf.config.list_physical_devices(task.devices):
        raise CheckError(f"TensorFlow lists no {task.devices}.")
    for suite, arguments in _suites(task).items():
        if report.find(suite):
            continue
        if task.left() < 0:
            report.leave_out(suite)
            continue
        _run(task, report, suite, arguments)


def _suites(task: Task) -> dict[str, list[str]]:
    """Arguments of pytest."""
    conformance = [f"{_FOLDER}/conformance/test_conformance.py"]
    if task.is_toy:
        return {
            "devices": [f"{_FOLDER}/graph/test_devices.py", "-k", "many_names or unknown_device"],
            "conformance": [*conformance, "-k", "sum_of_scalars"],
        }
    return {
        "devices": [f"{_FOLDER}/graph/test_devices.py"],
        "conformance": conformance,
    }


def _run(task, report, suite, arguments):
    report.begin(suite)
    junit = pathlib.Path(task.output_dir, f"part{task.part}_{suite}.xml")
    junit.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", f"--junitxml={junit}", "-q", *arguments]
    if importlib.util.find_spec("xdist") and os.cpu_count() >= _CPUS_FOR_FOUR:
        command += ["-n", "4"]
    environment = os.environ | {
        "NVIDIA_TF32_OVERRIDE": "0",  # results are compared with those of the CPU
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",  # several processes share the GPU
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    start = time.monotonic()
    process = subprocess.Popen(command, cwd=task.root, env=environment, stdin=subprocess.DEVNULL)
    try:
        process.wait(max(task.left(), 1.0))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # it ends what it started, and writes how far it came
        process.wait(timeout=20)
        figures = _outcome(junit, task.devices) if junit.exists() else {"passed": 0, "failed": 0}
        so_far = f"{figures['passed']} passed, {figures['failed']} failed until then"
        report.leave_out(f"{suite}: not over after {time.monotonic() - start:.0f} s, {so_far}")
        return
    seconds = round(time.monotonic() - start, 1)
    figures = _outcome(junit, task.devices) if junit.exists() else {"error": "no test was run"}
    report.add(suite, seconds=seconds, exit_code=process.returncode, **figures)


def _outcome(junit: pathlib.Path, devices: str) -> dict:
    """Figures of a run of pytest; with an error if a test failed, or none ran on the device."""
    cases = list(xml.etree.ElementTree.parse(junit).iter("testcase"))
    kinds = ("failure", "error", "skipped")
    names = {
        kind: [case.get("name") for case in cases if case.find(kind) is not None] for kind in kinds
    }
    wrong = list(dict.fromkeys(names["failure"] + names["error"]))
    figures = {
        "passed": len(cases) - len(set(names["skipped"] + wrong)),
        "failed": len(wrong),
        "skipped": len(names["skipped"]),
        "failures": wrong,
    }
    not_run = [name for name in names["skipped"] if devices == "GPU" and "GPU" in name]
    if wrong or not figures["passed"]:
        figures["error"] = f"failed: {', '.join(wrong[:5])}" if wrong else "no test was run"
    elif not_run:
        figures["error"] = f"skipped, though there is a GPU: {', '.join(not_run[:5])}"
    return figures
