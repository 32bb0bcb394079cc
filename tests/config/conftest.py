"""Provides a fast training program with a log of its starts."""

import concurrent.futures
import pathlib

import pytest
import sqlalchemy

from tests.experiment.conftest import finished_run, in_a_loop  # noqa: F401  fixtures
from tff_pfl.config import study_check as check


class Program:
    """The training program and its runs so far.

    Attributes:
        path: The program's file.
        log: The file with a line for each start.
    """

    path = pathlib.Path(__file__).with_name("program.py")

    def __init__(self, log):
        self.log = log

    def started(self):
        """Returns the flags of all runs so far, without `--config.`, sorted."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return sorted(line.partition(" by ")[0].replace("--config.", "") for line in lines)

    def process(self):
        """Returns the id of the last run's process, once it has started."""
        return int(self.log.read_text().rpartition(" ")[2])

    def is_running(self):
        """Checks whether a run has started."""
        return self.log.exists() and self.log.read_text().endswith("\n")


@pytest.fixture
def program(tmp_path, monkeypatch):
    monkeypatch.setenv("STARTED", str(tmp_path / "started.txt"))
    return Program(tmp_path / "started.txt")


@pytest.fixture(scope="session", autouse=True)
def databases_without_a_disk():
    """Speeds up Optuna's storages, which need not survive a power cut."""

    @sqlalchemy.event.listens_for(sqlalchemy.engine.Engine, "connect")
    def do_not_wait(connection, _):
        connection.execute("PRAGMA synchronous=OFF")


class ThisProcess:
    """A stand-in for the process that checks a folder of configs, which is slow to start."""

    def __init__(self, *args):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def submit(self, work, *args):
        future = concurrent.futures.Future()
        future.set_result(work(*args))
        return future


@pytest.fixture
def in_this_process(monkeypatch):
    monkeypatch.setattr(check.concurrent.futures, "ProcessPoolExecutor", ThisProcess)
