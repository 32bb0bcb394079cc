"""Runs in which not every client that is selected reports."""

import csv

import numpy as np
import pytest

from tests.federation import assert_equal, random_examples, tiny_model, tiny_process
from tests.runs import tiny_config
from tff_pfl import experiment, runtime
from tff_pfl.algorithms import build_fedavg
from tff_pfl.clients import CohortIterator, Participation
from tff_pfl.clients.availability import Diurnal
from tff_pfl.data import FederatedDataset
from tff_pfl.experiment import (
    ConfigError,
    NobodyReportedError,
    RunDirectory,
    build_dataset,
    check_config,
)
from tff_pfl.experiment.results import NUM_CLIENTS_NEVER_SELECTED

MODEL = tiny_model()
UNRELIABLE = Participation(
    over_selection=1.5,
    availability=Diurnal(rounds_per_day=4, least=0.3),
    dropout=(0.3,),
    median_seconds=(10.0,),
    client_spread=0.5,
    deadline=20.0,
)
POISSON = Participation(sampling="poisson")


class Killed(BaseException):
    """Stands in for a process that ends in the middle of a run."""


@pytest.fixture(scope="module")
def dataset():
    data = [random_examples(5 + i, seed=i) for i in range(5)]
    return FederatedDataset.from_client_arrays([(d.x, d.y, d.x, d.y) for d in data], 3)


def run(path, dataset, *, build=build_fedavg, rounds=6, **options):
    arguments = {"clients_per_round": 2, "seed": 3, "evaluate_every": 2, **options}
    with RunDirectory(path, {}, resume=True) as directory:
        return experiment.train(
            tiny_process(build), MODEL, dataset, directory, rounds=rounds, **arguments
        )


def rows_of(path, name="metrics.csv"):
    with open(path / name, newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def unreliable(tmp_path_factory, dataset):
    path = tmp_path_factory.mktemp("run")
    return path, run(path, dataset, participation=UNRELIABLE)


def test_metrics_count_who_was_selected_and_who_reported(unreliable):
    path, _ = unreliable
    expected = [UNRELIABLE.participants(3, number, 5, 2) for number in range(6)]
    for row, found in zip(rows_of(path), expected, strict=True):
        assert int(row["train/num_clients"]) == len(found.reported)
        for name, value in found.metrics().items():
            assert float(row[name]) == value
    assert sum(len(found.reported) < 2 for found in expected) > 0
    assert {len(found.selected) for found in expected} > {3}


def test_who_never_reported_counts_as_never_selected(unreliable):
    path, result = unreliable
    reported = np.zeros(5, bool)
    for number in range(6):
        reported[UNRELIABLE.participants(3, number, 5, 2).reported] = True
    was_selected = [row["was_selected"] for row in rows_of(path, "clients/round_000006.csv")]
    assert was_selected == [str(int(ever)) for ever in reported]
    assert result.final.metrics[NUM_CLIENTS_NEVER_SELECTED] == 5 - sum(reported) > 0


def test_a_killed_run_goes_on_with_the_same_numbers(unreliable, dataset, tmp_path, monkeypatch):
    path, expected = unreliable
    options = {"participation": UNRELIABLE, "checkpoint_every": 3}
    update, calls = CohortIterator.update, iter(range(4))

    def killed_in_the_fifth_round(self, clients):
        if next(calls, None) is None:
            raise Killed
        update(self, clients)

    with monkeypatch.context() as patch:
        patch.setattr(CohortIterator, "update", killed_in_the_fifth_round)
        with pytest.raises(Killed):
            run(tmp_path, dataset, **options)
    result = run(tmp_path, dataset, **options)
    for name in ("metrics.csv", "clients/round_000006.csv"):
        assert (tmp_path / name).read_bytes() == (path / name).read_bytes()
    assert_equal(result.server_state, expected.server_state)


def test_who_reported_is_known_when_a_run_goes_on(unreliable, dataset, tmp_path):
    path, _ = unreliable
    for rounds in (4, 6):
        run(tmp_path, dataset, rounds=rounds, participation=UNRELIABLE)
    for name in ("metrics.csv", "clients/round_000006.csv"):
        assert (tmp_path / name).read_bytes() == (path / name).read_bytes()


def test_a_run_in_which_everybody_reports_has_no_such_metrics(dataset, tmp_path):
    run(tmp_path / "default", dataset, rounds=2)
    run(tmp_path / "explicit", dataset, rounds=2, participation=Participation())
    metrics = (tmp_path / "default" / "metrics.csv").read_bytes()
    assert (tmp_path / "explicit" / "metrics.csv").read_bytes() == metrics
    assert b"participation" not in metrics


def test_a_round_of_nobody_counts_and_changes_nothing(dataset, tmp_path, capsys):
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


def test_the_stock_runtime_says_that_it_has_no_round_of_nobody(dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(runtime, "current_devices", lambda: None)
    with pytest.raises(NobodyReportedError, match="Nobody reported in round 1.*--runtime=graph"):
        run(tmp_path, dataset, participation=Participation(dropout=(1.0,)))


def test_too_few_clients_for_over_selection_are_refused(dataset, tmp_path):
    with pytest.raises(ValueError, match="asks for 6 clients, but the federation has only 5"):
        run(tmp_path, dataset, participation=Participation(over_selection=3.0))
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize(
    ("participation", "message"),
    [
        ({"sampling": "poison"}, "config.participation: Unknown sampling 'poison'. Did you mean"),
        ({"deadline": 3.0}, "config.participation: deadline=3.0, but median_seconds="),
        ({"dropuot": (0.1,)}, "Unknown config key 'dropuot'. Did you mean 'dropout'"),
        ({"availability": {"name": "dirunal"}}, "Unknown availability 'dirunal'. Did you mean"),
        ({"availability": {"least": 0.5}}, "Unknown option of availability 'always' 'least'"),
    ],
)
def test_wrong_configs(participation, message):
    config = tiny_config()
    with config.unlocked():
        config.update({"participation": participation})
    with pytest.raises(ConfigError, match=message):
        check_config(config)


def test_a_config_whose_federation_is_too_small():
    config = tiny_config(participation={"over_selection": 2.5})
    check_config(config)
    message = "config.participation: over_selection=2.5 of .* asks for 5 clients, .* has only 4"
    with pytest.raises(ConfigError, match=message):
        build_dataset(config)
