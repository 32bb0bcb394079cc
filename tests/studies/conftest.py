"""Provides studies whose runs take no time, with a log of their starts."""

import pytest
import sqlalchemy

from tests.experiment.conftest import finished_run, in_a_loop  # noqa: F401  fixtures
from tests.studies.program import train
from tff_pfl.studies import open_engine, run_study


class Program:
    """Studies whose runs take no time, and their runs so far.

    Attributes:
        log: The file with a line for each start.
    """

    def __init__(self, log):
        self.log = log

    def run(self, study, folder, jobs=1, **options):
        """Runs a study; returns the runs that failed."""
        with open_engine(jobs, shared=folder) as engine:
            return run_study(study, folder, engine, recipe_of=tuple, train=train, **options)

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
