"""Times functions in turns, so that a slower machine slows all of them; measures memory."""

import concurrent.futures
import contextlib
import multiprocessing
import os
import pathlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tqdm

from tff_pfl.runtime.startup import prepare_process


def hardware() -> dict[str, Any]:
    """Returns the number of usable cores, their model, and the memory of the machine."""
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "model": models[0] if models else None,
        "memory_gib": round(memory / 2**30, 1),
    }


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Returns the median, the minimum and the maximum of a measurement."""
    ends = {"median": statistics.median(seconds), "min": min(seconds), "max": max(seconds)}
    return {key: round(value, 6) for key, value in ends.items()}


def ratio(first: Mapping[str, float], second: Mapping[str, float], digits: int = 3) -> float:
    """Returns the ratio of the medians of two spreads."""
    return round(first["median"] / second["median"], digits)


def in_turns(
    name: str,
    runs: Mapping[str, Callable[[], Any]],
    *,
    rounds: int,
    warmup: int = 1,
    after_first: Callable[[], None] = lambda: None,
) -> dict[str, list[float]]:
    """Times functions in turns.

    Args:
        name: The title of the progress bar, which only terminals show.
        runs: The functions by name.
        rounds: The number of measured calls of each function.
        warmup: The number of calls before these, which trace graphs and allocate memory.
        after_first: A check that is called once all functions have had their first turn.

    Returns:
        The seconds of the measured calls by name.
    """
    seconds = {key: [] for key in runs}
    with tqdm.tqdm(total=(warmup + rounds) * len(runs), desc=name, disable=None) as bar:
        for turn in range(warmup + rounds):
            for key, run in runs.items():
                start = time.perf_counter()
                run()
                seconds[key].append(time.perf_counter() - start)
                bar.set_postfix({key: f"{seconds[key][-1]:.3g} s"})
                bar.update()
            if turn == 0:
                after_first()
    return {key: values[warmup:] for key, values in seconds.items()}


def in_new_processes(
    measure: Callable[[Any], dict[str, Any]], points: Sequence[Any], name: str
) -> Iterator[dict[str, Any]]:
    """Yields the measurement of each point, made in a new process with its own peak memory."""
    for point in tqdm.tqdm(points, desc=name, unit="point", disable=None):
        with concurrent.futures.ProcessPoolExecutor(
            1, mp_context=multiprocessing.get_context("spawn"), initializer=prepare_process
        ) as process:
            yield process.submit(measure, point).result()


def memory_mib(**fields: str) -> dict[str, float]:
    """Returns fields of `/proc/PID/status`, summed over this process and its children.

    `VmRSS` is the resident memory, and `VmHWM` is its peak since the process began. Unlike the peak
    in `resource.getrusage`, it does not include the process that started this one.

    Args:
        **fields: The names of the fields in `/proc`, by their names in the result.
    """
    total = dict.fromkeys(fields, 0)
    for path in pathlib.Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):  # the process has ended
            status = dict(line.split(":", 1) for line in path.read_text().splitlines())
            if os.getpid() in (int(status["Pid"]), int(status["PPid"])):
                for name, field in fields.items():
                    total[name] += int(status.get(field, "0 kB").split()[0])
    return {name: round(kib / 1024, 1) for name, kib in total.items()}


def size_mib(path: str | pathlib.Path) -> float:
    """Returns the disk space of a file, or of all files in a directory, without holes."""
    path = pathlib.Path(path)
    files = path.rglob("*") if path.is_dir() else [path]
    return round(sum(file.stat().st_blocks for file in files) * 512 / 2**20, 1)
