"""Tests runs in which some selected clients do not report."""

import pytest

from tests.experiment import killed
from tests.experiment.killed import rows_of
from tests.federation import assert_equal, tiny_process
from tff_pfl.algorithms import build_fedavg
from tff_pfl.clients import Participation
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
    return killed.run(path, dataset, tiny_process(build_fedavg), **options)


@pytest.fixture(scope="module")
def unreliable(tmp_path_factory, dataset):
    path = tmp_path_factory.mktemp("run")
    return path, run(path, dataset, participation=UNRELIABLE)


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


def test_run_in_which_all_clients_report_lacks_participation_metrics(uninterrupted):
    assert not any(name.startswith("participation") for name in rows_of(uninterrupted[0])[0])


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
