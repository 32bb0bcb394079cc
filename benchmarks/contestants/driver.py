"""Runs contestants, each a process: they are started one by one, then take turns, a round each.

A machine that slows down slows all of them. Those that wait for a turn sleep.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
import tqdm

from benchmarks.timing import ratio, spread

_FOLDER = pathlib.Path(__file__).resolve().parent
_ROOT = _FOLDER.parents[1]
BARE = "bare_tensorflow"
_SECONDS_TO_END = 10
_LINES_OF_ERRORS = 15


class ContestantError(RuntimeError):
    """A contestant that ended, did not answer or did other work: the message says which."""


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
OWN = (BARE, "tff_pfl")  # the others have a Python of their own, which need not have this library
_CHECKOUTS = ("pfllib", "pgfed_authors")  # which are no packages: their repositories are needed


@dataclasses.dataclass(frozen=True)
class Work:
    """The work of a round: training PGFed's CNN by SGD on synthetic 32x32x3 images.

    Attributes:
        clients: The number of clients in the federation.
        clients_per_round: How many of them the framework selects; at most `clients`.
        examples_per_client: The same number for all clients; a multiple of `batch_size`.
        epochs: Passes over a client's examples in a round, for each model that a method trains.
        batch_size: The number of examples in a step.
        learning_rate: The learning rate of all models.
        seed: The seed of the data, and of the framework if it takes one.

    Raises:
        ValueError: If a client's examples do not make full batches.
    """

    clients: int = 100
    clients_per_round: int = 10
    examples_per_client: int = 500
    epochs: int = 5
    batch_size: int = 50
    learning_rate: float = 0.01
    seed: int = 0

    def __post_init__(self):
        if self.examples_per_client % self.batch_size:
            raise ValueError(
                f"Clients have {self.examples_per_client} examples, which make no full batches of "
                f"{self.batch_size}; frameworks differ in what they do with the rest."
            )


@dataclasses.dataclass(frozen=True)
class Contestant:
    """A method of a framework.

    Attributes:
        framework: A key of `METHODS`, or the name of another program in the records.
        method: One of its methods.
        python: The Python interpreter of its environment.
        checkout: The folder of its repository, if it is not a package.
        program: A script that speaks the protocol of `common.py`; by default the framework's
            script in this folder.
    """

    framework: str
    method: str
    python: str = sys.executable
    checkout: str | None = None
    program: str | None = None

    def command(self, work: Work) -> list[str]:
        """Returns the command that starts it; its argument is all that it has to know, as JSON."""
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


def place(framework: str, where: str) -> dict[str, str]:
    """Returns the Python and the checkout of a framework, as arguments of `Contestant`.

    Args:
        framework: A key of `METHODS`.
        where: "PYTHON", or "PYTHON:CHECKOUT" of a framework that is no package.

    Raises:
        ValueError: There is no such Python or checkout.
    """
    python, _, checkout = where.partition(":")
    if not shutil.which(python):
        raise ValueError(f"{python!r} is no program that can be run; it should be a Python.")
    if framework not in _CHECKOUTS:
        return {"python": python}
    if not os.path.isdir(os.path.join(checkout, "system", "flcore")):
        raise ValueError(
            f"{where!r} should be PYTHON:CHECKOUT of {framework}, with a folder system/flcore."
        )
    return {"python": python, "checkout": os.path.abspath(checkout)}


def compare(
    contestants: Sequence[Contestant], work: Work, *, rounds: int, time_limit: float
) -> Iterator[dict[str, Any]]:
    """Runs contestants in turns.

    Args:
        contestants: The contestants; all are compared with the bare loop, if it is one of them.
        work: The work of a round.
        rounds: The number of rounds of each that count, after one that does not.
        time_limit: Seconds after which a contestant that has not answered has failed.

    Yields:
        A record for each contestant, in their order: `seconds_per_round`, and `times_bare`, the
        ratio of its median to the bare loop's, or `None` without a bare loop. The record of one
        that failed has the reason, `failed`, and the end of its `stderr`. A contestant fails if its
        model has another number of weights than the first one's.
    """
    with contextlib.ExitStack() as resources:
        folder = pathlib.Path(resources.enter_context(tempfile.TemporaryDirectory()))
        total = len(contestants) * (2 + rounds)
        bar = resources.enter_context(tqdm.tqdm(total=total, unit="turn", disable=None))
        running, expected = [], None
        for number, contestant in enumerate(contestants):
            one = _Running(contestant, work, folder / str(number), time_limit)
            running.append(resources.enter_context(one))
            one.trying(one.get_ready, expected)
            expected = expected or one.num_weights
            bar.update()
        for turn in range(1 + rounds):
            for one in running:
                one.trying(one.take_turn, turn > 0)
                bar.update()
    bare = [spread(one.seconds) for one in running if one.is_bare and not one.failed]
    for one in running:
        yield one.record(*bare)


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
    """A contestant's process, which ends when it is left.

    Attributes:
        num_weights: The number of the model's weights, once it is ready.
        seconds: Those of the rounds that count.
        failed: Why it failed, and the end of its standard error; empty if it did not.
    """

    def __init__(self, contestant, work, folder, time_limit):
        folder.mkdir()
        self.is_bare = contestant.framework == BARE
        self.num_weights = None
        self.seconds = []
        self.failed = {}
        self._contestant, self._time_limit = contestant, time_limit
        self._errors = folder.with_suffix(".stderr")
        path = str(_ROOT) if contestant.framework in OWN else ""  # others do without this library
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
        """Ends it, which it does by itself where no round is wanted any more."""
        self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_SECONDS_TO_END)
        self._kill()
        self._process.stdout.close()

    def _kill(self):
        """Ends it at once, with all processes that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def trying(self, step, *arguments):
        """Does a step of it, unless it has failed before."""
        if self.failed:
            return
        try:
            step(*arguments)
        except ContestantError as error:
            self._kill()
            lines = self._errors.read_text(errors="replace").splitlines()
            self.failed = {"failed": str(error), "stderr": lines[-_LINES_OF_ERRORS:]}

    def get_ready(self, expected):
        """Waits until it is ready, with so many weights; `None` if it may have any."""
        ready = self._answer("is not ready")
        self._versions = ready["versions"] | self._contestant.commit()
        self.num_weights = ready["num_weights"]
        if expected not in (None, self.num_weights):
            raise ContestantError(
                f"Its model has {self.num_weights:,} weights, where all have {expected:,}."
            )

    def take_turn(self, counts):
        """Does one more round."""
        with contextlib.suppress(BrokenPipeError):  # the answer says how it ended
            self._process.stdin.write(b"round\n")
        seconds = float(self._answer("has not finished a round"))
        if counts:
            self.seconds.append(seconds)

    def record(self, *bare):
        """Returns what was measured; `bare` is the spread of the bare loop, if there is one."""
        names = {"framework": self._contestant.framework, "method": self._contestant.method}
        if self.failed:
            return names | self.failed
        own = spread(self.seconds)
        return names | {
            "versions": self._versions,
            "num_weights": self.num_weights,
            "rounds": len(self.seconds),
            "seconds_per_round": own,
            "times_bare": ratio(own, bare[0], 2) if bare else None,
        }

    def _answer(self, what_is_late):
        is_late = threading.Event()
        timer = threading.Timer(self._time_limit, lambda: (is_late.set(), self._kill()))
        timer.start()
        line = self._process.stdout.readline()
        timer.cancel()
        if is_late.is_set():
            raise ContestantError(f"It {what_is_late} after {self._time_limit:g} seconds.")
        if not line:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_SECONDS_TO_END)
            raise ContestantError(f"It ended with exit code {self._process.poll()}.")
        try:
            return json.loads(line)
        except ValueError as error:
            raise ContestantError(f"It answered {line.strip()!r}, which is no JSON.") from error
