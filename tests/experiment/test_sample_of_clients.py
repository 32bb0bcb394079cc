"""A run whose evaluations are of a sample of its clients, and those who read it."""

import csv

import numpy as np
import pytest

from tff_pfl.clients.attackers import drawn_attackers
from tff_pfl.evaluation import MetricName, mean_margin, sampled_clients
from tff_pfl.experiment import RunFiles

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


def test_attackers_are_drawn_of_all_clients(run_dir, monkeypatch):
    settings = {"seed": 3, "attack": {"fraction": 0.5}}
    monkeypatch.setattr(RunFiles, "settings", lambda files: settings)
    assert RunFiles(run_dir).attackers() == drawn_attackers(0.5, 4, 3)
