"""Tests the data frames of hand-written runs."""

import math

import numpy as np
import pandas as pd
import pytest

from tests.analysis.hand_written import write_run
from tff_pfl import analysis
from tff_pfl.analysis import frames
from tff_pfl.arguments.names import UnknownNameError
from tff_pfl.data import Partition
from tff_pfl.experiment import OutputDirectoryError

ACCURACY = "personalized/local_test/accuracy"
LOSS = "personalized/local_test/loss"
NAME = ["model", "pool", "quantity"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    first = write_run(root / "a", [0.5, 1.0, 0.0], seed=3, epsilon=2.0, seconds=0.25)
    second = write_run(root / "b", [0.5, math.nan, 1.0], seed=4, global_accuracies=[1, 1, 0.5])
    unfinished = write_run(root / "c", [0.0], finished=False)
    return analysis.read({"A": [first, second], "B": [unfinished]})


def test_metrics_have_a_row_for_each_number(runs):
    found = runs.metrics
    assert list(found) == ["run", "label", "seed", "round", *NAME, "statistic", "value"]
    accuracy = analysis.select(found, ACCURACY)
    assert accuracy[["label", "seed", "round", "model", "pool", "statistic"]].values.tolist() == [
        [label, seed, round_num, "personalized", "local_test", "mean"]
        for label, seed in (("A", 3), ("A", 4), ("B", 0))
        for round_num in (5, 10)
    ]
    np.testing.assert_allclose(accuracy["value"], [0.25, 0.5, np.nan, np.nan, 0, 0])
    assert accuracy["run"].iloc[0] == str(runs.folders["A"][0])
    sent = analysis.select(found, "bytes_up_per_client")
    assert len(sent) == 30 and set(sent["value"]) == {2000.0} and set(sent["model"]) == {""}
    assert analysis.select(found, "privacy/epsilon")["value"].iloc[-1] == 2.0


def test_metrics_leave_out_a_truncated_last_line(tmp_path):
    run = write_run(tmp_path / "run", [0.5])
    path = run / "metrics.csv"
    path.write_text(path.read_text().rstrip("\n")[:-2])
    assert analysis.read(run).metrics["round"].max() == 9
    path.write_text("no table\n1\n")
    with pytest.raises(OutputDirectoryError, match="metrics.csv is damaged"):
        _ = analysis.read(run).metrics
    path.unlink()
    assert analysis.read(run).metrics.empty and "quantity" in analysis.read(run).metrics


def test_clients_have_a_row_for_each_quantity(runs):
    found = runs.clients()
    assert list(found)[:5] == ["run", "label", "seed", "round", "client_id"]
    assert list(found)[5:] == ["num_examples", "num_train_examples", *NAME, "value"]
    accuracy = analysis.select(found, ACCURACY)
    assert accuracy["client_id"].tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert set(accuracy["round"]) == {10} and set(accuracy["num_examples"]) == {4}
    np.testing.assert_array_equal(accuracy["value"], [0.5, 1, 0, 0.5, np.nan, 1, 0])
    early = analysis.select(runs.clients(5), LOSS)
    np.testing.assert_array_equal(early["value"][:3], [0.75, 0.5, 1.0])
    assert len(runs.clients("all")) == 2 * len(found)
    late = runs.only(["A"]).clients("late_mean")
    assert set(late["round"]) == {5, 10}
    with pytest.raises(OutputDirectoryError, match="not evaluated at round 6, but at 5, 10"):
        runs.clients(6)
    with pytest.raises(OutputDirectoryError, match="Unknown evaluation of .*c 'final'"):
        runs.clients("final")


def test_clients_have_the_number_of_their_training_examples(tmp_path):
    """Reads it from the partition, and leaves it open for a run without one."""
    named, unnamed = (write_run(tmp_path / name, [0.5, 1.0]) for name in ("named", "unnamed"))
    rows = [np.arange(3), np.arange(3, 10)], [[], []], [[10], [11]]
    Partition(*rows, names=["ann", "bob"]).save(named / "partition.npz")
    for path in (named / "clients").iterdir():
        path.write_text(path.read_text().replace("\n0,", "\nann,").replace("\n1,", "\nbob,"))
    found = analysis.select(analysis.read(named).clients(), ACCURACY)
    assert found["client_id"].tolist() == ["ann", "bob"]
    assert found["num_train_examples"].tolist() == [3, 7]
    assert found["num_train_examples"].dtype == np.int64
    assert set(analysis.read(unnamed).clients()["num_train_examples"]) == {2}
    (unnamed / "partition.npz").unlink()
    assert analysis.read(unnamed).clients()["num_train_examples"].isna().all()


def test_clients_without_examples_have_no_row(tmp_path):
    run = write_run(tmp_path / "run", [0.5, 1.0])
    for path in (run / "clients").iterdir():
        path.write_text(path.read_text().replace("\n1,4,0.0,1.0", "\n1,0,nan,nan"))
    (run / "metrics.csv").unlink()
    values = analysis.select(analysis.read(run).clients(), ACCURACY)
    assert values["client_id"].tolist() == [0]


def test_evaluations_and_summaries_have_only_finished_runs(runs):
    found = runs.evaluations
    assert list(found) == ["run", "label", "seed", "evaluation", *NAME, "statistic", "value"]
    assert set(found["label"]) == {"A"}
    accuracy = analysis.select(found, ACCURACY).query("seed == 3").set_index("evaluation")["value"]
    assert accuracy.to_dict() == {"final": 0.5, "best_on_test": 0.5, "late_mean": 0.375}
    table = runs.summaries
    assert list(table)[3:] == [
        *("algorithm", "data", "rounds", "bytes_down", "bytes_up", "round_seconds", "epsilon")
    ]
    assert table.iloc[0, 1:].tolist() == ["A", 3, "ditto", "digits", 10, 1000, 2000, 0.25, 2.0]
    assert table["epsilon"].tolist() == [2.0, math.inf]
    first, second = (run / "timings.csv" for run in runs.folders["A"])
    first.write_text("round,round_seconds\n1,9\n2,9\n3,1\n4,2\n5,4\n")
    second.write_text("round,round_seconds\n5,1\n10,4\n")
    # The median leaves out the first two of five rounds, but not of two.
    assert analysis.read(runs.folders).summaries["round_seconds"].tolist() == [2.0, 2.5]


def test_timings_settings_and_versions_are_read(runs):
    timings = runs.only(["B"]).timings
    assert list(timings) == [
        *("run", "label", "seed", "round", "round_seconds", "evaluation_seconds")
    ]
    assert timings["round_seconds"].tolist() == [9.0, 9.0, *[0.5] * 8]
    settings = runs.settings.query("label == 'B'").set_index("key")["value"]
    assert settings.to_dict() == {"seed": 0, "algorithm.name": "ditto", "data.name": "digits"}
    versions = runs.only(["B"]).versions
    assert versions.iloc[0, 1:].tolist() == ["B", 0, 0, "python", "3.11.1"]


def test_select_leaves_out_clients_and_refuses_unknown_names(runs, caplog):
    clients = runs.clients()
    left = analysis.select(clients, ACCURACY, exclude_clients=[0, 2])
    assert left["client_id"].tolist() == [1, 1]
    analysis.select(clients, ACCURACY, exclude_clients=[1, 77])
    assert "No evaluated client has the name or id 77." in caplog.text
    with pytest.raises(OutputDirectoryError, match="exclude_clients leaves out all clients"):
        analysis.select(clients, ACCURACY, exclude_clients=range(3))
    with pytest.raises(UnknownNameError, match="Unknown column 'personalised/local_test/acc"):
        analysis.select(clients, "personalised/local_test/accuracy")
    with pytest.raises(UnknownNameError, match="'acuracy'.* Valid: 'accuracy', 'loss'.$"):
        analysis.select(clients, "acuracy")
    worst = analysis.select(runs.evaluations, f"{ACCURACY}_worst_5_percent")
    assert worst["value"].iloc[0] == 0.0


def test_mean_is_nan_if_a_client_has_diverged(runs):
    values = analysis.select(runs.clients(), ACCURACY)
    found = frames.means(values, ["label", "seed"])
    np.testing.assert_array_equal(found, [0.5, np.nan, 0.0])


def test_each_file_is_read_once(tmp_path):
    """Makes all frames of all and of the finished runs, with files that are emptied between."""
    run = write_run(tmp_path / "run", [0.5])
    runs = analysis.read(run)

    def frames_of(found):
        made = found.metrics, found.clients(), found.timings, found.evaluations, found.summaries
        return [*made, found.settings, found.versions]

    whole = frames_of(runs)
    for path in run.rglob("*.*"):
        path.write_bytes(b"")
    for frame, again in zip(whole, frames_of(runs.finished), strict=True):
        pd.testing.assert_frame_equal(frame, again)
