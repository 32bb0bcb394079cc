"""Kills the processes of studies, and compares their results with those of an undisturbed one."""

import os
import pathlib
import random
import signal
import subprocess
import sys
import time
import uuid

import pandas as pd

from tests.runs import ROOT, wait_until

_METHODS = ("local", "fedavg", "fedper", "ditto")
_LONGEST = 12.0  # seconds until a kill; half of them pass before workers train


class StudyProgram:
    """A process of `sweep.py` with two workers on four runs that take some seconds each."""

    def __init__(self, folder: pathlib.Path):
        """Starts the process."""
        self._mark = f"FAULT={uuid.uuid4().hex}"
        name, _, value = self._mark.partition("=")
        arguments = [
            "--config=configs/digits.py",
            f"--methods={','.join(_METHODS)}",
            "--config.rounds=40",
            "--config.checkpoint_every=4",
            f"--output_dir={folder}",
            "--jobs=2",
        ]
        environment = os.environ | {"PYTHONPATH": str(ROOT), name: value}
        self._process = subprocess.Popen(
            [sys.executable, "programs/sweep.py", *arguments],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def processes(self) -> list[int]:
        """Returns the processes of the program that are alive, its own first."""
        found = []
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if self._mark in (folder / "environ").read_text(errors="replace").split("\0"):
                    found.append(int(folder.name))
            except OSError:  # it has ended, or belongs to another user
                continue
        return sorted(found)

    def workers(self) -> list[int]:
        """Returns the processes that train runs."""
        return [
            process
            for process in self.processes()
            if "spawn_main" in pathlib.Path(f"/proc/{process}/cmdline").read_text()
        ]

    @property
    def is_running(self) -> bool:
        """Whether the program has not ended."""
        return self._process.poll() is None

    def kill(self, number: int) -> None:
        """Sends a signal to the program, and waits until all of its processes have ended."""
        os.kill(self._process.pid, number)
        self._process.wait()
        wait_until(lambda: not self.processes(), 20)

    def wait(self) -> None:
        """Waits for the end.

        Raises:
            RuntimeError: The program has failed.
        """
        _, errors = self._process.communicate()
        wait_until(lambda: not self.processes(), 20)
        if self._process.returncode:
            raise RuntimeError(f"A study has failed:\n{errors}")


def results(folder: pathlib.Path) -> dict[str, str]:
    """Returns the results of a study, and the metrics of its runs, without seconds."""
    table = pd.read_csv(folder / "results.csv").drop(columns="round_seconds")
    metrics = {
        str(path.relative_to(folder)): path.read_text() for path in folder.rglob("metrics.csv")
    }
    return {"results.csv": table.to_csv(), **metrics}


def disturb(folder: pathlib.Path, choices: random.Random, number: int) -> list[str]:
    """Kills workers and the program itself, until the study is finished; returns each fault."""
    done: list[str] = []
    program = StudyProgram(folder)
    while len(done) < number:
        time.sleep(choices.uniform(1.0, _LONGEST))
        if not program.is_running:
            break
        target = choices.choice(["a worker", "a worker", "the program"])
        workers = program.workers()
        if target == "a worker" and workers:
            os.kill(choices.choice(workers), signal.SIGKILL)
            done.append("SIGKILL, a worker of a study")
        elif target == "the program":
            sent = choices.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
            program.kill(sent)
            done.append(f"{sent.name}, a study")
            program = StudyProgram(folder)
    program.wait()
    return done
