"""Runs the parts of the check one after another, each in a process with its own time limit.

A part is a function that gives one task after another to its `Report`, which writes each figure at
once, so that the file has them however the process ends.
"""

import contextlib
import hashlib
import os
import pathlib
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from benchmarks.gpu import summary
from benchmarks.gpu.report import Report
from benchmarks.timing import hardware
from tff_pfl.config.interruption import interruptible

ROOT = pathlib.Path(__file__).resolve().parents[2]
LOG, CACHE = "log.txt", "cuda_cache.tar.xz"
_SHORTEST_SECONDS = 10.0  # a part with less time is not started
_SECONDS_TO_END = 10.0


class Part(NamedTuple):
    """A part of the check.

    Attributes:
        function: Its function, `MODULE:NAME`.
        share: Its share of the time, among the parts that are not done.
    """

    function: str
    share: float


_RESNET = Part("benchmarks.gpu.rounds:measure_resnet", 0.07)
PARTS = {
    "device": Part("benchmarks.gpu.device:check_device", 0.12),
    "rounds": Part("benchmarks.gpu.rounds:measure_rounds", 0.4),
    "agreement": Part("benchmarks.gpu.agreement:compare_rounds", 0.2),
    "unequal": Part("benchmarks.gpu.agreement:time_rounds", 0.25),
    "adapters": Part("benchmarks.gpu.frozen:measure_adapters", 0.15),
    "compilations": Part("benchmarks.gpu.agreement:count_compilations", 0.1),
    "trainings": Part("benchmarks.gpu.trainings:compare_trainings", 0.18),
    "resnet18_float32": _RESNET,
    "resnet18_tf32": _RESNET,
    "resnet18_bfloat16": _RESNET,
    "tests": Part("benchmarks.gpu.suites:run_suites", 0.09),
}


def check(
    output_dir: str | os.PathLike,
    *,
    devices: str = "GPU",
    parts: Sequence[str] = tuple(PARTS),
    minutes: float = 12.0,
    python: str = "python3",
) -> int:
    """Runs parts of the check, except for complete ones, and prints their results.

    Args:
        output_dir: The folder for the figures, the log and what the driver compiled.
        devices: "GPU", or "CPU" for toy sizes.
        parts: Keys of `PARTS`, in the order of the runs.
        minutes: The time limit for all parts together.
        python: A Python that may have PyTorch and JAX.

    Returns:
        The exit code of the program: 1 if any of the parts failed, 0 otherwise.

    Raises:
        CheckError: `output_dir` has results of other devices.
    """
    folder = pathlib.Path(output_dir).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    end, failed = time.monotonic() + 60 * minutes, False
    with interruptible(), tempfile.TemporaryDirectory() as temporary:
        environment = _environment(devices, python, temporary)
        cache = pathlib.Path(environment["CUDA_CACHE_PATH"])
        _bring(folder / CACHE, cache)
        _describe(Report(folder, "machine", devices))
        for position, name in enumerate(parts):
            left = end - time.monotonic()
            report = Report(folder, name, devices)
            if report.status != "complete":
                if left < _SHORTEST_SECONDS:
                    print(f"{name}: left out, the {minutes:g} minutes are over", flush=True)
                    continue
                shares = [PARTS[other].share for other in parts[position:]]
                seconds = left * shares[0] / sum(shares)
                print(f"{name}: at limit {seconds:.0f} s", flush=True)
                start = time.monotonic()
                report = _run(report, seconds, environment)
                print(f"{name}: took {time.monotonic() - start:.0f} s", flush=True)
                _keep(cache, folder / CACHE)
            print(
                f"{summary.of_part(report)}\n{name}: {report.status} {report.message}\n", flush=True
            )
            failed |= report.status == "failed"
    return int(failed)


def _environment(devices: str, python: str, temporary: str) -> dict[str, str]:
    """Returns the environment of parts."""
    # TensorFlow logs everything. CUDA loads only the kernels in use, and caches compiled ones.
    # Several processes share the GPU.
    environment = {
        "CUDA_CACHE_PATH": os.path.join(temporary, "cuda_cache"),
        "CUDA_CACHE_MAXSIZE": str(2**32 - 1),
        "CUDA_MODULE_LOADING": "LAZY",
    } | os.environ
    environment |= {
        "BENCHMARKS_PYTHON": python,
        "PYTHONPATH": str(ROOT),
        "TF_CPP_MIN_LOG_LEVEL": "0",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "TMPDIR": temporary,
    }
    if devices == "CPU":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    return environment


def _describe(report: Report) -> None:
    """Writes the machine and the state of this library's code."""
    digest = hashlib.sha256()
    for file in sorted((ROOT / "tff_pfl").rglob("*.py")):
        digest.update(file.read_bytes())
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    with contextlib.suppress(OSError):
        commit = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    figures = hardware() | {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit or None,
        "code": digest.hexdigest()[:16],
    }
    report.write("machine", figures)


def _bring(archive: pathlib.Path, cache: pathlib.Path) -> None:
    """Unpacks kernels that a driver compiled before."""
    if archive.exists():
        with tarfile.open(archive) as tar:
            tar.extractall(cache, filter="data")


def _keep(cache: pathlib.Path, archive: pathlib.Path) -> None:
    """Packs the kernels that the driver has compiled, if there are any."""
    if any(cache.rglob("*")):
        new = archive.with_suffix(".new")
        with tarfile.open(new, "w:xz", preset=1) as tar:
            tar.add(cache, ".")
        new.replace(archive)


def _run(report: Report, seconds: float, environment: Mapping[str, str]) -> Report:
    """Runs a part in a process, and returns its report."""
    report.set_status("running")
    code = _process(report, seconds, environment)
    report = Report(report.folder, report.part, report.devices)
    if report.status == "running":
        if code is None:
            reason = f"it did not end within {seconds:.0f} s"
        else:
            reason = f"the process ended with {signal.Signals(-code).name if code < 0 else code}"
        report.set_status("failed", f"{reason} ({report.message}), see {LOG}")
    return report


def _process(report, seconds, environment) -> int | None:
    """Runs a part's process and returns its exit code, or `None` if it ran out of time."""
    function = PARTS[report.part].function
    arguments = [function, str(report.folder), report.part, report.devices, str(seconds)]
    with open(report.folder / LOG, "ab") as output:
        output.write(f"---- {report.part}\n".encode())
        output.flush()
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "benchmarks.gpu.part", *arguments],
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
