"""Tests the training program as a user runs it."""

import csv
import os
import shutil
import signal
import subprocess
import sys
import threading
from unittest import mock

import pytest

from tests.marks import slow
from tests.runs import ROOT, run_main, run_python, wait_until
from tff_pfl import config as configs
from tff_pfl.data import plot_partition
from tff_pfl.experiment import rounds

pytestmark = pytest.mark.usefixtures("clients_in_a_loop")

# The values of `tests.runs.tiny_config` except the rounds, to share its process.
SMALL = [
    "--config.rounds=20",
    "--config.clients_per_round=2",
    "--config.data.num_clients=4",
    "--config.data.dirichlet.min_examples=10",
    "--config.local.epochs=1",
    "--config.local.batch_size=50",
    "--config.model.options.hidden=(4,)",
    "--config.evaluation.every=10",
]


def command(output_dir, *flags, config="configs/digits.py:ditto"):
    return ["train.py", f"--config={ROOT / config}", f"--output_dir={output_dir}", *flags]


def train(output_dir, *flags, **options):
    """Runs the program in this process."""
    return run_main(*command(output_dir, *flags, **options))


def has_rounds(path, number):
    metrics = path / "metrics.csv"
    return metrics.exists() and metrics.read_text().count("\n") > number


def end_early(path):
    """Trains half of the rounds in this process, and draws the picture of the partition."""
    with mock.patch.object(rounds, "plot_partition", plot_partition):
        ended = train(path, *SMALL, "--config.rounds=10")
    assert ended.returncode == 0, ended.stderr


def kill(path):
    """Kills a training process after three rounds."""
    program, *arguments = command(path, *SMALL)
    process = subprocess.Popen(
        [sys.executable, ROOT / "programs" / program, *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: has_rounds(path, 3) or process.poll() is not None)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)  # returns because no worker holds the output open
    assert 3 < (path / "metrics.csv").read_text().count("\n") < 21


@pytest.fixture(scope="module", params=[end_early, slow(kill)])
def resumed(request, tmp_path_factory, clients_in_a_loop):
    """Returns the directory of a run that was resumed in another process, and that process."""
    path = tmp_path_factory.mktemp("runs") / "resumed"
    request.param(path)
    program, *arguments = command(path, *SMALL)
    return path, run_python(ROOT / "programs" / program, *arguments, "--resume")


@pytest.mark.thorough
def test_program_prints_only_the_result(resumed):
    path, done = resumed
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0].startswith("clients are computed on /device:")
    assert lines.pop(1).startswith("tracing and compiling a round")
    if lines[1].startswith("round 10: "):  # it may have been evaluated before
        del lines[1]
    assert lines[1].startswith("round 20: personalized/local_test/loss ")
    assert lines[3].startswith("ditto on digits, ")
    assert f"results: {path}" in lines
    for name in ("personalized/local_test/accuracy", "global/local_test/accuracy"):
        assert any(line.strip().startswith(name) for line in lines)
    assert (path / "partition.png").stat().st_size > 1000


@pytest.mark.thorough
def test_resumed_run_has_the_numbers_of_an_uninterrupted_run(resumed, tmp_path):
    whole = train(tmp_path / "whole", *SMALL)
    assert whole.returncode == 0, whole.stderr
    for name in ("metrics.csv", "clients/round_000020.csv"):
        assert (resumed[0] / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.thorough
def test_ctrl_c_prints_how_to_resume(tmp_path):
    path = tmp_path / "run"

    def interrupt():
        wait_until(lambda: has_rounds(path, 2))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    done = train(path, *SMALL, "--config.rounds=100000")
    thread.join()
    assert done.returncode == 130
    message = f"interrupted; pass --resume to continue the run in {path}"
    assert done.stderr.strip().splitlines()[-1] == message
    with open(path / "metrics.csv") as file:
        assert 2 <= len(list(csv.DictReader(file))) < 100000


@pytest.mark.parametrize(
    ("restarts", "expected", "resume"),
    [(0, [], True), (2, ["--restarts=1"], True), (2, ["--restarts=1"], False)],
)
def test_program_restarts_after_a_lost_worker(monkeypatch, tmp_path, restarts, expected, resume):
    def lose(*_, restart, **__):
        restart(resume)
        return os.EX_TEMPFAIL

    monkeypatch.setattr(configs, "run_program", lose)
    executed = []
    monkeypatch.setattr(os, "execv", lambda _, command: executed.extend(command))
    assert train(tmp_path / "run", f"--restarts={restarts}").returncode == os.EX_TEMPFAIL
    assert executed[-1:] == expected
    assert ("--nooverwrite" in executed) == ("--resume" in executed) == bool(expected and resume)


@pytest.mark.thorough
def test_damaged_checkpoint_is_an_error(resumed, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(resumed[0], path)
    with open(path / "checkpoint" / "data.mdb", "r+b") as file:
        file.write(b"\0" * 10000)
    done = train(path, *SMALL, "--config.rounds=21", "--resume")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "checkpoint" in done.stderr
