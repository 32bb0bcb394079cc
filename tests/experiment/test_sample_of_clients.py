"""A run whose evaluations are of a sample of its clients, and those who read it."""

import csv

import numpy as np
import pytest

from tests.runs import tiny_config, train_run
from tff_pfl.clients.attackers import drawn_attackers
from tff_pfl.evaluation import (
    MetricName,
    mean_margin,
    sampled_clients,
)
from tff_pfl.experiment import (
    RunFiles,
    read_summary,
)

NAME = MetricName("personalized", "local_test", "accuracy")


@pytest.fixture(scope="module")
def run_dir(finished_run):
    """The directory of a run of four clients, two of which are evaluated."""
    return finished_run(evaluation={"every": 1, "clients": 2})


def test_the_same_clients_are_evaluated_each_time(run_dir):
    for round_num in (1, 2):
        with open(run_dir / "clients" / f"round_{round_num:06d}.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        ids = [int(row["client_id"]) for row in rows]
        assert ids == sampled_clients(0, 4, 2).tolist()
        accuracies = np.array([float(row[str(NAME)]) for row in rows])
        metrics = {
            name: values[round_num - 1] for name, values in RunFiles(run_dir).metrics().items()
        }
        assert metrics[f"{NAME}_mean"] == pytest.approx(accuracies.mean())
        assert metrics[f"{NAME}_mean_margin"] == pytest.approx(mean_margin(accuracies, 4))
        assert metrics["personalized/local_test/loss_mean_margin"] > 0


def test_the_summary_has_the_margin_of_each_mean(run_dir):
    margin = NAME._replace(statistic="mean_margin")
    summary = read_summary(run_dir)
    of_rounds = RunFiles(run_dir).metrics()[str(margin)]
    assert summary.final.metrics[margin] == of_rounds[-1]


def test_what_is_printed_has_the_margins(tmp_path, capsys):
    path = train_run(tmp_path / "run", tiny_config(evaluation={"every": 1, "clients": 3}))
    printed = capsys.readouterr()
    metrics = read_summary(path).final.metrics
    mean, margin = (
        f"{metrics[NAME._replace(statistic=statistic)]:.4f}"
        for statistic in ("mean", "mean_margin")
    )
    assert f"{NAME} {mean} ± {margin}" in printed.out + printed.err
    head, row = [
        line
        for line in printed.out.splitlines()
        if "95 %: ±" in line or line.startswith(f"  {NAME}")
    ][:2]
    assert head.split()[:4] == ["mean", "95", "%:", "±"]
    assert row.split()[1:3] == [mean, margin]


def test_who_is_left_out_may_be_no_part_of_the_sample(run_dir):
    table, ids = RunFiles(run_dir).clients(), sampled_clients(0, 4, 2).tolist()
    of_both = table.values(str(NAME)).tolist()
    (other, *_) = {0, 1, 2, 3} - {*ids}
    assert table.values(str(NAME), [other]).tolist() == of_both
    assert table.values(str(NAME), [ids[0], other]).tolist() == of_both[1:]


def test_attackers_are_drawn_of_all_clients(run_dir, monkeypatch):
    settings = {"seed": 3, "attack": {"fraction": 0.5}}
    monkeypatch.setattr(RunFiles, "settings", lambda files: settings)
    assert RunFiles(run_dir).attackers() == drawn_attackers(0.5, 4, 3)
