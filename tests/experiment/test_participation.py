"""Tests runs in which some selected clients do not report."""

import numpy as np
import pytest
import tensorflow as tf

from tests.experiment import killed
from tests.experiment.killed import numbers_of, rows_of, run_until
from tests.federation import assert_equal, tiny_experiment, tiny_model
from tests.marks import slow
from tff_pfl.clients import ClientStateStore, CohortIterator, Participation, PowerOfChoice
from tff_pfl.clients.availability import Diurnal
from tff_pfl.experiment.summary import NUM_CLIENTS_NEVER_SELECTED

UNRELIABLE = Participation(
    over_selection=1.5,
    availability=Diurnal(rounds_per_day=4, least=0.3),
    dropout=(0.3,),
    median_seconds=(10.0,),
    client_spread=0.5,
    deadline=20.0,
)
POISSON = Participation(sampling="poisson")


def run(path, dataset, **options):
    return killed.run(path, dataset, "fedavg", **options)


@pytest.fixture(scope="module")
def unreliable(tmp_path_factory, dataset):
    path = tmp_path_factory.mktemp("run")
    return path, run(path, dataset, participation=UNRELIABLE)


@pytest.mark.thorough
def test_metrics_count_selected_and_reporting_clients(unreliable):
    path, _ = unreliable
    expected = [UNRELIABLE.participants(3, number, 5, 2) for number in range(6)]
    for row, found in zip(rows_of(path), expected, strict=True):
        assert int(row["train/num_clients"]) == len(found.reported)
        for name, value in found.metrics().items():
            assert float(row[name]) == value
    assert sum(len(found.reported) < 2 for found in expected) > 0
    assert {len(found.selected) for found in expected} > {3}


def test_clients_that_never_reported_count_as_never_selected(unreliable):
    path, result = unreliable
    cohorts = [UNRELIABLE.participants(3, number, 5, 2).reported for number in range(6)]
    reported = [any(client in cohort for cohort in cohorts) for client in range(5)]
    was_selected = [row["was_selected"] for row in rows_of(path, "clients/round_000006.csv")]
    assert was_selected == [str(int(ever)) for ever in reported]
    assert result.final.metrics[NUM_CLIENTS_NEVER_SELECTED] == 5 - sum(reported) > 0


def test_round_without_clients_counts_but_changes_nothing(dataset, tmp_path, capsys):
    sizes = [len(POISSON.participants(3, number, 5, 1).reported) for number in range(8)]
    empty = sizes.index(0, 1)
    before = run(tmp_path, dataset, rounds=empty, clients_per_round=1, participation=POISSON)
    after = run(tmp_path, dataset, rounds=empty + 1, clients_per_round=1, participation=POISSON)
    assert f"round {empty + 1}: nobody reported" in capsys.readouterr().out
    assert_equal(after.server_state.algorithm, before.server_state.algorithm)
    assert int(after.server_state.round_num) == empty + 1
    assert after.final.metrics == before.final.metrics
    row = rows_of(tmp_path)[empty]
    assert (row["participation/num_selected"], row["train/server_kept"]) == ("0", "1")


LARGEST_LOSSES = Participation(selector=PowerOfChoice(candidates=5), dropout=(0.2,))


def test_power_of_choice_selects_by_the_losses_of_the_current_model(dataset, tmp_path):
    participation = Participation(selector=PowerOfChoice(candidates=5))
    run(tmp_path, dataset, rounds=1, participation=participation)
    process = tiny_experiment(dataset, "fedavg").process
    weights = process.initialize().algorithm.weights
    losses = []
    for client in range(5):
        data = dataset.examples(client)
        logits = tiny_model().apply(weights, data.x)
        losses.append(tf.nn.sparse_softmax_cross_entropy_with_logits(data.y, logits).numpy().mean())
    was_selected = [row["was_selected"] for row in rows_of(tmp_path, "clients/round_000001.csv")]
    assert np.flatnonzero(np.array(was_selected) == "1").tolist() == sorted(np.argsort(losses)[-2:])


@pytest.mark.thorough
@pytest.mark.parametrize(
    "moment", [(CohortIterator, "update", 4), slow((ClientStateStore, "commit", 4))]
)
def test_killed_run_selects_the_same_clients_again(dataset, tmp_path, moment):
    options = {"participation": LARGEST_LOSSES, "algorithm": "fedavg"}
    killed.run(tmp_path / "whole", dataset, **options)
    run_until(*moment, tmp_path / "parts", dataset, **options)
    killed.run(tmp_path / "parts", dataset, **options)
    assert numbers_of(tmp_path / "parts") == numbers_of(tmp_path / "whole")
