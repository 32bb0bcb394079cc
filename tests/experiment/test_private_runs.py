"""Tests runs with differential privacy."""

import dataclasses
import functools
import json
import math

import pytest

from tests.experiment import killed
from tests.federation import EXAMPLES_TYPE, local_sgd, tiny_model
from tests.runs import tiny_config, train_run
from tff_pfl.algorithms import make
from tff_pfl.experiment import OutputDirectoryError, RunFiles, read_summary, run_program, table
from tff_pfl.privacy import Accountant, PrivacyLoss, default_delta, with_privacy
from tff_pfl.templates import compose


def private(rounds=2, algorithm="fedavg", **changes):
    """Returns a config with 20 of 30 clients a round, enough to adapt the clipping norm."""
    config = tiny_config(algorithm, rounds=rounds, clients_per_round=20)
    config.data.num_clients = 30
    config.privacy.update(changes)
    return config


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train_run(tmp_path_factory.mktemp("private") / "run", private(3, noise_multiplier=1.0))


ACCOUNTANT = Accountant(30, 20, default_delta(30))


def test_metrics_have_epsilon_and_the_summary_its_parameters(run):
    spent = [ACCOUNTANT.epsilon(1.0, rounds) for rounds in (1, 2, 3)]
    assert list(RunFiles(run).metrics["privacy/epsilon"]) == pytest.approx(spent)
    summary = read_summary(run)
    assert summary.privacy["epsilon"] == pytest.approx(spent[-1])
    assert summary.privacy["clients_per_round"] == 20
    assert f"differential privacy of clients: epsilon {spent[-1]:.4g}" in table(summary)


def test_metrics_of_clients_are_not_released(run):
    assert "train/num_clients" not in RunFiles(run).metrics
    assert "train/loss" not in RunFiles(run).metrics
    assert "train/server_kept" in RunFiles(run).metrics


def test_resumed_run_has_the_same_noise(run, tmp_path):
    for rounds in (1, 3):
        train_run(tmp_path / "parts", private(rounds, noise_multiplier=1.0), resume=rounds > 1)
    whole, parts = ((path / "metrics.csv").read_bytes() for path in (run, tmp_path / "parts"))
    assert whole.splitlines()[2:] == parts.splitlines()[2:]


@pytest.mark.slow
def test_resumed_run_has_the_same_distributed_noise(tmp_path):
    def distributed(rounds):
        return private(rounds, noise_multiplier=1.0, mechanism="distributed", clipping="fixed")

    for name, parts in (("whole", (2,)), ("parts", (1, 2))):
        for rounds in parts:
            train_run(tmp_path / name, distributed(rounds), resume=rounds != parts[0])
    whole, parts = (
        (tmp_path / name / "metrics.csv").read_bytes().splitlines() for name in ("whole", "parts")
    )
    assert whole[2:] == parts[2:]
    metrics = RunFiles(tmp_path / "whole").metrics
    assert metrics["privacy/epsilon"][-1] == pytest.approx(ACCOUNTANT.epsilon(1.0, rounds=2))
    assert list(metrics["train/aggregator/withheld"]) == [0, 0]


def test_noise_is_computed_for_the_epsilon_of_all_rounds(tmp_path, capsys):
    path = train_run(tmp_path / "run", private(1, epsilon=30.0))
    summary = json.loads((path / "summary.json").read_text())["privacy"]
    assert 29.0 < summary["epsilon"] <= 30.0
    assert summary["noise_multiplier"] == ACCOUNTANT.noise_multiplier(30.0, rounds=1)
    longer = run_program(private(2, epsilon=30.0), str(path), resume=True)
    assert longer == 1
    assert "this run was computed for another number of rounds (rounds: 1 then, 2 now)" in (
        capsys.readouterr().err
    )


def trained(path, dataset, process, privacy, rounds=1):
    return killed.run(path, dataset, process, rounds, privacy=privacy)


@functools.cache
def _made_process():
    algorithm = with_privacy(
        make("fedavg", tiny_model(), local_sgd()),
        noise_multiplier=0.1,
        clients_per_round=2,
        clip_norm=0.5,
        clipping="fixed",
        seed=0,
    )
    return compose(algorithm, EXAMPLES_TYPE)


def noisy_process(noise):
    """Returns a process that claims a noise multiplier; its real one is 0.1."""
    return dataclasses.replace(_made_process(), noise_multiplier=noise)


def test_run_is_not_resumed_with_another_privacy_loss(dataset, tmp_path):
    before = PrivacyLoss(Accountant(5, 2, 0.1), noise_multiplier=0.5)
    trained(tmp_path, dataset, noisy_process(0.5), before)
    metrics = (tmp_path / "metrics.csv").read_bytes()
    for noise, loss, message in (
        (0.500001, PrivacyLoss(Accountant(5, 2, 0.1), 0.500001), "was 0.5, now it is 0.500001"),
        (0.5, PrivacyLoss(Accountant(5, 2, 0.2), noise_multiplier=0.5), "was.*0.1.*now it is.*0.2"),
        (0.5, None, "was.*=0.5.*now it is\n  not counted"),
    ):
        with pytest.raises(OutputDirectoryError, match=f"(?s)Cannot resume the run in.*{message}"):
            trained(tmp_path, dataset, noisy_process(noise), loss, rounds=2)
    assert (tmp_path / "metrics.csv").read_bytes() == metrics
    result = trained(tmp_path, dataset, noisy_process(0.5), before, rounds=2)
    assert result.privacy["epsilon"] == before.epsilon(2)
    rounded = math.nextafter(0.5, 1)  # noise computed for an epsilon, on another machine
    after = PrivacyLoss(before.accountant, rounded)
    assert trained(tmp_path, dataset, noisy_process(rounded), after, rounds=3).privacy


def test_run_without_epsilon_is_not_resumed_with_epsilon(dataset, tmp_path):
    """Checks the noise of the state: epsilon of two rounds is 507 for 0.1, but 0.44 for 5."""
    trained(tmp_path, dataset, noisy_process(0.1), None)
    loss = PrivacyLoss(Accountant(5, 2, 0.1), noise_multiplier=5)
    for noise, counted, message in (
        (5.0, loss, "noise_multiplier was 0.1, now it is 5.0"),
        (5.0, None, "noise_multiplier was 0.1, now it is 5.0"),
        (0.1, PrivacyLoss(loss.accountant, 0.1), "was\n  not counted\nnow it is.*=0.1"),
    ):
        with pytest.raises(OutputDirectoryError, match=f"(?s)Cannot resume the run in.*{message}"):
            trained(tmp_path, dataset, noisy_process(noise), counted, rounds=2)
    assert trained(tmp_path, dataset, noisy_process(0.1), None, rounds=2).privacy is None


def test_warning_says_that_epsilon_is_not_counted(dataset, tmp_path, capsys):
    loss = PrivacyLoss(Accountant(5, 2, 0.1), noise_multiplier=5)
    for counted in (loss, None):
        trained(tmp_path / str(counted is None), dataset, noisy_process(5.0), counted)
        printed = capsys.readouterr().out
        warning = "epsilon is not counted. Pass privacy=PrivacyLoss(accountant, 5)."
        assert (warning in printed) == (counted is None)


def test_infinite_epsilon_is_text_in_json(dataset, tmp_path):
    loss = PrivacyLoss(Accountant(5, 2, 0.1), noise_multiplier=0)
    result = trained(tmp_path, dataset, noisy_process(0.0), loss)
    written = json.loads((tmp_path / "summary.json").read_text(), parse_constant=pytest.fail)
    assert written["privacy"]["epsilon"] == "inf"
    assert read_summary(tmp_path).privacy == result.privacy
    assert result.privacy["epsilon"] == math.inf
    assert "epsilon inf, delta 0.1" in table(read_summary(tmp_path))
