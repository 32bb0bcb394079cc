"""Accuracy against epsilon, of runs that are written by hand."""

import math

import numpy as np
import pytest
from matplotlib.axes import Axes

from tests.reports.hand_written import write_run
from tests.runs import run_main
from tff_pfl.experiment import OutputDirectoryError
from tff_pfl.reports import compared, plot_against_epsilon, points_against_epsilon

ACCURACY = "personalized/local_test/accuracy"


def write_seeds(path, *accuracies, epsilon=None):
    """A run a seed."""
    return [
        write_run(path / str(seed), [accuracy], seed=seed, epsilon=epsilon)
        for seed, accuracy in enumerate(accuracies)
    ]


@pytest.fixture
def comparison(tmp_path):
    runs = {
        "FedAvg | none": write_seeds(tmp_path / "a", 0.9),
        "FedAvg | 8": write_seeds(tmp_path / "b", 0.6, 0.8, epsilon=7.999),
        "FedAvg | 2": write_seeds(tmp_path / "c", 0.5, epsilon=1.998),
        "FedPer | 8": write_seeds(tmp_path / "d", 0.7, epsilon=7.998),
        "FedPer | 2": [tmp_path / "not there"],
    }
    return compared("Two", runs)


def test_points_are_what_runs_have_spent_in_ascending_order(comparison):
    lines = points_against_epsilon(comparison, ACCURACY)
    assert list(lines) == ["FedAvg", "FedPer"]
    expected = [(2.0, 0.5, 0.0), (8.0, 0.7, 0.1 * np.sqrt(2)), (math.inf, 0.9, 0.0)]
    np.testing.assert_allclose(lines["FedAvg"], expected)
    np.testing.assert_allclose(lines["FedPer"], [(8.0, 0.7, 0.0)])


@pytest.fixture
def drawn(monkeypatch):
    """`(x, y, color, yerr)` of each line, once it is drawn."""
    lines, errorbar = [], Axes.errorbar

    def recorded(axes, x, y, **options):
        lines.append((x, y, options["color"], options["yerr"]))
        return errorbar(axes, x, y, **options)

    monkeypatch.setattr(Axes, "errorbar", recorded)
    return lines


def test_no_epsilon_at_all_stands_at_the_left(tmp_path, drawn):
    """Noise that is large enough has an epsilon of 0, which has no logarithm."""
    epsilons = {"0": 0.0, "2": 2.0, "none": None}
    runs = {
        f"FedAvg | {words}": write_seeds(tmp_path / words, 0.5, epsilon=epsilon)
        for words, epsilon in epsilons.items()
    }
    plot_against_epsilon(compared("Three", runs), ACCURACY, tmp_path / "picture.svg")
    (left, middle), (right,) = (places for places, *_ in drawn)
    assert middle - left == pytest.approx(right - middle) and left < middle


def test_what_has_no_privacy_stands_by_itself_at_the_right(comparison, tmp_path, drawn):
    plot_against_epsilon(comparison, ACCURACY, tmp_path / "picture.svg")
    places, values, colors, bars = zip(*drawn, strict=True)
    assert values == ([0.5, 0.7], [0.9], [0.7])
    assert colors[0] == colors[1] != colors[2]
    assert bars[0] == pytest.approx([0.0, 0.1 * np.sqrt(2)])
    assert places[0][0] < places[0][1] < places[1][0]
    assert 0 < places[2][0] - places[0][1] < 0.1  # beside each other, not on top
    text = (tmp_path / "picture.svg").read_text()
    for words in ("FedAvg", "FedPer", "epsilon of all rounds", "without", "accuracy of each"):
        assert words in text


def test_the_program_draws_it(tmp_path):
    runs = [f"FedAvg:{write_seeds(tmp_path / 'a', 0.6)[0]}"]
    path = tmp_path / "picture.png"
    done = run_main("report.py", "against_epsilon", *runs, f"--output={path}")
    assert (done.returncode, done.stderr) == (0, "")
    assert path.read_bytes().startswith(b"\x89PNG")
    done = run_main("report.py", "against_epsilon", *runs, f"--output={path}", "--column=x/y/z")
    assert done.returncode == 1 and "x/y/z" in done.stderr


def test_a_study_without_finished_runs(tmp_path):
    with pytest.raises(OutputDirectoryError, match="no finished run"):
        points_against_epsilon(compared("None", {"a": [tmp_path]}), ACCURACY)
