"""Measures how long a user waits for the first round: whole processes, and imports."""

import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.timing import in_turns, spread

_ROOT = pathlib.Path(__file__).parents[1]
_CONFIG = f"--config={_ROOT / 'configs' / 'digits.py'}"
_IMPORT = [sys.executable, "-c", "import tensorflow, tensorflow_federated"]


def measure_start(algorithms: Sequence[str], *, rounds: int) -> Iterator[dict[str, Any]]:
    """Yields a record for each kind of start: of helps, of refusals, and of each algorithm.

    A record's `seconds` describe whole processes. `beyond_import` is the median of how much longer
    they take than a process that imports TensorFlow and TFF alone, which runs before each.

    Args:
        algorithms: Trained for a round on handwritten digits, with all files that a run writes.
        rounds: The number of processes of each kind.

    Raises:
        RuntimeError: If a process does not end as it should.
    """
    config = f"{_CONFIG}:{algorithms[0]}"
    starts = {
        "train --help": (["train.py", "--help"], 1),
        "report --help": (["report.py", "--help"], 0),
        "a refused flag": (["train.py", config, "--restarts=-1"], 1),
        "a refused key of a config": (["train.py", config, "--config.round=1"], 1),
        "a refused option of an algorithm": (["train.py", config, "--config.algorithm.no=1"], 1),
        **{
            name: (["train.py", f"{_CONFIG}:{name}", "--config.rounds=1"], 0) for name in algorithms
        },
    }
    for name, ((program, *arguments), code) in starts.items():
        command = [sys.executable, str(_ROOT / "programs" / program), *arguments]
        runs = {
            "import": lambda: ended_with(0, _IMPORT),
            "whole": lambda code=code, command=command: _in_a_folder(code, command),
        }
        seconds = in_turns(name, runs, rounds=rounds, warmup=0)
        pairs = zip(seconds["whole"], seconds["import"], strict=True)
        yield {
            "start": name,
            "seconds": spread(seconds["whole"]),
            "beyond_import": round(statistics.median(whole - part for whole, part in pairs), 3),
            "repetitions": rounds,
        }


def _in_a_folder(code, command):
    with tempfile.TemporaryDirectory(prefix="benchmark_") as folder:
        output = [] if "--help" in command else [f"--output_dir={folder}/run"]
        ended_with(code, [*command, *output])


def ended_with(code: int, command: Sequence[str]) -> None:
    """Runs a command; raises RuntimeError if it ends with another exit code."""
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if ended.returncode != code:
        raise RuntimeError(
            f"{' '.join(command)} ended with {ended.returncode}, not {code}:\n{ended.stderr}"
        )
