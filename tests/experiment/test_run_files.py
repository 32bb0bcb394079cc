"""Tests the reader of a run's files; `test_damaged_files.py` tests damaged ones."""

import json
import shutil

import numpy as np
import pytest

from tests.runs import tiny_config
from tff_pfl.arguments.quantities import Quantity
from tff_pfl.attacks.drawn import drawn_attackers
from tff_pfl.evaluation import MetricName
from tff_pfl.experiment import OutputDirectoryError, RunFiles, read_summary, resolved

ACCURACY = MetricName("personalized", "local_test", "accuracy")


@pytest.fixture(scope="module")
def run(finished_run):
    """Returns `(folder, config)` of a run of three rounds, which evaluates the last two."""
    changes = {"rounds": 3, "evaluation": {"every": 2}}
    return finished_run(**changes), tiny_config(**changes)


def test_metrics_and_timings_have_a_row_for_each_round(run):
    folder, _ = run
    metrics, timings = RunFiles(folder).metrics, RunFiles(folder).timings
    np.testing.assert_array_equal(metrics["round"], [1, 2, 3])
    assert np.isfinite(metrics["train/loss"]).all()
    evaluated = np.isfinite(metrics[f"{ACCURACY}_mean"])
    np.testing.assert_array_equal(evaluated, [False, True, True])
    np.testing.assert_array_equal(np.isfinite(timings["evaluation_seconds"]), evaluated)
    assert (timings["round_seconds"] > 0).all()


def test_table_of_clients_has_the_mean_of_the_evaluation(run):
    folder, _ = run
    files = RunFiles(folder)
    assert files.evaluated_rounds == [2, 3]
    means = [files.clients(number).values(str(ACCURACY)).mean() for number in (2, 3)]
    np.testing.assert_allclose(means, files.metrics[f"{ACCURACY}_mean"][1:])
    assert files.clients().path == files.clients(3).path
    final = read_summary(folder).final
    assert final.metrics[ACCURACY._replace(statistic="mean")] == final.mean("accuracy") == means[1]


@pytest.mark.parametrize("length", [1, -1])
def test_unfinished_row_is_not_read(run, tmp_path, length):
    """Covers the last row of a run that a full disk has stopped."""
    shutil.copytree(run[0], tmp_path / "run")
    whole, path = RunFiles(run[0]).metrics, tmp_path / "run" / "metrics.csv"
    *rows, last = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(rows) + last[:length])
    metrics = RunFiles(tmp_path / "run").metrics
    assert list(metrics) == list(whole)
    np.testing.assert_array_equal(metrics["train/loss"], whole["train/loss"][:2])


def test_settings_partition_and_quantities_match_the_config(run):
    folder, config = run
    assert RunFiles(folder).quantities == {
        "loss": Quantity("loss", -1),
        "accuracy": Quantity("accuracy", 1, is_share=True),
    }
    assert RunFiles(folder).settings == resolved(config)
    assert len(RunFiles(folder).partition.train) == config.data.num_clients


def test_attackers_are_drawn_from_all_clients(run, tmp_path):
    settings = {"seed": 3, "attack": {"fraction": 0.5}}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    shutil.copy(run[0] / "partition.npz", tmp_path)
    assert RunFiles(tmp_path).attackers == drawn_attackers(0.5, 4, 3)


def test_missing_run_is_refused(tmp_path):
    files = RunFiles(tmp_path / "nowhere")
    for read, missing in (
        (lambda: files.settings, "config.json"),
        (lambda: files.metrics, "metrics.csv"),
        (lambda: files.partition, "partition.npz, the partition of"),
        (files.clients, "clients/round_"),
        (files.snapshots, "snapshots/round_"),
    ):
        with pytest.raises(OutputDirectoryError, match=f"nowhere.*{missing}"):
            read()
    assert read_summary(tmp_path / "nowhere") is None
    assert not (tmp_path / "nowhere").exists()
