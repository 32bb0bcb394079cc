"""The picture of what rounds did when."""

import csv

import numpy as np
import pytest

from tests.runs import run_main, tiny_config, train_run
from tff_pfl.experiment import OutputDirectoryError, RunFiles
from tff_pfl.reports import plot_timeline, spans_of_round

HAND_WRITTEN = {
    "round": 7.0,
    "round_seconds": 10.0,
    "select_seconds": 1.0,
    "compute_seconds": 5.0,
    "write_seconds": 7.0,
    "update_seconds": 1.5,
    "evaluation_seconds": np.nan,
}


def test_spans_of_a_round_that_waits_for_what_is_done_meanwhile():
    spans = {lane: (start, seconds) for lane, start, seconds in spans_of_round(HAND_WRITTEN)}
    assert spans == {
        "select": (0.0, 1.0),
        "compute": (1.0, 5.0),
        "write": (1.0, 7.0),
        "update": (8.5, 1.5),
    }
    evaluated = spans_of_round(HAND_WRITTEN | {"evaluation_seconds": 6.0})
    assert evaluated[-1] == ("evaluation", 10.0, 6.0)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    return train_run(tmp_path_factory.mktemp("run") / "run", tiny_config())


def test_the_picture_of_a_run(run_dir, tmp_path):
    path = tmp_path / "timeline.svg"
    done = run_main("report.py", "timeline", run_dir, f"--output={path}", "--rounds=5")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    drawn = path.read_text()
    for text in ("select the cohort", "compute it", "write the last round", "evaluate"):
        assert text in drawn
    assert "round 1" in drawn and "<!-- 2 -->" in drawn
    plot_timeline(run_dir, path, num_rounds=1)
    assert "round 1" not in path.read_text()


def test_labels_of_short_rounds_leave_those_of_others_legible(tmp_path):
    seconds = {1001: 9.0, 1002: 0.01, 1003: 0.01, 1004: 9.0}
    rows = [(number, each, each) for number, each in seconds.items()]
    with open(tmp_path / "timings.csv", "w", newline="") as file:
        csv.writer(file).writerows([("round", "round_seconds", "compute_seconds"), *rows])
    plot_timeline(tmp_path, tmp_path / "timeline.svg", num_rounds=4)
    drawn = (tmp_path / "timeline.svg").read_text()
    found = [text for text in ("round 1001", *map(str, seconds)) if f"<!-- {text} -->" in drawn]
    assert found == ["round 1001", "1002", "1004"]


def test_a_run_that_does_not_say_what_its_rounds_did(run_dir, tmp_path):
    with pytest.raises(OutputDirectoryError, match="no round was done"):
        plot_timeline(tmp_path, tmp_path / "timeline.png")
    seconds = RunFiles(run_dir).timings()["round_seconds"]
    with open(tmp_path / "timings.csv", "w", newline="") as file:
        csv.writer(file).writerows([("round", "round_seconds"), *enumerate(seconds, 1)])
    with pytest.raises(OutputDirectoryError, match="no numbers in a column compute_seconds"):
        plot_timeline(tmp_path, tmp_path / "timeline.png")
