"""Tests the figures of one run: influence, mixtures and the timeline."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text

from tests.marks import together
from tff_pfl.analysis import plot_influence, plot_mixtures, plot_timeline
from tff_pfl.analysis.snapshots import spans_of_round
from tff_pfl.arguments.names import UnknownNameError
from tff_pfl.data import Partition
from tff_pfl.experiment import OutputDirectoryError


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """Writes a run with snapshots at two rounds of four clients, with 4, 3, 2 and 1 examples."""
    path = tmp_path_factory.mktemp("runs") / "run"
    (path / "snapshots").mkdir(parents=True)
    rows = np.split(np.arange(10), [1, 3, 6])
    Partition(rows[::-1], rows, rows).save(path / "partition.npz")
    for round_num in (2, 3):
        alpha = np.arange(16.0).reshape(4, 4) / round_num
        mixtures = {f"mix/{layer}": np.full([4, 2], 1 / round_num) for layer in ("body", "head")}
        mixtures["mix/head"][1] = (0.75, 0.25)
        file = path / "snapshots" / f"round_{round_num:06d}.npz"
        np.savez(file, alpha=alpha, flat=np.zeros([4, 2]), **mixtures)
    return path


def texts(figure):
    return [text.get_text() for text in figure.findobj(Text)]


def test_influence_shows_matrices_and_means(run_dir):
    figure = plot_influence(run_dir)
    *matrices, helps, is_helped = [axes for axes in figure.axes if axes.get_title()]
    assert [axes.get_title() for axes in matrices] == ["round 2", "round 3"]
    # Clients are sorted by their numbers of examples; the last client has the fewest.
    shown = matrices[1].images[0].get_array()
    np.testing.assert_allclose(shown, (np.arange(16.0).reshape(4, 4) / 3)[::-1, ::-1])
    points = helps.collections[0].get_offsets()
    assert points[:, 0].tolist() == [4, 3, 2, 1]
    np.testing.assert_allclose(points[0], [4, (4 + 8 + 12) / 9])  # without the client itself
    np.testing.assert_allclose(is_helped.collections[0].get_offsets()[0], [4, (1 + 2 + 3) / 9])


def test_mixtures_show_the_parts_of_chosen_clients(run_dir):
    figure = plot_mixtures(run_dir, "mix", clients=[1, 0])
    (_, _), (of_client_1, _) = np.reshape(figure.axes, [2, 2])
    # The first part fills the panel up to 0.75.
    heights = [path.get_paths()[0].vertices[:, 1] for path in of_client_1.collections]
    assert heights[0].min() == 0 and heights[0].max() == heights[1].min() == 0.75
    shown = texts(figure)
    assert shown.index("client 1") < shown.index("client 0") and "client 2" not in shown
    assert {"body", "head", "branch 0", "branch 1"} <= set(shown)
    everybody = texts(plot_mixtures(run_dir, "mix", clients=[]))
    assert {f"client {i}" for i in range(4)} <= set(everybody)


def test_single_evaluation_fills_the_figure(run_dir, tmp_path):
    (tmp_path / "snapshots").mkdir()
    name = "snapshots/round_000002.npz"
    (tmp_path / name).write_bytes((run_dir / name).read_bytes())
    axes = plot_mixtures(tmp_path, "mix").axes[0]
    assert axes.get_xlim() == (2, 3) and len(axes.collections) == 2


@together(
    ("draw", "message"),
    [
        (lambda run: plot_influence(run.parent), "no snapshots"),
        (lambda run: plot_influence(run, "alpa"), "Did you mean 'alpha'"),
        (lambda run: plot_influence(run, "flat"), "shape .4, 2., but a matrix over clients has"),
        (lambda run: plot_mixtures(run, "mixx"), "Did you mean 'mix'"),
        (lambda run: plot_mixtures(run, "mix", clients=[1, 4]), "Unknown client with mixtures '4'"),
        (lambda run: plot_timeline(pd.DataFrame({"round": []})), "has no column compute_seconds"),
    ],
)
def test_missing_data_are_refused(run_dir, draw, message):
    with pytest.raises((OutputDirectoryError, UnknownNameError), match=message):
        draw(run_dir)


ROUND = {
    "round": 7,
    "round_seconds": 10.0,
    "select_seconds": 1.0,
    "compute_seconds": 5.0,
    "write_seconds": 7.0,
    "update_seconds": 1.5,
}


def test_spans_cover_a_round_that_waits_for_background_work():
    spans = {lane: (start, seconds) for lane, start, seconds in spans_of_round(ROUND)}
    assert spans == {
        "select": (0.0, 1.0),
        "compute": (1.0, 5.0),
        "write": (1.0, 7.0),
        "update": (8.5, 1.5),
    }
    evaluated = spans_of_round(ROUND | {"evaluation_seconds": 6.0})
    assert evaluated[-1] == ("evaluation", 10.0, 6.0)


def test_each_span_is_in_its_lane():
    timings = pd.DataFrame([ROUND, {**ROUND, "round": 8}])
    figure = plot_timeline(timings.assign(evaluation_seconds=[2.0, np.nan]), rounds=1)
    axes = figure.axes[0]
    lanes = [label.get_text() for label in axes.get_yticklabels()]
    bars = {
        lanes[round(bar.get_y() + bar.get_height() / 2)]: (bar.get_x(), bar.get_width())
        for bar in axes.patches
        if bar.get_width()
    }
    assert bars == {
        "select the cohort": (0, 1000),
        "compute the round": (1000, 5000),
        "write the previous round": (1000, 7000),
        "update client states": (8500, 1500),
    }
    assert "round 8" in texts(figure) and "round 7" not in texts(figure)
    both = plot_timeline(timings.assign(evaluation_seconds=[2.0, np.nan]), rounds=9).axes[0]
    assert (both.get_xlim(), both.get_title()) == ((0, 22000), "rounds 7 to 8")
