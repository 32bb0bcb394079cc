"""Tests runs with differential privacy."""

import dataclasses
import functools

import pytest

from tests.experiment import killed
from tests.federation import tiny_algorithm, tiny_experiment
from tests.runs import tiny_config, train_run
from tff_pfl.clients import Participation
from tff_pfl.config import experiment_of, run_program
from tff_pfl.experiment import (
    OutputDirectoryError,
    RunDirectory,
    RunFiles,
    read_summary,
    resolved,
    table,
)
from tff_pfl.privacy import Accountant, PrivacyLoss, default_delta, with_privacy


def private(rounds=2, algorithm="fedavg", **changes):
    """Returns a config with 20 of 30 clients a round, enough to adapt the clipping norm."""
    config = tiny_config(algorithm, rounds=rounds, clients_per_round=20)
    config.data.num_clients = 30
    config.privacy.update(changes)
    return config


def train(path, rounds, **changes):
    return train_run(path, private(rounds, noise_multiplier=1.0, **changes), resume=True)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(tmp_path_factory.mktemp("private") / "run", 3)


ACCOUNTANT = Accountant(30, 20, default_delta(30))


@pytest.mark.thorough
def test_metrics_have_epsilon_and_the_summary_its_parameters(run):
    spent = [ACCOUNTANT.epsilon(1.0, rounds) for rounds in (1, 2, 3)]
    assert list(RunFiles(run).metrics["privacy/epsilon"]) == pytest.approx(spent)
    summary = read_summary(run)
    assert summary.privacy["epsilon"] == pytest.approx(spent[-1])
    assert summary.privacy["clients_per_round"] == 20
    assert f"differential privacy of clients: epsilon {spent[-1]:.4g}" in table(summary)


@pytest.mark.thorough
def test_metrics_of_clients_are_not_released(run):
    assert "train/num_clients" not in RunFiles(run).metrics
    assert "train/loss" not in RunFiles(run).metrics
    assert "train/server_kept" in RunFiles(run).metrics


def assert_resumed_with_the_same_noise(whole, path, **mechanism):
    for rounds in (1, 3):
        train(path, rounds, **mechanism)
    # The first round was evaluated as the last one.
    found, expected = ((run / "metrics.csv").read_bytes().splitlines() for run in (path, whole))
    assert found[2:] == expected[2:]


@pytest.mark.thorough
def test_resumed_run_has_the_same_noise(run, tmp_path):
    assert_resumed_with_the_same_noise(run, tmp_path)


@pytest.mark.slow
def test_resumed_run_has_the_same_distributed_noise(tmp_path):
    distributed = {"mechanism": "distributed", "clipping": "fixed"}
    whole = train(tmp_path / "whole", 3, **distributed)
    assert_resumed_with_the_same_noise(whole, tmp_path / "parts", **distributed)
    metrics = RunFiles(whole).metrics
    assert metrics["privacy/epsilon"].iloc[-1] == pytest.approx(ACCOUNTANT.epsilon(1.0, rounds=3))
    assert list(metrics["train/aggregator/withheld"]) == [0, 0, 0]


@pytest.mark.thorough
def test_noise_is_computed_for_the_epsilon_of_all_rounds(tmp_path, capsys):
    config = private(1, epsilon=30.0)
    loss = experiment_of(config).privacy
    assert 29.0 < loss.epsilon(1) <= 30.0
    assert loss.noise_multiplier == ACCOUNTANT.noise_multiplier(30.0, rounds=1)
    RunDirectory(tmp_path, resolved(config)).create()
    assert run_program(private(2, epsilon=30.0), str(tmp_path), resume=True) == 1
    assert "this run was computed for another number of rounds (rounds: 1 then, 2 now)" in (
        capsys.readouterr().err
    )


@functools.cache
def noisy(noise):
    """Returns FedAvg that claims a noise multiplier; its real one is 0.1."""
    private = with_privacy(
        tiny_algorithm("fedavg"),
        noise_multiplier=0.1,
        clients_per_round=2,
        clip_norm=0.5,
        clipping="fixed",
        seed=0,
    )
    return private.with_declared_noise(noise)


@pytest.mark.thorough
def test_run_is_not_resumed_with_another_accountant(dataset, tmp_path):
    def trained(rounds, delta):
        accountant = Accountant(5, 2, delta)
        return killed.run(tmp_path, dataset, noisy(0.5), rounds=rounds, accountant=accountant)

    trained(rounds=1, delta=0.1)
    metrics = (tmp_path / "metrics.csv").read_bytes()
    message = "(?s)Cannot resume the run in.*privacy of its rounds was.*0.1.*now it is.*0.2"
    with pytest.raises(OutputDirectoryError, match=message):
        trained(rounds=2, delta=0.2)
    assert (tmp_path / "metrics.csv").read_bytes() == metrics
    epsilon = trained(rounds=2, delta=0.1).privacy["epsilon"]
    assert epsilon == Accountant(5, 2, 0.1).epsilon(0.5, rounds=2)


def test_accountant_is_by_default_that_of_the_cohorts(dataset):
    experiment = tiny_experiment(dataset, noisy(0.5))
    assert experiment.privacy == PrivacyLoss(Accountant(5, 2, default_delta(5)), 0.5)
    poisson = dataclasses.replace(experiment, participation=Participation(sampling="poisson"))
    assert poisson.privacy.accountant.sampling == "poisson"
    assert poisson.privacy.epsilon(6) < experiment.privacy.epsilon(6)
    assert tiny_experiment(dataset).privacy is None
