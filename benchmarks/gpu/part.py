"""Runs a part in this process, which `benchmarks.gpu.runner` starts; the report has the outcome."""

import importlib
import sys

from benchmarks.gpu.report import CheckError, Report


def run(function: str, folder: str, part: str, devices: str, seconds: str) -> None:
    """Runs the function `MODULE:NAME` of a part."""
    report = Report(folder, part, devices, float(seconds))
    module, _, name = function.partition(":")
    try:
        getattr(importlib.import_module(module), name)(report)
    except CheckError as error:
        report.set_status("failed", str(error))
    else:
        report.close()


if __name__ == "__main__":
    run(*sys.argv[1:])
