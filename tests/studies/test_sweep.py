"""Tests how studies are run, resumed and interrupted."""

import csv
import fcntl
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from configs import digits
from tests.analysis.hand_written import write_run
from tests.runs import ROOT, run_main, tiny_config, wait_until, write_study
from tff_pfl.data import Partition
from tff_pfl.experiment import OutputDirectoryError, resolved
from tff_pfl.studies import Study, Tuning, Variant, grid
from tff_pfl.studies.sweep import shares_chosen_with

STUDY = Study("Two", {"A": Variant("a.py"), "B": Variant("b.py", {"x": 1})}, seeds=(0, 7))


def study_of(**settings):
    return Study("One", {"one": Variant("a.py", settings)})


@pytest.mark.thorough
def test_each_run_is_run_once(tmp_path, program, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "study"
    assert program.run(STUDY, "~/study", jobs=2) == []
    first = program.started()
    assert first == [f"--config={x} seed={seed}" for x in ("a.py", "b.py x=1") for seed in (0, 7)]
    (folder / "A/seed7/summary.json").unlink()
    (folder / "A/seed0/summary.json").write_text("{")  # damaged; the program may repair it
    assert program.run(STUDY, folder) == []
    assert program.started() == sorted(first + first[:2])
    assert (folder / "A/seed7.log").read_text() == "started\n"


def test_failed_run_does_not_stop_the_others(tmp_path, program, capsys, monkeypatch):
    variants = {"bad": Variant("a.py", {"fails": True}), "good": Variant("b.py")}
    study = Study("Both", variants)
    failed = program.run(study, tmp_path / "study")
    assert [run.folder for run in failed] == ["bad/seed0"]
    assert "It failed." in (tmp_path / "study/bad/seed0.log").read_text()
    assert (tmp_path / "study/good/seed0/summary.json").exists()
    assert "bad/seed0 failed: It failed.\n" in "".join(capsys.readouterr())
    monkeypatch.setenv("MENDED", "1")
    assert program.run(study, tmp_path / "study") == []


@pytest.mark.thorough
def test_checkpoints_of_finished_runs_can_be_discarded(tmp_path, program):
    folder = tmp_path / "study"
    variants = {"a": Variant("a.py", {"saves": True})}
    program.run(Study("One", variants), folder)
    assert len(list(folder.rglob("checkpoint"))) == 1
    bad = {"bad": Variant("a.py", {"fails": True})}
    for left in (folder / "bad/seed0/checkpoint", folder / "elsewhere/checkpoint"):
        left.mkdir(parents=True)
    failing = Study("Two", variants | bad, seeds=(0, 1))
    program.run(failing, folder, keep_checkpoints=False)
    # Checkpoints of earlier runs are removed, too; failed runs and other folders keep theirs.
    found = {path.parent.relative_to(folder).as_posix() for path in folder.rglob("checkpoint")}
    assert found == {"bad/seed0", "elsewhere"}


@pytest.mark.thorough
def test_runs_with_other_settings_are_refused(tmp_path, program):
    program.run(study_of(rounds=3), tmp_path / "study")
    with pytest.raises(OutputDirectoryError, match="(?s)settings:.*rounds=3.*now has:.*rounds=4"):
        program.run(study_of(rounds=4), tmp_path / "study")
    assert len(program.started()) == 1
    # A run that failed before it had results may be run with other settings.
    assert program.run(study_of(fails=True), tmp_path / "b")
    assert program.run(study_of(rounds=3), tmp_path / "b") == []


def test_one_process_tunes_at_a_time_and_others_share_the_folder(tmp_path, program):
    tuned = Study("Tuned", {"A": Variant("a.py")}, tuning=Tuning(grid({"rate": (1.0, 2.0)})))
    with open(tmp_path / ".study.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert program.run(STUDY, tmp_path) == []
        with pytest.raises(OutputDirectoryError, match=f"already tunes a study in {tmp_path}"):
            program.run(tuned, tmp_path)
    assert program.run(tuned, tmp_path / "tuned") == []


@pytest.mark.thorough
def test_parts_train_each_run_once_and_write_the_same_results(tmp_path, program):
    program.run(STUDY, tmp_path / "whole")
    whole, parts = program.started(), tmp_path / "parts"
    for number in (3, 1, 2):
        assert program.run(STUDY, parts, part=(number, 3)) == []
        done = len(list(parts.rglob("summary.json")))
        assert done == {3: 1, 1: 3, 2: 4}[number]
    assert program.started() == sorted(2 * whole)
    for name in ("results.csv", "study.json"):
        assert (parts / name).read_text() == (tmp_path / "whole" / name).read_text()


def test_studies_with_tuning_have_no_parts(tmp_path, program):
    study = Study("Tuned", {"A": Variant("a.py")}, tuning=Tuning(grid({"x": (1, 2)})))
    with pytest.raises(ValueError, match="has no parts, .* Run it without --part"):
        program.run(study, tmp_path, part=(1, 2))


@pytest.mark.thorough
def test_interruption_ends_the_runs(tmp_path, program):
    def interrupt():
        wait_until(program.is_running)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    timer = threading.Timer(0.0, interrupt)
    timer.start()
    before = time.monotonic()
    variants = {str(i): Variant("a.py", {"waits": True}) for i in range(3)}
    with pytest.raises(KeyboardInterrupt):
        program.run(Study("Waiting", variants), tmp_path / "study", jobs=2)
    timer.join()
    assert time.monotonic() - before < 60
    assert len(program.started()) <= 2 and not cmdline(program.process())


def cmdline(process):
    """Returns the command line of a process; empty if the process has ended."""
    try:
        return pathlib.Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.thorough
def test_run_ends_with_the_process_that_started_it(tmp_path, program):
    """Lets the same study be started again after a kill."""
    script = (
        "from tests.studies.program import train\n"
        "from tff_pfl.studies import Study, Variant, open_engine, run_study\n"
        "study = Study('One', {'one': Variant('a.py', {'waits': True})})\n"
        f"folder = {str(tmp_path / 'study')!r}\n"
        "with open_engine(2, shared=folder) as engine:\n"
        "    run_study(study, folder, engine, recipe_of=tuple, train=train)\n"
    )
    study = subprocess.Popen([sys.executable, "-c", script], env=os.environ | {"PYTHONPATH": ROOT})
    wait_until(program.is_running)
    run = program.process()
    assert cmdline(run)
    study.kill()
    study.wait()
    wait_until(lambda: not cmdline(run))


def test_results_have_a_row_for_each_finished_run(tmp_path, program):
    study = Study("Two", {"A, b": Variant("a.py"), "C": Variant("c.py")}, seeds=(0, 1))
    run = write_run(tmp_path / "A_b/seed1", [0.5, 1.0], seed=1, global_accuracies=[0.25, 0.5])
    write_run(tmp_path / "C/seed0", [0.5], bytes_down=7, seconds=0.1)
    program.run(study, tmp_path)
    with open(tmp_path / "results.csv", newline="") as file:
        head, *rows = csv.reader(file)
    assert ",".join(head) == "label,seed,personalized,global,bytes_down,bytes_up,round_seconds"
    assert rows == [
        ["A, b", "1", "0.75", "0.375", "1000.0", "2000.0", "0.5"],
        ["C", "0", "0.5", "nan", "7.0", "14.0", "0.1"],
    ]
    assert run.exists()


@pytest.mark.thorough
def test_note_reports_test_examples_used_in_tuning(tmp_path, program, capsys):
    """Uses ten examples and two clients; the table has seeds 3 and 4, and the tuning has seed 0."""

    def write(folder, train, validation, test):
        (tmp_path / folder).mkdir(parents=True)
        parts = ([np.array(rows) for rows in clients] for clients in (train, validation, test))
        Partition(*map(tuple, parts)).save(str(tmp_path / folder / "partition.npz"))

    rates = grid({"rate": (1.0, 2.0)})
    variants = {"A": Variant("a.py"), "B": Variant("b.py", trials=[{"rate": 5.0}])}
    study = Study("Rates", variants, seeds=(3, 4), tuning=Tuning(rates))
    for rate in (1.0, 2.0):
        write(f"tuning/A/rate_{rate}/seed0", [[0, 1], [2]], [[3], []], [[4, 5], [6, 7, 8, 9]])
    write("A/seed3", [[4, 5, 6, 7], [8]], [[], []], [[0, 9], [3, 1]])
    write("A/seed4", [[0, 1], [2, 3]], [[], []], [[4, 5], [6, 7]])
    chosen = {"B": {"rate": 5.0}, "A": {"rate": 1.0}}
    assert shares_chosen_with(study, tmp_path, {"B": {"rate": 5.0}}) == {}  # B was not tuned
    assert shares_chosen_with(study, tmp_path, chosen) == {3: 0.75}
    write("tuning/B/rate_5.0/seed0", [[0, 1], [2]], [[3], []], [[4, 5], [6, 7, 8, 9]])
    write("B/seed3", [[0, 1], [2]], [[], []], [[4, 5], [6]])  # shares none, though it is first
    assert shares_chosen_with(study, tmp_path, chosen) == {3: 0.75}
    program.run(study, tmp_path)
    assert "some of the test examples: 75% of seed 3." in "".join(capsys.readouterr())


def test_program_writes_the_table(tmp_path):
    """Runs `sweep.py` on a study whose run is finished."""
    file = write_study(tmp_path, f"{tmp_path}/a.py:choice")
    (tmp_path / "a.py").write_text(
        "from tests.runs import tiny_config\ndef get_config(_): return tiny_config('fedavg')"
    )
    run = write_run(tmp_path / "out/a/seed0", [0.5, 1.0])
    (run / "config.json").write_text(json.dumps(resolved(tiny_config("fedavg"))))
    ended = run_main("sweep.py", f"--study={file}", f"--output_dir={tmp_path / 'out'}")
    assert (ended.returncode, ended.stdout) == (0, (tmp_path / "out/table.md").read_text())
    assert ended.stdout.splitlines()[2].startswith("| a | 75.00 | ")
    assert len((tmp_path / "out/results.csv").read_text().splitlines()) == 2


def test_program_trains_methods_by_one_config(tmp_path):
    """Runs `sweep.py` without a study's file on runs that are finished."""
    for method in ("fedavg", "ditto"):
        folder = write_run(tmp_path / f"{method}/seed0", [0.5, 1.0])
        config = digits.get_config(method)
        config.rounds = 3
        (folder / "config.json").write_text(json.dumps(resolved(config)))
    methods = ("--config=configs/digits.py", "--methods=fedavg,ditto")
    ended = run_main("sweep.py", *methods, "--config.rounds=3", f"--output_dir={tmp_path}")
    assert ended.stdout.splitlines()[3].startswith("| ditto | **75.00** | "), ended.stderr
    ended = run_main("sweep.py", *methods, "--noconfig.data.merge", f"--output_dir={tmp_path}")
    assert "--config.data.merge=False" in ended.stderr
    for few in (methods[:1], methods[1:], ("--study=a.py", *methods), ("--study=a", "--seeds=2")):
        ended = run_main("sweep.py", *few, f"--output_dir={tmp_path}")
        assert "Pass --config with --methods, or --study, whose file" in ended.stderr
