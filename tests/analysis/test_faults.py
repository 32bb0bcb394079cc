"""Tests that killing a study and filling its disk do not change its tables."""

import csv
import os
import resource
import subprocess
import sys

import pytest

from tests.runs import ROOT, wait_until

STUDY = """
from tff_pfl.studies import Study, Tuning, Variant, grid

def get_study():
    return Study(
        title="Three methods, three rates, two seeds",
        variants={
            name: Variant(f"configs/digits.py:{name}") for name in ("fedavg", "ditto", "fedper")
        },
        seeds=(0, 1),
        settings={"rounds": 6},
        tuning=Tuning(
            grid({"local.learning_rate": (0.3, 0.1, 0.01)}),
            {"data.fractions": (0.65, 0.1, 0.25)},
            rounds=(2, 4),
        ),
    )
"""
RUNS = 3 * 3 + 3 * 2


def start(folder, preexec_fn=None):
    sweep = ["programs/sweep.py", f"--study={folder.parent / 'study.py'}", "--jobs=2"]
    return subprocess.Popen(
        [sys.executable, *sweep, f"--output_dir={folder}"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=preexec_fn,
    )


def small_files():
    """Limits the size of files, like a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, resource.RLIM_INFINITY))


def finished(folder):
    return len(list(folder.rglob("summary.json")))


def tables(folder):
    """Returns the results of a study without measured seconds."""
    with open(folder / "results.csv", newline="") as file:
        rows = [{**row, "round_seconds": ""} for row in csv.DictReader(file)]
    lines = (folder / "table.md").read_text().splitlines()
    return rows, [line.rsplit("|", 2)[0] for line in lines], (folder / "tuning.csv").read_text()


@pytest.mark.slow
def test_disturbed_study_gives_the_same_tables(tmp_path):
    (tmp_path / "study.py").write_text(STUDY)
    whole, disturbed = tmp_path / "whole", tmp_path / "disturbed"
    process = start(whole)
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    assert output == (whole / "table.md").read_text()
    assert finished(whole) == RUNS

    process = start(disturbed, small_files)
    _, errors = process.communicate()
    assert process.returncode == 1
    assert "tuning.db cannot be read or written" in errors
    assert finished(disturbed) == 0
    for number in (4, 11):
        process = start(disturbed)
        wait_until(lambda n=number: finished(disturbed) >= n, seconds=600)
        process.kill()
        process.communicate()
        assert finished(disturbed) < RUNS
    process = start(disturbed)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert tables(disturbed) == tables(whole)
