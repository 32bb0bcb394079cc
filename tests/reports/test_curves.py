"""Curves of tables that are written by hand."""

import csv
import shutil
import struct

import numpy as np
import pytest
from matplotlib.axes import Axes

from tff_pfl.experiment import OutputDirectoryError
from tff_pfl.reports import curve_over_seeds, curves, plot_curves, read_curve

LOSS = "personalized/local_test/loss"


def write_round(run_dir, round_num, losses, num_examples=None):
    """A table of clients 0, 1, 2 and so on."""
    path = run_dir / "clients" / f"round_{round_num:06d}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    num_examples = [4] * len(losses) if num_examples is None else num_examples
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["client_id", "num_examples", LOSS, "global/local_test/accuracy"])
        for i, (size, loss) in enumerate(zip(num_examples, losses, strict=True)):
            writer.writerow([i, size, loss, 0.5 + i])


@pytest.fixture
def run_dir(tmp_path):
    path = tmp_path / "run"
    write_round(path, 5, [1.0, 2.0, 6.0])
    write_round(path, 1000000, [0.0, 1.0, 0.5])  # a seventh digit
    write_round(path, 20, [0.5, 1.5, 4.0])
    return path


def assert_curve(curve, rounds, means):
    np.testing.assert_array_equal(curve[0], rounds)
    np.testing.assert_allclose(curve[1], means)


def test_the_mean_over_clients_at_each_evaluation(run_dir):
    assert_curve(read_curve(run_dir, LOSS), [5, 20, 1000000], [3.0, 2.0, 0.5])
    assert_curve(
        read_curve(str(run_dir), "global/local_test/accuracy"), [5, 20, 1000000], [1.5] * 3
    )


def test_evaluations_whose_table_is_gone_are_those_of_the_metrics(run_dir):
    (run_dir / "metrics.csv").write_text(
        f"round,{LOSS}_mean,train_loss\n5,3.0,1.0\n6,,1.0\n10,2.5,1.0\n11,nan,1.0\n"
    )
    assert_curve(read_curve(run_dir, LOSS), [5, 10, 20, 1000000], [3.0, 2.5, 2.0, 0.5])
    assert_curve(read_curve(run_dir, LOSS, [2]), [5, 20, 1000000], [1.5, 1.0, 0.5])
    assert_curve(read_curve(run_dir, "global/local_test/accuracy"), [5, 20, 1000000], [1.5] * 3)
    shutil.rmtree(run_dir / "clients")
    assert_curve(read_curve(run_dir, LOSS), [5, 10], [3.0, 2.5])
    with pytest.raises(OutputDirectoryError, match="has no evaluations: clients/round_"):
        read_curve(run_dir, LOSS, [2])


def test_clients_that_are_left_out(run_dir):
    assert_curve(read_curve(run_dir, LOSS, [2]), [5, 20, 1000000], [1.5, 1.0, 0.5])
    assert_curve(read_curve(run_dir, LOSS, iter([0, 2])), [5, 20, 1000000], [2.0, 1.5, 1.0])


def test_clients_that_do_not_exist_cannot_be_left_out(run_dir):
    message = r"round_000005.csv has no clients \[3, 77\] to leave out: its ids are 0 to 2"
    with pytest.raises(OutputDirectoryError, match=message):
        read_curve(run_dir, LOSS, [1, 3, 77])


def test_clients_with_no_examples_do_not_count(tmp_path):
    write_round(tmp_path, 1, [1.0, "nan", 3.0], num_examples=[2, 0, 9])
    assert_curve(read_curve(tmp_path, LOSS), [1], [2.0])


def test_a_model_that_diverged_is_not_hidden(tmp_path):
    write_round(tmp_path, 1, [1.0, "nan", 3.0])
    write_round(tmp_path, 2, [1.0, "inf", 3.0])
    assert_curve(read_curve(tmp_path, LOSS), [1, 2], [np.nan, np.inf])
    assert_curve(read_curve(tmp_path, LOSS, [1]), [1, 2], [2.0, 2.0])


def test_a_column_that_does_not_exist_is_answered_with_the_nearest(run_dir):
    with pytest.raises(
        OutputDirectoryError,
        match=r"Unknown column of .* 'personalised/local_test/loss'. "
        "Did you mean 'personalized/local_test/loss'",
    ):
        read_curve(run_dir, "personalised/local_test/loss")


@pytest.mark.parametrize("name", ["run", "no_run"])
def test_no_evaluations(tmp_path, name):
    (tmp_path / "run" / "clients").mkdir(parents=True)
    with pytest.raises(OutputDirectoryError, match=f"{name} has no evaluations: clients/round_"):
        read_curve(tmp_path / name, LOSS)


def pixels(path):
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", data[16:24])


def test_a_picture(run_dir, tmp_path):
    write_round(tmp_path / "diverged", 5, [1.0, "nan", 3.0])
    runs = {"one": [run_dir], "with a gap": [str(tmp_path / "diverged")]}
    path = tmp_path / "curves.png"
    plot_curves(runs, LOSS, path, exclude_clients=[2], log_scale=True)
    assert pixels(path) == (960, 601)  # the legend's line is added
    assert path.stat().st_size > 5000


def test_a_curve_of_one_evaluation_is_seen(tmp_path, monkeypatch):
    drawn, plot = [], Axes.plot

    def recorded(axes, *args, **options):
        drawn.extend(plot(axes, *args, **options))
        return drawn

    monkeypatch.setattr(Axes, "plot", recorded)
    write_round(tmp_path / "one", 5, [1.0, 2.0])
    write_round(tmp_path / "diverged", 5, [1.0, "nan"])
    runs = {"one": [tmp_path / "one"], "diverged": [tmp_path / "diverged"]}
    plot_curves(runs, LOSS, tmp_path / "curves.png")
    assert [line.get_marker() for line in drawn] == ["o", "s"]
    assert [line.get_markevery() for line in drawn] == [[0], [0]]
    assert [line.get_label() for line in drawn] == ["one", "diverged (never finite)"]


def test_all_options_show_in_the_picture(run_dir, tmp_path):
    def picture(**options):
        runs = {"a": [run_dir], "b": [run_dir]}
        plot_curves(runs, LOSS, tmp_path / "curves.png", **options)
        return (tmp_path / "curves.png").read_bytes()

    without = picture(exclude_clients=(2,))
    others = [picture(), picture(log_scale=True), picture(top=2.0)]
    assert len({without, *others}) == 4


def test_the_ending_is_the_format_and_the_folder_is_made(run_dir, tmp_path):
    path = tmp_path / "new" / "folder" / "curves.svg"
    plot_curves({"a run": [run_dir]}, LOSS, path, exclude_clients=iter([2]))
    text = path.read_text()
    assert "<svg" in text
    assert "mean over all clients but 2" in text and "a run" in text
    assert "loss of each client's own model" in text and LOSS not in text


def test_a_run_without_evaluations_leaves_no_picture(run_dir, tmp_path):
    with pytest.raises(OutputDirectoryError, match="no_run has no evaluations"):
        plot_curves({"a": [run_dir], "b": [tmp_path / "no_run"]}, LOSS, tmp_path / "curves.png")
    assert not (tmp_path / "curves.png").exists()


def test_samples_are_not_said_to_be_all_clients(run_dir, tmp_path):
    shutil.copytree(run_dir, tmp_path / "sample")
    metrics = f"round,{LOSS}_mean,{LOSS}_mean_margin\n5,3.0,1.0\n"
    (tmp_path / "sample" / "metrics.csv").write_text(metrics)
    for names, expected in {
        ("run",): "mean over all clients",
        ("sample",): "mean over a sample of the clients",
        ("run", "sample"): "mean over a sample of the clients, or all",
    }.items():
        figure = curves.figure_of_curves({name: [tmp_path / name] for name in names}, LOSS)
        assert figure.axes[0].get_title() == expected


def test_the_band_is_the_deviation_over_seeds(tmp_path, monkeypatch):
    for seed, losses in enumerate(([1.0, 3.0], [3.0, 5.0], [5.0, 7.0])):
        write_round(tmp_path / f"{seed}", 5, losses)
        write_round(tmp_path / f"{seed}", 9, [seed, seed])
    write_round(tmp_path / "0", 7, [8.0, 8.0])  # which the others have not: no line goes there
    run_dirs = [tmp_path / f"{seed}" for seed in range(3)]
    curve = curve_over_seeds(run_dirs, LOSS)
    assert_curve(curve, [5, 9], [4.0, 1.0])
    np.testing.assert_allclose(curve.deviations, [2.0, 1.0])
    np.testing.assert_array_equal(curve_over_seeds(run_dirs[1:2], LOSS).deviations, [0, 0])
    drawn = []
    monkeypatch.setattr(Axes, "fill_between", lambda axes, *band, **style: drawn.append(band))
    plot_curves({"three": run_dirs, "one": run_dirs[:1]}, LOSS, tmp_path / "curves.svg")
    ((rounds, low, high),) = drawn
    np.testing.assert_array_equal(rounds, [5, 9])
    np.testing.assert_allclose([low, high], [[2.0, 0.0], [6.0, 2.0]])
    assert "bands: deviation over 3 seeds" in (tmp_path / "curves.svg").read_text()


def test_seeds_without_a_round_in_common(tmp_path):
    write_round(tmp_path / "a", 1, [1.0])
    write_round(tmp_path / "b", 2, [1.0])
    with pytest.raises(OutputDirectoryError, match="No round was evaluated in all of .*a, .*b"):
        curve_over_seeds([tmp_path / "a", tmp_path / "b"], LOSS)


def test_long_lines_have_some_markers_and_lone_points_one():
    is_drawn = np.ones(120, bool)
    is_drawn[[40, 42]] = False
    first, second = curves._marks(is_drawn, 0.0), curves._marks(is_drawn, 0.5)
    assert len(first) == 12 + 1 and 41 in first
    assert set(first) & set(second) == {41}
