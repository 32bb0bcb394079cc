"""Runs the repository's tests of devices and of conformance."""

import functools
import os
import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

from benchmarks.gpu.device import require
from benchmarks.gpu.report import CheckError, Report
from benchmarks.gpu.runner import ROOT
from tff_pfl.runtime.startup import prepare_process

# For each suite: the file, and the tests that run at toy sizes.
_SUITES = {
    "devices": ("graph/test_devices.py", "many_names or unknown_device"),
    "conformance": ("conformance/test_conformance.py", "sum_of_scalars"),
}


def run_suites(report: Report) -> None:
    """Runs the suites with pytest.

    Raises:
        CheckError: TensorFlow does not list a GPU. Tests would otherwise pass on the CPU.
    """
    prepare_process()
    require(report)
    for suite, (file, toys) in _SUITES.items():
        chosen = ["-k", toys] if report.is_toy else []
        report.do(suite, functools.partial(_run, report, suite, [f"tests/runtime/{file}", *chosen]))


def _run(report, suite, arguments):
    junit = pathlib.Path(tempfile.mkdtemp(), f"{suite}.xml")
    environment = os.environ | {
        "NVIDIA_TF32_OVERRIDE": "0",  # results are compared with CPU results
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    command = [sys.executable, "-m", "pytest", f"--junitxml={junit}", "-q", *arguments]
    subprocess.run(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL)
    if not junit.exists():
        raise CheckError("No test was run.")
    return outcome(junit, report.devices)


def outcome(junit: pathlib.Path, devices: str) -> dict:
    """Returns the counts of a run of pytest.

    Raises:
        CheckError: A test failed, no test was run, or a GPU test was skipped despite a GPU.
    """
    cases = list(xml.etree.ElementTree.parse(junit).iter("testcase"))
    failed, skipped = (
        [c.get("name") for c in cases if any(c.find(kind) is not None for kind in kinds)]
        for kinds in (("failure", "error"), ("skipped",))
    )
    not_run = [name for name in skipped if devices == "GPU" and "GPU" in name]
    if failed:
        raise CheckError(f"{len(failed)} of {len(cases)} failed: {', '.join(failed[:5])}")
    if len(skipped) == len(cases):
        raise CheckError("No test was run.")
    if not_run:
        raise CheckError(f"Skipped despite a GPU: {', '.join(not_run[:5])}")
    return {"passed": len(cases) - len(skipped), "skipped": len(skipped)}
