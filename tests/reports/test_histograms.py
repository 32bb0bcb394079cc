"""Histograms of tables that are written by hand."""

import csv

import matplotlib.image
import numpy as np
import pytest

from tests.marks import slow
from tff_pfl.experiment import OutputDirectoryError
from tff_pfl.reports import plot_histograms, read_distribution
from tff_pfl.reports.histograms import (
    Distribution,
    pooled_distribution,
    shared_edges,
    table_of_distributions,
)

ACCURACY = "personalized/local_test/accuracy"


def write_round(run_dir, round_num, accuracies, num_examples=None):
    """A table of clients 0, 1, 2 and so on."""
    path = run_dir / "clients" / f"round_{round_num:06d}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    num_examples = [4] * len(accuracies) if num_examples is None else num_examples
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["client_id", "num_examples", ACCURACY])
        writer.writerows(
            [i, size, accuracy]
            for i, (size, accuracy) in enumerate(zip(num_examples, accuracies, strict=True))
        )


@pytest.fixture
def run_dir(tmp_path):
    path = tmp_path / "run"
    write_round(path, 5, [0.1, 0.2, 0.3])
    write_round(path, 1000000, [0.9, 0.5, "nan", 0.25], [8, 4, 0, 4])  # a seventh digit
    write_round(path, 200000, [0.5, 0.75, 1.0])
    return path


def test_the_last_evaluation_without_clients_that_have_no_examples(run_dir):
    found = read_distribution(run_dir, ACCURACY)
    assert found.round_nums == (1000000,)
    np.testing.assert_array_equal(found.values, [0.9, 0.5, 0.25])


def test_another_round_and_clients_left_out(run_dir):
    found = read_distribution(str(run_dir), ACCURACY, round_num=5, exclude_clients=iter([1]))
    assert found.round_nums == (5,)
    np.testing.assert_array_equal(found.values, [0.1, 0.3])


def test_the_share_below_a_threshold_is_of_those_that_are_less():
    values = np.array([0.2, 0.6, 0.59, 0.61, np.nan, 1.0, 0.6, 0.3])
    assert Distribution((1,), values).share_below(0.6) == 3 / 8
    assert Distribution((1,), values).share_below(0.2) == 0.0
    assert Distribution((1,), values).share_below(1.1) == 7 / 8  # NaN is not less


def test_the_table_has_means_tails_and_shares():
    # Of 40 clients, 2 are 5 %.
    values = np.array([0.0, 0.1, *[0.5] * 36, 0.9, 1.0])
    few = np.array([0.25, 0.75])  # at least one client is in a tail
    lines = table_of_distributions(
        {"many": Distribution((20,), values), "b": Distribution((3,), few)}, 1
    )
    header, *rows = [line.split() for line in lines.splitlines()]
    assert " ".join(header) == "round clients mean lowest 5 % top 5 % below 1"
    assert rows == [
        ["many", "20", "40", "0.5000", "0.0500", "0.9500", "97.5", "%"],
        ["b", "3", "2", "0.5000", "0.2500", "0.7500", "100.0", "%"],
    ]
    without = table_of_distributions({"b": Distribution((3,), few)})
    assert "below" not in without
    assert without.splitlines()[1].split() == ["b", "3", "2", "0.5000", "0.2500", "0.7500"]


def test_a_loss_that_is_no_number_is_the_highest(run_dir):
    losses = np.array([0.1, np.nan, 0.9, 0.5])
    assert Distribution((1,), losses, -1).statistics["lowest"] == 0.1
    assert np.isnan(Distribution((1,), losses, -1).statistics["top"])
    accuracies = Distribution((1,), losses).statistics
    assert np.isnan(accuracies["lowest"]) and accuracies["top"] == 0.9
    path = run_dir / "clients" / "round_000005.csv"
    path.write_text(path.read_text().replace(ACCURACY, "personalized/local_test/loss"))
    assert read_distribution(run_dir, "personalized/local_test/loss", round_num=5).direction == -1


def test_runs_that_ended_at_different_rounds(tmp_path):
    for name, round_num in (("a", 10), ("b", 5), ("c", 7)):
        write_round(tmp_path / name, round_num, [0.5, 0.25])
    found = pooled_distribution([tmp_path / name for name in "abc"], ACCURACY)
    assert found.rounds == "5 to 10"
    assert table_of_distributions({"all": found}).splitlines()[1].split()[:5] == [
        *("all", "5", "to", "10", "6")
    ]
    picture, _ = svg({"all": [tmp_path / name for name in "abc"]}, tmp_path)
    assert "all, rounds 5 to 10" in picture


def test_bins_are_shared_hold_everything_and_end_at_thresholds():
    edges = shared_edges([np.array([0.31, 0.6, np.nan]), np.array([np.inf, 1.0])])
    assert edges[0] <= 0.31 < 1.0 <= edges[-1]
    assert len(edges) <= 22
    np.testing.assert_allclose(np.diff(edges), edges[1] - edges[0])
    # 12 * 0.05 is more than 0.6, which is not below 0.6.
    assert 0.6 in shared_edges([np.array([0.0, 1.0])])


@pytest.mark.parametrize("values", [[0.5, 0.5], [0.0], [np.nan], [-3e-9, 2e-9], [1e6, 1e6 + 1]])
def test_bins_of_odd_values(values):
    values = np.array(values)
    edges = shared_edges([values])
    assert np.all(np.diff(edges) > 0)
    assert np.histogram(values[np.isfinite(values)], edges)[0].sum() == np.isfinite(values).sum()


def svg(runs, tmp_path, **options):
    """The picture as text, and the table."""
    lines = plot_histograms(runs, ACCURACY, tmp_path / "histogram.svg", **options)
    return (tmp_path / "histogram.svg").read_text(), lines


def test_what_is_said_of_each_run(run_dir, tmp_path):
    write_round(tmp_path / "diverged", 7, [0.5, "nan", 0.75, "inf"])
    runs = {"first": [run_dir], "second": [str(tmp_path / "diverged")]}
    picture, lines = svg(runs, tmp_path, threshold=0.6)
    assert "<svg" in picture
    for text in (
        "first, round 1000000",
        "66.7 % below 0.6",
        "second, round 7",
        "4 clients,",
        "25.0 % below 0.6, 2 not finite",
        "mean of the lowest 5 %",
        "mean of the top 5 %",
        "accuracy of each client's own model on its own test examples",
    ):
        assert text in picture
    _, first, second = lines.splitlines()
    assert first.split() == ["first", "1000000", "3", "0.5500", "0.2500", "0.9000", "66.7", "%"]
    assert second.split() == ["second", "7", "4", "nan", "nan", "inf", "25.0", "%"]
    picture, lines = svg({"first": [run_dir]}, tmp_path, round_num=200000, exclude_clients=(0,))
    assert "first, round 200000" in picture and "2 clients" in picture
    assert "below" not in picture + lines


@pytest.mark.parametrize("num_runs", [1, 5, slow(12)])
def test_a_panel_for_each_run(run_dir, tmp_path, num_runs):
    runs = {f"run {i}.": [run_dir] for i in range(num_runs)}
    plot_histograms(runs, ACCURACY, tmp_path / "histogram.png", threshold=0.6)
    pixels = matplotlib.image.imread(tmp_path / "histogram.png")
    # The mean is a black line from top to bottom of each panel.
    panel_rows, panel_columns = {1: (1, 1), 5: (2, 3), 12: (4, 3)}[num_runs]
    first_row = pixels[: len(pixels) // panel_rows, :, :3]
    black = (first_row < 0.1).all(axis=-1).mean(axis=0) > 0.3
    assert np.sum(np.diff(black.astype(int)) == 1) == panel_columns


def test_a_column_that_does_not_exist_is_answered_with_the_nearest(run_dir, tmp_path):
    with pytest.raises(OutputDirectoryError, match=f"Did you mean '{ACCURACY}'"):
        plot_histograms({"a": [run_dir]}, "personalised/local_test/accuracy", tmp_path / "h.png")
    assert not (tmp_path / "h.png").exists()


def test_a_round_that_was_not_evaluated_is_answered_with_those_that_were(run_dir):
    with pytest.raises(
        OutputDirectoryError, match=r"run was not evaluated at round 6, but at 5, 200000, 1000000\."
    ):
        read_distribution(run_dir, ACCURACY, round_num=6)


def test_runs_with_nothing_to_show(run_dir, tmp_path):
    with pytest.raises(OutputDirectoryError, match="no_run has no evaluations: clients/round_"):
        read_distribution(tmp_path / "no_run", ACCURACY)
    with pytest.raises(OutputDirectoryError, match="round_000005.csv has no clients but those"):
        read_distribution(run_dir, ACCURACY, round_num=5, exclude_clients=(0, 1, 2))
    (run_dir / "clients" / "round_000005.csv").write_text("client_id,num_examples\n1,two\n")
    with pytest.raises(OutputDirectoryError, match="round_000005.csv is damaged: "):
        read_distribution(run_dir, ACCURACY, round_num=5)


def test_clients_of_several_seeds_are_in_one_histogram(tmp_path):
    write_round(tmp_path / "a", 5, [0.25, 0.5])
    write_round(tmp_path / "b", 5, [0.75])
    picture, lines = svg({"both": [tmp_path / "a", tmp_path / "b"]}, tmp_path)
    assert "3 clients of 2 runs" in picture
    assert lines.splitlines()[1].split() == ["both", "5", "3", "0.5000", "0.2500", "0.7500"]
