"""Part 2: the repository's tests of devices and of conformance, where they lie beside it."""

import importlib.util
import os
import pathlib
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree

from benchmarks.gpu.device import require
from benchmarks.gpu.report import ROOT, Report

_FOLDER = "tests/runtime"
_CPUS_FOR_FOUR = 8


def run(report: Report) -> None:
    """Runs each suite by pytest.

    Raises:
        CheckError: There is no GPU, without which tests pass on the CPU.
    """
    if not (ROOT / _FOLDER).is_dir():
        report.note(f"no tests were run: {ROOT} has no {_FOLDER}")
        return
    require(report)
    for suite, arguments in _suites(report).items():
        if report.is_due(suite):
            _run(report, suite, arguments)


def _suites(report: Report) -> dict[str, list[str]]:
    """Returns arguments of pytest."""
    devices = [f"{_FOLDER}/graph/test_devices.py"]
    conformance = [f"{_FOLDER}/conformance/test_conformance.py"]
    if report.is_toy:
        devices += ["-k", "many_names or unknown_device"]
        conformance += ["-k", "sum_of_scalars"]
    return {"devices": devices, "conformance": conformance}


def _run(report, suite, arguments):
    junit = report.folder / f"{report.path.stem}_{suite}.xml"
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
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL)
    try:
        process.wait(max(report.left(), 1.0))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # it ends what it started
        process.wait(timeout=20)
        report.leave_out(f"{suite}: not over after {time.monotonic() - start:.0f} s")
        return
    figures = outcome(junit, report.devices) if junit.exists() else {"error": "no test was run"}
    report.add(suite, seconds=time.monotonic() - start, exit_code=process.returncode, **figures)


def outcome(junit: pathlib.Path, devices: str) -> dict:
    """Returns figures of a run of pytest, with an error if a test failed or none ran on the GPU."""
    cases = list(xml.etree.ElementTree.parse(junit).iter("testcase"))
    kinds = ("failure", "error", "skipped")
    names = {kind: [c.get("name") for c in cases if c.find(kind) is not None] for kind in kinds}
    wrong = list(dict.fromkeys(names["failure"] + names["error"]))
    figures = {
        "passed": len(cases) - len(set(names["skipped"] + wrong)),
        "failed": len(wrong),
        "skipped": len(names["skipped"]),
        "failures": wrong,
    }
    not_run = [name for name in names["skipped"] if devices == "GPU" and "GPU" in name]
    if wrong:
        figures["error"] = f"failed: {', '.join(wrong[:5])}"
    elif not figures["passed"]:
        figures["error"] = "no test was run"
    elif not_run:
        figures["error"] = f"skipped, though there is a GPU: {', '.join(not_run[:5])}"
    return figures
