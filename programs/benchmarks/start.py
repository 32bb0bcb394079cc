"""What a user waits for until the first round is done: whole processes, and imports alone."""

import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

import tqdm

from benchmarks.figures import spread

_PROGRAMS = pathlib.Path(__file__).parents[1]
_CONFIG = f"--config={_PROGRAMS.parent / 'configs' / 'digits.py'}"
_IMPORT = [sys.executable, "-c", "import tensorflow, tensorflow_federated"]


class StartError(RuntimeError):
    """A process that did not end as it should."""


def measure_start(algorithms: Sequence[str], *, repetitions: int) -> Iterator[dict[str, Any]]:
    """Yields a record for each kind of start: of helps, of refusals, and of each algorithm.

    A record's `seconds` are of whole processes, `beyond_import` the median of how much longer they
    take than TensorFlow and TFF take to import, in a process of its own before each.

    Args:
        algorithms: Trained for a round on handwritten digits, with all that a run writes.
        repetitions: Of each.

    Raises:
        StartError: If a process does not end as it should.
    """
    helps = {f"{name} --help": [f"{name}.py", "--help"] for name in ("train", "report")}
    train = {name: ["train.py", f"{_CONFIG}:{name}", "--config.rounds=1"] for name in algorithms}
    config = f"{_CONFIG}:{algorithms[0]}"
    starts = [
        *((name, arguments, 1) for name, arguments in helps.items()),
        ("a refused flag", ["train.py", config, "--restarts=-1"], 1),
        ("a refused key of a config", ["train.py", config, "--config.round=1"], 1),
        ("a refused option of an algorithm", ["train.py", config, "--config.algorithm.no=1"], 1),
        *((name, arguments, 0) for name, arguments in train.items()),
    ]
    for name, arguments, code in tqdm.tqdm(starts, desc="start", unit="kind", disable=None):
        seconds, imports = [], []
        for _ in range(repetitions):
            imports.append(_seconds(_IMPORT, 0))
            with tempfile.TemporaryDirectory(prefix="benchmark_") as folder:
                run = [] if "--help" in arguments else [f"--output_dir={folder}/run"]
                program = [sys.executable, str(_PROGRAMS / arguments[0])]
                seconds.append(_seconds([*program, *arguments[1:], *run], code))
        differences = [whole - part for whole, part in zip(seconds, imports, strict=True)]
        yield {
            "start": name,
            "seconds": spread(seconds),
            "beyond_import": round(statistics.median(differences), 3),
            "repetitions": repetitions,
        }


def _seconds(command, code):
    start = time.perf_counter()
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    if ended.returncode != code:
        raise StartError(
            f"{' '.join(command)} ended with {ended.returncode}, not {code}:\n{ended.stderr}"
        )
    return seconds
