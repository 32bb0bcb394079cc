"""Runs contestants as processes, which take turns, one round each.

Contestants are started one by one. With turns, a slower machine slows all contestants. Contestants
that wait for a turn sleep.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
import tqdm

from benchmarks.contestants import processes
from benchmarks.timing import ratio, spread

_FOLDER = pathlib.Path(__file__).resolve().parent
_ROOT = _FOLDER.parents[1]
BARE = "bare_tensorflow"
_SECONDS_TO_END = 10
_LINES_OF_ERRORS = 15


class ContestantError(RuntimeError):
    """A contestant ended, did not answer, or did different work."""


# The methods of each framework, by their names in this library.
METHODS = {
    BARE: ("fedavg",),
    "tff_pfl": ("fedavg", "fedrep", "ditto", "apfl", "pgfed"),
    "pfllib": ("fedavg", "fedrep", "ditto", "apfl"),
    "pgfed_authors": ("pgfed",),
    "pfl_research": ("fedavg",),
    "fedjax": ("fedavg", "apfl"),
    "flower": ("fedavg",),
}
OWN = (BARE, "tff_pfl")  # others have their own Python, which need not have this library
_CHECKOUTS = ("pfllib", "pgfed_authors")  # not packages: need their repositories
_FULL_BATCHES = _CHECKOUTS  # drop a client's incomplete batch
_CNN_ONLY = ("pgfed_authors",)


@dataclasses.dataclass(frozen=True)
class Work:
    """The work of a round: training a network with SGD on synthetic images.

    Attributes:
        clients: The number of clients in the federation.
        clients_per_round: The number of clients that the framework selects; at most `clients`.
        examples_per_client: The number of examples of each client; a multiple of `batch_size`
            unless sizes are unequal, of which it is the mean.
        epochs: The passes over a client's examples in a round, for each model that a method trains.
        batch_size: The number of examples in a step.
        learning_rate: The learning rate of all models.
        seed: The seed of the framework if it takes one.
        network: A key of `common.NETWORKS`.
        sigma: The spread of the clients' sizes, which are lognormal; 0 for equal sizes.
        jit_compile: Whether XLA compiles this library's client work on CPUs, too.

    Raises:
        ValueError: A client's examples do not make full batches.
    """

    clients: int = 100
    clients_per_round: int = 10
    examples_per_client: int = 500
    epochs: int = 5
    batch_size: int = 50
    learning_rate: float = 0.01
    seed: int = 0
    network: str = "cnn"
    sigma: float = 0.0
    jit_compile: bool = False

    def __post_init__(self):
        """Checks that batches of equal clients are full."""
        if not self.sigma and self.examples_per_client % self.batch_size:
            raise ValueError(
                f"--examples_per_client={self.examples_per_client} must be a multiple of "
                f"{self.batch_size}, because frameworks treat incomplete batches differently."
            )


@dataclasses.dataclass(frozen=True)
class Contestant:
    """A method of a framework.

    Attributes:
        framework: A key of `METHODS`, or the name of another program in the records.
        method: A method of the framework.
        python: The Python interpreter of its environment.
        checkout: The folder of its repository, if it is not a package.
        program: A script that follows the protocol of `common.py`; by default the framework's
            script in this folder.
    """

    framework: str
    method: str
    python: str = sys.executable
    checkout: str | None = None
    program: str | None = None

    def command(self, work: Work) -> list[str]:
        """Returns the command that starts the contestant, with its settings in a JSON argument."""
        program = self.program or str(_FOLDER / f"with_{self.framework}.py")
        options = {"method": self.method, "checkout": self.checkout} | dataclasses.asdict(work)
        return [self.python, program, json.dumps(options)]

    def commit(self) -> dict[str, str]:
        """Returns the commit of the checkout, if it has one."""
        if self.checkout is None:
            return {}
        command = ["git", f"--git-dir={self.checkout}/.git", "rev-parse", "HEAD"]
        found = subprocess.run(command, capture_output=True, text=True)
        return {"commit": found.stdout.strip()} if found.returncode == 0 else {}


def check_work(framework: str, work: Work) -> None:
    """Raises ValueError if a framework cannot do the work."""
    if work.sigma and framework in _FULL_BATCHES:
        raise ValueError(
            f"{framework} drops incomplete batches, which unequal clients have. Leave out "
            f"--{framework} or --unequal."
        )
    if work.network != "cnn" and framework in _CNN_ONLY:
        raise ValueError(f"{framework} trains the CNN only. Leave out --{framework} or --network.")


def place(framework: str, where: str) -> dict[str, str]:
    """Returns the Python and the checkout of a framework, as arguments of `Contestant`.

    Args:
        framework: A key of `METHODS`.
        where: "PYTHON", or "PYTHON:CHECKOUT" for a framework that is not a package.

    Raises:
        ValueError: The Python or the checkout does not exist.
    """
    python, _, checkout = where.partition(":")
    if not shutil.which(python):
        raise ValueError(f"{python!r} cannot be run; it must be a Python interpreter.")
    if framework not in _CHECKOUTS:
        return {"python": python}
    if not os.path.isdir(os.path.join(checkout, "system", "flcore")):
        raise ValueError(
            f"{where!r} must be PYTHON:CHECKOUT of {framework}, with a folder system/flcore."
        )
    return {"python": python, "checkout": os.path.abspath(checkout)}


def compare(
    contestants: Sequence[Contestant], work: Work, *, rounds: int, time_limit: float
) -> Iterator[dict[str, Any]]:
    """Runs contestants in turns.

    Args:
        contestants: The contestants. They are compared with the bare loop if it is among them.
        work: The work of a round.
        rounds: The number of measured rounds of each contestant, after one that is not measured.
        time_limit: The seconds that a contestant has to answer.

    Yields:
        A record for each contestant, in order: `seconds_per_round`, and `times_bare`, the ratio of
        its median to the bare loop's, or `None` without a bare loop. The same of the processor,
        `cpu_seconds_per_round` and `cpu_times_bare`, if the contestant knows them. If it fails, its
        record has the reason, `failed`, and the end of its `stderr`. A contestant fails if its
        model has a different number of weights than the first one.
    """
    with contextlib.ExitStack() as resources:
        folder = pathlib.Path(resources.enter_context(tempfile.TemporaryDirectory()))
        total = len(contestants) * (2 + rounds)
        bar = resources.enter_context(tqdm.tqdm(total=total, unit="turn", disable=None))
        running, expected = [], None
        for number, contestant in enumerate(contestants):
            process = _Running(contestant, work, folder / str(number), time_limit)
            running.append(resources.enter_context(process))
            process.try_step(process.get_ready, expected)
            expected = expected or process.num_weights
            bar.update()
        for turn in range(1 + rounds):
            for process in running:
                process.try_step(process.take_turn, turn > 0)
                bar.update()
    bare = next((one for one in running if one.is_bare and not one.failed), None)
    for process in running:
        yield process.record(bare)


def markdown_table(records: Iterable[Mapping[str, Any]]) -> str:
    """Returns a table with a row for each framework and a column for each method.

    Args:
        records: The records of `compare`.
    """
    cells = pd.DataFrame([{**record, "cell": _cell(record)} for record in records])
    table = cells.pivot_table("cell", "framework", "method", aggfunc="first", sort=False)
    rows = [["framework", *table], ["---"] + ["---:"] * table.shape[1]]
    rows += table.fillna("").reset_index().to_numpy().tolist()
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(record):
    if "failed" in record:
        return "failed"
    seconds = f"{record['seconds_per_round']['median']:.3g} s"
    times = record["times_bare"]
    return seconds if times is None else f"{seconds} ({times:.2f} x)"


class _Running:
    """The process of a contestant, a context manager that ends the process on exit.

    Attributes:
        num_weights: The number of the model's weights, once the contestant is ready.
        rounds: The times of the measured rounds, by the names of clocks.
        failed: The reason and the end of stderr if the contestant has failed, or an empty mapping.
    """

    def __init__(self, contestant, work, folder, time_limit):
        folder.mkdir()
        self.is_bare = contestant.framework == BARE
        self.num_weights = None
        self.rounds = []
        self.failed = {}
        self._contestant, self._time_limit = contestant, time_limit
        self._errors = folder.with_suffix(".stderr")
        path = (
            str(_ROOT) if contestant.framework in OWN else ""
        )  # others must not need this library
        with open(self._errors, "wb") as errors:
            self._process = subprocess.Popen(
                contestant.command(work),
                cwd=folder,
                env=os.environ | {"PYTHONPATH": path, "TMPDIR": str(folder)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
                start_new_session=True,
            )

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        """Closes the input, at which the process ends, and kills it if it does not."""
        processes.end(self._process, _SECONDS_TO_END)

    def try_step(self, step, *arguments):
        """Runs a step of the contestant, unless it has already failed."""
        if self.failed:
            return
        try:
            step(*arguments)
        except ContestantError as error:
            processes.kill(self._process)
            lines = self._errors.read_text(errors="replace").splitlines()
            self.failed = {"failed": str(error), "stderr": lines[-_LINES_OF_ERRORS:]}

    def get_ready(self, expected):
        """Waits until the contestant is ready; checks its number of weights unless it is first."""
        ready = self._answer("is not ready")
        self._versions = ready["versions"] | self._contestant.commit()
        self.num_weights = ready["num_weights"]
        if expected not in (None, self.num_weights):
            raise ContestantError(
                f"Its model has {self.num_weights:,} weights instead of {expected:,}."
            )

    def take_turn(self, counts):
        """Runs one more round."""
        with contextlib.suppress(BrokenPipeError):  # `_answer` reports how the process ended
            self._process.stdin.write(b"round\n")
        times = self._answer("has not finished a round")
        if counts:
            self.rounds.append(times)

    def spread(self, clock):
        """Returns the spread of the measured rounds, by a clock that the contestant has."""
        return spread([times[clock] for times in self.rounds])

    def record(self, bare):
        """Returns the measurements; `bare` is the process of the bare loop, or `None`."""
        names = {"framework": self._contestant.framework, "method": self._contestant.method}
        if self.failed:
            return names | self.failed
        record = names | {
            "versions": self._versions,
            "num_weights": self.num_weights,
            "rounds": len(self.rounds),
        }
        for clock in self.rounds[0]:
            own = record[f"{clock}_per_round"] = self.spread(clock)
            times = clock.replace("seconds", "times_bare")
            record[times] = ratio(own, bare.spread(clock), 2) if bare else None
        return record

    def _answer(self, failure):
        is_late = threading.Event()
        timer = threading.Timer(
            self._time_limit, lambda: (is_late.set(), processes.kill(self._process))
        )
        timer.start()
        line = self._process.stdout.readline()
        timer.cancel()
        if is_late.is_set():
            raise ContestantError(f"It {failure} after {self._time_limit:g} seconds.")
        if not line:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_SECONDS_TO_END)
            raise ContestantError(f"It ended with exit code {self._process.poll()}.")
        try:
            return json.loads(line)
        except ValueError as error:
            raise ContestantError(f"It answered {line.strip()!r}, which is not JSON.") from error
