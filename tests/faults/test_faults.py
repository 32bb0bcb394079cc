"""Tests a short part of `make faults`."""

import pytest

from tests.runs import run_python


@pytest.mark.slow
def test_killed_and_resumed_runs_have_the_results_of_an_uninterrupted_run():
    done = run_python("-m", "tests.faults", "--parts=kills", "--kills=2", "--seed=3")
    assert done.returncode == 0, done.stdout + done.stderr
    header, *rows = done.stdout.splitlines()
    assert header.split() == ["tried", "identical", "refused", "wrong"]
    counts = [row.split()[-4:] for row in rows]
    assert sum(int(tried) for tried, *_ in counts) == 2
    assert all(tried == identical for tried, identical, *_ in counts)
