"""Runs whose clients do not always report."""

import numpy as np

from tests.runs import tiny_config, train_run
from tff_pfl.clients import Participation
from tff_pfl.experiment import RunFiles

ROUNDS = 6


def config_of(algorithm="fedavg", rounds=ROUNDS, **participation):
    config = tiny_config(algorithm, rounds=rounds)
    config.evaluation.every = 3
    config.participation.update(participation)
    return config


def test_metrics_have_who_came_and_rounds_of_nobody_pass(tmp_path):
    """With a seed in which that happens; the server then keeps its model."""
    run = train_run(tmp_path / "run", config_of(sampling="poisson", dropout=0.5))
    metrics = RunFiles(run).metrics()
    expected = [Participation(sampling="poisson", dropout=0.5).cohort(0, t, 4, 2) for t in range(6)]
    found = metrics["participation/num_reporting"]
    assert found.tolist() == [len(cohort.reporting) for cohort in expected]
    assert 0 in found
    np.testing.assert_array_equal(metrics["train/num_clients"], found)
    np.testing.assert_array_equal(metrics["train/server_kept"], found == 0)
    clients = RunFiles(run).clients()
    ever = {int(i) for cohort in expected for i in cohort.reporting}
    assert set(np.flatnonzero(clients.columns["was_selected"])) == ever


def test_a_run_in_parts_has_the_same_cohorts(tmp_path):
    options = {"over_selection": 1.5, "spread": 0.5, "deadline": 1.5, "availability": "diurnal"}
    whole = train_run(tmp_path / "whole", config_of("ditto", **options))
    for rounds in (3, ROUNDS):
        parts = train_run(
            tmp_path / "parts", config_of("ditto", rounds, **options), resume=rounds > 3
        )
    assert (whole / "metrics.csv").read_bytes() == (parts / "metrics.csv").read_bytes()


def test_by_default_there_is_nothing_to_tell(tmp_path):
    run = train_run(tmp_path / "run", config_of())
    assert not [name for name in RunFiles(run).metrics() if name.startswith("participation")]


def test_who_drops_out_is_absent_for_the_memory_of_gradients(tmp_path):
    """FedPG's server remembers those who reported, in the rounds in which they did."""
    run = train_run(tmp_path / "run", config_of("fedpg", dropout=0.5))
    metrics = RunFiles(run).metrics()
    last, remembered = {}, []
    for t in range(ROUNDS):
        reported = Participation(dropout=0.5).cohort(0, t, 4, 2).reporting.tolist()
        window = len({*last, *reported}) / len(reported)  # in rounds, of about equal cohorts
        absent = [i for i in last if i not in reported and t - last[i] <= window]
        remembered.append(len(absent))
        last |= dict.fromkeys(reported, t)
    assert len(last) > 2
    np.testing.assert_array_equal(metrics["train/server/num_absent"], remembered)
