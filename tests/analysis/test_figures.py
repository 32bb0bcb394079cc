"""Tests the style of figures, and that they show the numbers of data frames."""

import math

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text

from tests.analysis.hand_written import write_run
from tff_pfl import analysis
from tff_pfl.analysis import figures
from tff_pfl.analysis.distributions import shared_edges, tails
from tff_pfl.arguments.quantities import Quantity
from tff_pfl.experiment import OutputDirectoryError


def texts(figure):
    return "\n".join(text.get_text() for text in figure.findobj(Text))


def frame(label, values, *, run=None, quantity="accuracy", statistic="mean", clients=None):
    """Returns a frame of one quantity from `{round: value}` or `{round: values of clients}`."""
    rows = [
        (run or label, label, round_num, client, value)
        for round_num, own in values.items()
        for client, value in enumerate(np.atleast_1d(own))
    ]
    found = pd.DataFrame(rows, columns=["run", "label", "round", "client_id", "value"])
    found = found.assign(model="personalized", pool="local_test", quantity=quantity)
    return found if clients else found.assign(statistic=statistic)


def test_many_series_look_different():
    assert len({tuple(figures.series(i).values()) for i in range(252)}) == 252
    first = [figures.series(i) for i in range(7)]
    assert len({style["color"] for style in first}) == 7
    assert len({style["marker"] for style in first}) == 7


def test_labels_may_have_the_signs_of_matplotlib():
    names = ["a$x^{$", "_a", "100 % & <b>"]
    figure = analysis.plot_curves(pd.concat(frame(name, {1: 0.5}) for name in names))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == names
    assert b"100 % &amp; &lt;b&gt;" in figures.as_svg(figure)


@pytest.mark.thorough
def test_equal_figures_are_equal_files(tmp_path):
    figure, again = (analysis.plot_curves(frame("a", {1: 0.5})) for _ in range(2))
    assert figures.as_svg(figure) == figures.as_svg(again)
    for name in ("new/folder/figure.svg", "figure.png"):
        analysis.save(figure, tmp_path / name)
    assert "<svg" in (tmp_path / "new/folder/figure.svg").read_text()
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_logarithmic_axes_have_plain_numbers():
    figure = analysis.plot_curves(frame("a", {1: 1e-2, 2: 1e3}), log_scale=True)
    figure.draw_without_rendering()
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels[1:-1] == ["0.01", "0.1", "1", "10", "100", "1000"]


def test_few_evaluations_are_the_numbers_on_the_axis():
    for rounds, shown in (([10, 20, 30, 31], [10, 20, 30]), (range(1, 61), [*range(0, 61, 10)])):
        axes = analysis.plot_curves(frame("a", dict.fromkeys(rounds, 1.0))).axes[0]
        low, high = axes.get_xlim()
        assert [tick for tick in axes.get_xticks() if low <= tick <= high] == shown


def test_lines_are_means_over_seeds_and_bands_their_deviations():
    seeds = [{5: 2.0, 9: 0.0, 7: 8.0}, {5: 4.0, 9: 1.0}, {5: 6.0, 9: 2.0}]
    three = [frame("three", values, run=str(i)) for i, values in enumerate(seeds)]
    found = analysis.over_seeds(pd.concat(three))
    # Only the first run has round 7, so no line goes there.
    assert found.values.tolist() == [["three", 5, 4.0, 2.0], ["three", 9, 1.0, 1.0]]
    figure = analysis.plot_curves(pd.concat([*three, frame("one", {5: 1.0, 9: np.nan})]))
    line, one = figure.axes[0].get_lines()
    np.testing.assert_array_equal(line.get_xydata(), [[5, 4], [9, 1]])
    np.testing.assert_array_equal(one.get_ydata(), [1, np.nan])
    (band,) = figure.axes[0].collections
    corners = {tuple(point) for point in band.get_paths()[0].vertices}
    assert {(5, 2.0), (5, 6.0), (9, 0.0), (9, 2.0)} <= corners
    assert "mean over clients; bands: standard deviation over 3 seeds" in texts(figure)
    assert "accuracy of each client's own model" in texts(figure).replace("\n", " ")
    diverged = [frame("x", {1: 1.0}, run="a"), frame("x", {1: np.nan}, run="b")]
    assert analysis.over_seeds(pd.concat(diverged))[["mean", "deviation"]].isna().all(axis=None)
    with pytest.raises(OutputDirectoryError, match="No round was evaluated in all of a, b"):
        parts = [frame("x", {1: 1.0}, run="a"), frame("x", {2: 1.0}, run="b")]
        analysis.over_seeds(pd.concat(parts))


def test_clients_are_averaged_before_seeds_and_can_be_left_out():
    values = frame("a", {1: [1.0, 2.0, 6.0], 2: [1.0, np.nan, 3.0]}, clients=True)
    (line,) = analysis.plot_curves(values).axes[0].get_lines()
    np.testing.assert_array_equal(line.get_ydata(), [3.0, np.nan])
    figure = analysis.plot_curves(values, exclude_clients=iter([1]))
    np.testing.assert_array_equal(figure.axes[0].get_lines()[0].get_ydata(), [3.5, 2.0])
    assert "mean over clients except 1" in texts(figure)


def test_single_points_have_a_marker():
    both = [frame("one", {5: 1.5}), frame("diverged", {5: np.nan})]
    lines = analysis.plot_curves(pd.concat(both)).axes[0].get_lines()
    assert [line.get_marker() for line in lines] == ["o", "s"]
    assert [line.get_label() for line in lines] == ["one", "diverged (never finite)"]


def write_seeds(path, *accuracies, **options):
    return [
        write_run(path / str(seed), [accuracy], seed=seed, **options)
        for seed, accuracy in enumerate(accuracies)
    ]


def test_bytes_add_up_until_an_evaluation(tmp_path):
    """Clients send twice as many bytes as they receive."""
    runs = {
        "FedAvg | 32 bits": write_seeds(tmp_path / "a", 0.6, 0.8),
        "FedAvg | top 1 %": write_seeds(tmp_path / "b", 0.5, bytes_down=20),
        "FedPer | top 1 %": write_seeds(tmp_path / "c", 0.7, bytes_down=20),
        "FedPer | nothing": write_seeds(tmp_path / "d", 0.3, bytes_down=0),
    }
    found = analysis.curves_against_bytes(analysis.read(runs))
    np.testing.assert_allclose(found["megabytes"][:2], [0.010, 0.020])  # of rounds 5 and 10
    np.testing.assert_allclose(found["mean"][:2], [0.35, 0.7])
    np.testing.assert_allclose(found["deviation"][:2], np.array([0.05, 0.1]) * np.sqrt(2))
    figure = analysis.plot_against_bytes(analysis.read(runs))
    assert [axes.get_title() for axes in figure.axes] == ["FedAvg", "FedPer"]
    (full, top), (other, level) = (axes.get_lines() for axes in figure.axes)
    assert full.get_color() != top.get_color() == other.get_color()
    np.testing.assert_allclose(top.get_xdata(), [0.0002, 0.0004])
    np.testing.assert_allclose(level.get_ydata(), [0.3, 0.3])
    assert "MB sent by a client" in texts(figure) and "32 bits" in texts(figure)


def test_points_without_privacy_are_separate_at_the_right(tmp_path):
    runs = {
        "FedAvg | none": write_seeds(tmp_path / "a", 0.9),
        "FedAvg | 8": write_seeds(tmp_path / "b", 0.6, 0.8, epsilon=7.999),
        "FedAvg | 2": write_seeds(tmp_path / "c", 0.5, epsilon=1.998),
        "FedPer | 8": write_seeds(tmp_path / "d", 0.7, epsilon=7.998),
        "FedPer | 0": write_seeds(tmp_path / "e", 0.1, epsilon=0.0),
    }
    runs = analysis.read(runs)
    points = analysis.points_against_epsilon(runs)
    assert points["line"].tolist() == ["FedAvg"] * 3 + ["FedPer"] * 2
    expected = [(2.0, 0.5, 0.0), (8.0, 0.7, 0.1 * np.sqrt(2)), (math.inf, 0.9, 0.0)]
    numbers = points.iloc[:, 1:].to_numpy(float)
    np.testing.assert_allclose(numbers, [*expected, (0, 0.1, 0), (8, 0.7, 0)])
    diverged = analysis.read(write_run(tmp_path / "f", [math.nan]))
    assert analysis.points_against_epsilon(diverged)["mean"].isna().all()
    figure = analysis.plot_against_epsilon(runs)
    line, alone, other = (container.lines[0] for container in figure.axes[0].containers)
    assert line.get_color() == alone.get_color() != other.get_color()
    assert list(line.get_ydata()) == pytest.approx([0.5, 0.7])
    left, middle, right = other.get_xdata()[0], line.get_xdata(), alone.get_xdata()[0]
    assert left < middle[0] < middle[1] < right
    assert "without\nprivacy" in texts(figure)


def test_histograms_and_their_table_show_mean_and_tails(tmp_path):
    values = np.array([0.0, 0.1, *[0.5] * 36, 0.9, 1.0])  # of 40 clients, 2 are 5 %
    seeds = [[0.25], [0.75, np.nan, np.inf]]
    runs = {
        "many": [write_run(tmp_path / "many", values)],
        "seeds": [write_run(tmp_path / str(i), own, seed=i) for i, own in enumerate(seeds)],
    }
    runs = analysis.read(runs)
    table = analysis.distribution_table(runs, threshold=0.6)
    heads = ["", "round", "clients", "mean", "lowest 5 %", "top 5 %", "below 0.6"]
    assert table.frame.columns.tolist() == heads
    assert table.frame.values.tolist() == [
        ["many", "10", "40", "0.5000", "0.0500", "0.9500", "95.0 %"],
        ["seeds", "10", "4", "nan", "nan", "inf", "25.0 %"],
    ]
    late = analysis.distribution_table(runs, rounds="late_mean", exclude_clients=[1]).frame
    assert late.columns.tolist() == heads[:-1]
    assert late.iloc[1, 1:4].tolist() == ["5 to 10", "6", "inf"]
    figure = analysis.plot_histograms(runs, threshold=0.6)
    for text in (
        "many, round 10\n40 clients,\n95.0 % below 0.6",
        "seeds, round 10\n4 clients of 2 runs,\n25.0 % below 0.6, 2 not finite",
        "mean of the lowest 5 %",
        "accuracy of each client's own model on its own test examples",
    ):
        assert text in texts(figure)
    first, second = figure.axes
    assert sum(bar.get_height() for bar in first.containers[0]) == 40
    assert sum(bar.get_height() for bar in second.containers[0]) == 2
    np.testing.assert_allclose([line.get_xdata()[0] for line in first.lines], [0.05, 0.5, 0.95])


def test_nan_counts_as_the_worst_value():
    losses = np.array([0.1, np.nan, 0.9, 0.5])
    assert tails(losses, -1)["lowest 5 %"] == 0.1 and np.isnan(tails(losses, -1)["top 5 %"])
    accuracies = tails(losses, 1)
    assert np.isnan(accuracies["lowest 5 %"]) and accuracies["top 5 %"] == 0.9


def test_bins_are_equal_and_cover_all_values():
    for values in ([0.31, 0.6, np.nan, np.inf, 1.0], [0.5, 0.5], [0.0], [np.nan], [-3e-9, 2e-9]):
        values = np.array(values)
        edges, finite = shared_edges(values), values[np.isfinite(values)]
        assert len(edges) <= 22
        np.testing.assert_allclose(np.diff(edges), edges[1] - edges[0])
        assert np.histogram(finite, edges)[0].sum() == len(finite)
    # 12 * 0.05 is more than 0.6, which is not below 0.6.
    assert 0.6 in shared_edges(np.array([0.0, 1.0]))


def test_clients_are_paired_with_themselves_under_local(tmp_path):
    """Pairs runs of a seed whose clients have the same examples."""

    def write(name, algorithm, *seeds, **options):
        return [
            write_run(tmp_path / name / str(seed), of, seed=seed, algorithm=algorithm, **options)
            for seed, of in enumerate(seeds)
        ]

    runs = {
        "Ditto": write("a", "ditto", [0.5, 1.0, 0.75], [0.25, 0.75, 1.0], [0.0, 0.0, 0.0]),
        "Alone": write("b", "local", [0.75, 0.5, 0.5], [0.5, 0.25, 0.5]),
        "elsewhere": write("c", "fedavg", [0.5, 0.5, 0.5], first_row=100),
    }
    pairs = analysis.against_local(analysis.read(runs))
    assert set(pairs["label"]) == {"Ditto"} and pairs["seed"].tolist() == [0, 0, 0, 1, 1, 1]
    np.testing.assert_array_equal(pairs["own"], [0.5, 1.0, 0.75, 0.25, 0.75, 1.0])
    np.testing.assert_array_equal(pairs["local"], [0.75, 0.5, 0.5, 0.5, 0.25, 0.5])
    figure = analysis.plot_against_local(pairs)
    assert "Ditto\n33 % hurt, 67 % helped" in texts(figure)
    gaining, hurt = (points.get_offsets() for points in figure.axes[0].collections)
    np.testing.assert_array_equal(gaining, [[0.5, 1.0], [0.5, 0.75], [0.25, 0.75], [0.5, 1.0]])
    np.testing.assert_array_equal(hurt, [[0.75, 0.5], [0.5, 0.25]])
    assert analysis.against_local(analysis.read({"Ditto": runs["Ditto"]})).empty


def test_errors_against_the_baseline_have_logarithmic_axes():
    """Draws errors that differ by factors of 20 and 2, and accuracies that differ by 20."""

    def draw(quantity, most):
        columns = {"label": "A", "seed": 0, "client_id": [0, 1], "own": [1.0, most]}
        pairs = pd.DataFrame({**columns, "local": [2.0, most / 2]})
        return analysis.plot_against_local(pairs, Quantity.named(quantity), baseline="B")

    drawn = [draw("mse", 20.0), draw("mse", 2.0), draw("r2", 20.0)]
    scales = [(axes.get_xscale(), axes.get_yscale()) for axes in (f.axes[0] for f in drawn)]
    assert scales == [("log", "log"), ("linear", "linear"), ("linear", "linear")]
    better, worse = (points.get_offsets() for points in drawn[0].axes[0].collections)
    np.testing.assert_array_equal([better[0], worse[0]], [[2.0, 1.0], [10.0, 20.0]])
