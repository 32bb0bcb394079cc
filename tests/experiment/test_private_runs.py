"""Runs that promise privacy."""

import json
import re

import pytest

from tests.federation import random_examples, tiny_model, tiny_process
from tests.runs import keep_the_context, tiny_config, train_run
from tff_pfl.algorithms import build_fedavg
from tff_pfl.data import FederatedDataset
from tff_pfl.experiment import (
    RunDirectory,
    RunFiles,
    read_summary,
    run_program,
    table,
    train,
)
from tff_pfl.privacy import Accountant, PrivacyLoss, default_delta


def private(rounds=2, algorithm="fedavg", **changes):
    """20 of 30 clients a round, so many that the clipping norm may adapt."""
    config = tiny_config(algorithm, rounds=rounds, clients_per_round=20)
    config.data.num_clients = 30
    config.privacy.update(changes)
    return config


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train_run(tmp_path_factory.mktemp("private") / "run", private(3, noise_multiplier=1.0))


ACCOUNTANT = Accountant(30, 20, default_delta(30))


def test_metrics_have_what_is_spent_and_the_summary_what_it_follows_from(run):
    spent = [ACCOUNTANT.epsilon(1.0, rounds) for rounds in (1, 2, 3)]
    assert list(RunFiles(run).metrics()["privacy/epsilon"]) == pytest.approx(spent)
    summary = read_summary(run)
    assert summary.privacy["epsilon"] == pytest.approx(spent[-1])
    assert summary.privacy["clients_per_round"] == 20
    assert f"differential privacy of clients: epsilon {spent[-1]:.4g}" in table(summary)


def test_nothing_is_reported_of_clients(run):
    assert "train/num_clients" not in RunFiles(run).metrics()
    assert "train/loss" not in RunFiles(run).metrics()
    assert "train/server_kept" in RunFiles(run).metrics()


def test_a_run_in_parts_has_the_same_noise(run, tmp_path):
    for rounds in (1, 3):
        train_run(tmp_path / "parts", private(rounds, noise_multiplier=1.0), resume=rounds > 1)
    whole, parts = ((path / "metrics.csv").read_bytes() for path in (run, tmp_path / "parts"))
    assert whole.splitlines()[2:] == parts.splitlines()[2:]


@pytest.mark.slow
def test_noise_that_clients_add_is_the_same_in_parts(tmp_path):
    def distributed(rounds):
        return private(rounds, noise_multiplier=1.0, mechanism="distributed", clipping="fixed")

    for name, parts in (("whole", (2,)), ("parts", (1, 2))):
        for rounds in parts:
            train_run(tmp_path / name, distributed(rounds), resume=rounds != parts[0])
    whole, parts = (
        (tmp_path / name / "metrics.csv").read_bytes().splitlines() for name in ("whole", "parts")
    )
    assert whole[2:] == parts[2:]
    metrics = RunFiles(tmp_path / "whole").metrics()
    assert metrics["privacy/epsilon"][-1] == pytest.approx(ACCOUNTANT.epsilon(1.0, rounds=2))
    assert list(metrics["train/aggregator/withheld"]) == [0, 0]


def test_noise_is_made_for_an_epsilon_of_all_rounds(tmp_path, capsys):
    path = train_run(tmp_path / "run", private(1, epsilon=30.0))
    summary = json.loads((path / "summary.json").read_text())["privacy"]
    assert 29.0 < summary["epsilon"] <= 30.0
    assert summary["noise_multiplier"] == ACCOUNTANT.noise_multiplier(30.0, rounds=1)
    longer = run_program(
        private(2, epsilon=30.0), str(path), resume=True, set_context=keep_the_context
    )
    assert longer == 1
    assert "this run was made for another number of them (rounds: 1 then, 2 now)" in (
        capsys.readouterr().err
    )


def test_epsilon_of_cohorts_that_are_drawn_otherwise_is_not_written(tmp_path):
    """It would be a fraction of what a run of fixed cohorts reveals."""
    data = [random_examples(5, seed=i) for i in range(5)]
    dataset = FederatedDataset.from_client_arrays([(d.x, d.y, d.x, d.y) for d in data], 3)
    loss = PrivacyLoss(Accountant(5, 2, 0.1, "poisson"), noise_multiplier=1.0)
    with (
        RunDirectory(tmp_path / "run", {}) as directory,
        pytest.raises(ValueError, match="Epsilon is that of\n.*poisson.*\nbut the run's"),
    ):
        train(
            tiny_process(build_fedavg),
            tiny_model(),
            dataset,
            directory,
            rounds=1,
            clients_per_round=2,
            privacy=loss,
        )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            private(epsilon=1e-5, delta=1e-9),
            "config.privacy: epsilon of 2 rounds of 20 of 30 clients must be",
        ),
        (private(noise_multiplier=3.0), "noise_multiplier must be below 0.1 .* = 2 for a clipping"),
        (private(algorithm="pgfed", noise_multiplier=1.0), "config.privacy: The aggregator of pgf"),
    ],
    ids=["epsilon", "noise", "method"],
)
def test_what_is_impossible_is_refused(config, message, tmp_path, capsys):
    assert run_program(config, str(tmp_path / "run"), set_context=keep_the_context) == 1
    assert re.search(message, capsys.readouterr().err)
