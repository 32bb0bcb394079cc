"""Accuracy against bytes, of runs that are written by hand."""

import warnings

import numpy as np
import pytest
from matplotlib.axes import Axes

from tests.reports.hand_written import keep_evaluated_rounds, write_run
from tests.runs import run_main
from tff_pfl.experiment import OutputDirectoryError
from tff_pfl.reports import compared, curve_against_bytes, plot_against_bytes

ACCURACY = "personalized/local_test/accuracy"


def write_seeds(path, *accuracies, bytes_down=1000):
    """A run a seed; clients send twice what they receive."""
    return [
        write_run(path / str(seed), [accuracy], seed=seed, bytes_down=bytes_down)
        for seed, accuracy in enumerate(accuracies)
    ]


def test_bytes_add_up_until_an_evaluation(tmp_path):
    runs = write_seeds(tmp_path, 0.6, 0.8)
    curve = curve_against_bytes(runs, ACCURACY)
    np.testing.assert_allclose(curve.megabytes, [0.010, 0.020])  # of rounds 5 and 10
    np.testing.assert_allclose(curve.means, [0.35, 0.7])
    np.testing.assert_allclose(curve.deviations, np.array([0.05, 0.1]) * np.sqrt(2))
    again = curve_against_bytes(list(map(keep_evaluated_rounds, runs)), ACCURACY)
    np.testing.assert_array_equal(again.megabytes, curve.megabytes)


@pytest.fixture
def comparison(tmp_path):
    runs = {
        "FedAvg | 32 bits": write_seeds(tmp_path / "a", 0.6, 0.8),
        "FedAvg | top 1 %": write_seeds(tmp_path / "b", 0.5, bytes_down=20),
        "FedPer | top 1 %": write_seeds(tmp_path / "c", 0.7, bytes_down=20),
        "FedPer | 32 bits": [tmp_path / "not there"],
    }
    return compared("Two", runs)


def test_a_panel_a_method_and_a_line_a_compressor(comparison, tmp_path, monkeypatch):
    drawn, plot = [], Axes.plot

    def recorded(axes, *args, **options):
        drawn.append((axes.get_subplotspec().colspan.start, args, options["color"]))
        return plot(axes, *args, **options)

    monkeypatch.setattr(Axes, "plot", recorded)
    plot_against_bytes(comparison, ACCURACY, tmp_path / "picture.svg")
    panels, points, colors = zip(*drawn, strict=True)
    assert panels == (0, 0, 1)
    assert colors[0] != colors[1] == colors[2]
    np.testing.assert_allclose(points[1][0], [0.0002, 0.0004])
    text = (tmp_path / "picture.svg").read_text()
    for words in ("FedAvg", "FedPer", "32 bits", "MB sent by a client that is in every round"):
        assert words in text


def test_what_sends_nothing_is_a_level_line(tmp_path, monkeypatch):
    levels, axhline = [], Axes.axhline

    def recorded(axes, y, **options):
        levels.append(y)
        return axhline(axes, y, **options)

    monkeypatch.setattr(Axes, "axhline", recorded)
    local = write_seeds(tmp_path / "a", 0.6, 0.8, bytes_down=0)
    runs = {"Local": local, "FedAvg": write_seeds(tmp_path / "b", 0.5)}
    plot_against_bytes(compared("Two", runs), ACCURACY, tmp_path / "picture.svg")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of an axis without a place for anything
        plot_against_bytes(compared("One", {"Local": local}), ACCURACY, tmp_path / "one.svg")
    np.testing.assert_allclose(levels, [0.7, 0.7])


def test_the_program_draws_it(tmp_path):
    runs = [f"plain:{write_seeds(tmp_path / 'a', 0.6)[0]}"]
    path = tmp_path / "picture.png"
    done = run_main("report.py", "against_bytes", *runs, f"--output={path}")
    assert (done.returncode, done.stderr) == (0, "")
    assert path.read_bytes().startswith(b"\x89PNG")
    done = run_main("report.py", "against_bytes", *runs, f"--output={path}", "--column=x/y/z")
    assert done.returncode == 1 and "Unknown column" in done.stderr


def test_a_study_without_finished_runs(tmp_path):
    with pytest.raises(OutputDirectoryError, match="no finished run"):
        plot_against_bytes(compared("None", {"a": [tmp_path]}), ACCURACY, tmp_path / "p.svg")
