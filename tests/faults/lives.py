"""Starts the lives of a training run: processes that are killed or have damaged files.

A life is forked from a process that has imported everything and computed nothing. It starts in a
tenth of a second, and is as independent of other lives as a process that a user started.
"""

import json
import os
import pathlib
import resource
import signal
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow_federated as tff

from tff_pfl import config as configs
from tff_pfl.clients import ClientStateStore
from tff_pfl.clients.records import DiskRecords
from tff_pfl.experiment.metrics_log import MetricsLog

ROUNDS = 16
FAILED = 99  # the exit code of a life that ended with a traceback


def config():
    """Returns the config of a run that takes some seconds, most of them for tracing."""
    of_run = configs.default_config("fedper")
    of_run.rounds = ROUNDS
    of_run.clients_per_round = 2
    of_run.checkpoint_every = 2
    of_run.data.num_clients = 5
    of_run.local.epochs = 1
    of_run.model.options.hidden = (4,)
    of_run.evaluation.every = 5  # sometimes between checkpoints
    return of_run


class Ended(NamedTuple):
    """The end of a life.

    Attributes:
        code: The exit code; negative: the signal that ended the process.
        error: The standard error.
    """

    code: int
    error: str


class Life:
    """A process that runs a program; `wait` waits for its end."""

    def __init__(self, program: Callable[[], int], sabotage: Callable[[], None] = lambda: None):
        """Starts the process.

        Args:
            program: Runs the program and returns its exit code.
            sabotage: Called in the process before the program.
        """
        self._error, error = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(error)
            return
        try:
            os.dup2(error, 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sabotage()
            code = program()
        except BaseException:
            os.write(2, traceback.format_exc().encode())
            code = FAILED
        os._exit(code)  # skips seconds of cleaning up

    def wait(self) -> Ended:
        """Waits for the end of the process."""
        with open(self._error, errors="replace") as file:
            error = file.read().strip()
        _, status = os.waitpid(self.pid, 0)
        return Ended(os.waitstatus_to_exitcode(status), error)


def train(path: pathlib.Path, sabotage=lambda: None, **options) -> Life:
    """Starts a life of the run in `path`, which resumes where the last life ended."""
    options = options or {"resume": True}

    def program():
        return configs.run_program(config(), str(path), **options)

    return Life(program, sabotage)


def results(path: pathlib.Path) -> dict[str, bytes]:
    """Reads the results of a finished run by name, without times, pictures and TensorBoard."""
    names = ["config.json", "metrics.csv", "partition.npz"]
    names += [str(file.relative_to(path)) for file in path.glob("*/round_*")]
    found = {name: (path / name).read_bytes() for name in names if (path / name).exists()}
    summary = json.loads((path / "summary.json").read_text())
    kept = {key: summary[key] for key in ("title", "final", "best_on_test", "late_mean")}
    found["summary.json"] = json.dumps(kept).encode()
    records = _records(path / "checkpoint")
    return found | {f"checkpoint {name}": content for name, content in records.items()}


def _records(checkpoint: pathlib.Path) -> dict[str, bytes]:
    """Returns all records of a valid checkpoint except the progress, which has seconds."""
    records = DiskRecords(str(checkpoint), read_only=True)
    try:
        (header,) = records.read([b"header"])
    finally:
        records.close()
    state_type = tff.types.AbstractType(json.loads(header.partition(b"\n")[0])["state_type"])
    with ClientStateStore(None, state_type, checkpoint, read_only=True) as store:
        found = {f"client {i}": state for i, state in store.snapshot().items()}
        for name in ("server_state", "iterator", "reported"):
            found[name] = store.attachment(name)
    return found


def _around(owner: Any, name: str, number: int, act: Callable[[], None], after: bool) -> None:
    """Runs `act` before or after the call of a function with this number, from 1."""
    function, count = getattr(owner, name), 0

    def counted(*args, **kwargs):
        nonlocal count
        count += 1
        is_due = count == number
        if is_due and not after:
            act()
        result = function(*args, **kwargs)
        if is_due and after:
            act()
        return result

    setattr(owner, name, counted)


def at_commit(number: int, act: Callable[[], None], *, after: bool = False) -> Callable[[], None]:
    """Returns a sabotage that runs `act` before or after the commit with this number, from 1."""
    return lambda: _around(DiskRecords, "write", number, act, after)


def at_call(name: str, number: int, act: Callable[[], None], *, after: bool) -> Callable[[], None]:
    """Returns a sabotage that runs `act` before or after a call of a function of `os`."""
    return lambda: _around(os, name, number, act, after)


def after_first_byte(seconds: float, act: Callable[[], None]) -> Callable[[], None]:
    """Returns a sabotage that runs `act` some time after the run starts to write."""

    def sabotage():
        start = MetricsLog.__init__

        def started(*args, **kwargs):
            later(seconds, act)
            start(*args, **kwargs)

        MetricsLog.__init__ = started

    return sabotage


def later(seconds: float, act: Callable[[], None]) -> None:
    """Runs `act` in a thread after some seconds."""

    def wait():
        time.sleep(seconds)
        act()

    threading.Thread(target=wait, daemon=True).start()


def send(number: signal.Signals) -> Callable[[], None]:
    """Returns a function that sends a signal to its own process."""
    return lambda: os.kill(os.getpid(), number)


def starve(limit: int) -> Callable[[], None]:
    """Returns a sabotage that limits the bytes of each file, as a full disk does."""
    limits = (limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limits)
