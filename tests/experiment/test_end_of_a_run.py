"""What is evaluated after the last round, of runs that end elsewhere than they were to."""

import csv

import numpy as np
import pytest

from tests.federation import assert_equal, random_examples, tiny_model, tiny_process
from tests.marks import slow
from tff_pfl.algorithms import build_ditto
from tff_pfl.clients import ClientStateStore
from tff_pfl.data import FederatedDataset
from tff_pfl.evaluation import ClientMetrics, EvaluationOptions, MetricName
from tff_pfl.experiment import RunDirectory, train
from tff_pfl.experiment.metrics_log import MetricsLog

LAST = EvaluationOptions(generalization="last", synthetic=())


class Killed(BaseException):
    """Stands in for a process that ends in the middle of a run."""


@pytest.fixture(scope="module")
def dataset():
    data = [random_examples(5 + i, seed=i) for i in range(4)]
    return FederatedDataset.from_client_arrays([(d.x, d.y, d.x, d.y) for d in data], 3)


def of_new_clients(server_state):
    loss = np.arange(2) / (1 + float(server_state.round_num))
    name = MetricName("fine_tuned", "new_clients_test", "loss", "")
    return ClientMetrics(np.arange(4, 6), np.ones(2, np.int32), {name: loss})


def run(path, dataset, rounds, **options):
    process = tiny_process(build_ditto)
    arguments = {
        "clients_per_round": 2,
        "evaluate_every": 2,
        "evaluate": LAST,
        "evaluate_new_clients": of_new_clients,
        **options,
    }
    with RunDirectory(path, {}, resume=True) as directory:
        return train(process, tiny_model(), dataset, directory, rounds=rounds, **arguments)


def run_until(path, dataset, rounds, target, attribute, call, **options):
    """The run, killed when something is called so many times; counted from 1."""
    original, calls = getattr(target, attribute), []

    def wrapped(*args, **kwargs):
        calls.append(args)
        if len(calls) == call:
            raise Killed
        return original(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, attribute, wrapped)
        with pytest.raises(Killed):
            run(path, dataset, rounds, **options)


@pytest.fixture(scope="module")
def straight(tmp_path_factory, dataset):
    """Directories and results of runs of 2, 3 and 4 rounds that nothing has disturbed."""
    path = tmp_path_factory.mktemp("straight")
    return {n: (path / str(n), run(path / str(n), dataset, n)) for n in (2, 3, 4)}


def table(path, name):
    """The rows of a table of a run, of the columns that have something in them."""
    with open(path / name, newline="") as file:
        return [
            {key: cell for key, cell in row.items() if cell and not key.endswith("seconds")}
            for row in csv.DictReader(file)
        ]


def table_of_seconds(path):
    with open(path / "timings.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    return [{key: float(cell) for key, cell in row.items() if cell} for row in rows]


def assert_as_straight(path, result, straight, rounds, *, metrics_too=True):
    expected_path, expected = straight[rounds]
    assert result.final == expected.final
    assert_equal(result.server_state, expected.server_state)
    names = (f"clients/round_{rounds:06d}.csv", "new_clients.csv")
    for name in names + ("metrics.csv", "timings.csv") * metrics_too:
        assert table(path, name) == table(expected_path, name), name


@pytest.mark.parametrize("rounds", [2, 3])
def test_a_run_is_ended_where_it_was_stopped(dataset, straight, tmp_path, rounds):
    """After a round that was evaluated, but not as the last one, or was not."""
    run_until(tmp_path, dataset, 4, ClientStateStore, "commit", rounds + 1)
    result = run(tmp_path, dataset, rounds)
    assert_as_straight(tmp_path, result, straight, rounds)
    assert any(name.pool == "generalization_test" for name in result.final.metrics)
    assert result.seconds > 0
    timings = table_of_seconds(tmp_path)
    assert len(timings) == rounds and timings[-1]["round_seconds"] > 0
    assert result.seconds >= sum(row["round_seconds"] for row in timings)


@pytest.mark.parametrize("moment", [(MetricsLog, "record", 2), (ClientStateStore, "commit", 2)])
@pytest.mark.parametrize("then", [2, slow(3), 4])
def test_ending_it_can_be_killed(dataset, straight, tmp_path, moment, then):
    """After which the run is ended there after all, or goes on."""
    run_until(tmp_path, dataset, 4, ClientStateStore, "commit", 3)
    run_until(tmp_path, dataset, 2, *moment)
    result = run(tmp_path, dataset, then)
    assert_as_straight(tmp_path, result, straight, then)


@pytest.mark.parametrize("checkpoint_every", [1, 3])
def test_a_run_made_longer_can_be_killed_before_its_last_commit(
    dataset, straight, tmp_path, checkpoint_every
):
    run(tmp_path, dataset, 2)
    options = {"checkpoint_every": checkpoint_every}
    # That of the start is the first, then come those of rounds 3 and 4.
    run_until(tmp_path, dataset, 4, ClientStateStore, "commit", 3, **options)
    assert table(tmp_path, "new_clients.csv") == table(straight[4][0], "new_clients.csv")
    result = run(tmp_path, dataset, 4, **options)
    assert_as_straight(tmp_path, result, straight, 4, metrics_too=False)


def test_nothing_is_evaluated_again_where_nothing_is_to_be_done(dataset, straight, tmp_path):
    path, expected = straight[2]
    before = {file: file.stat().st_mtime_ns for file in path.rglob("clients/*")}
    assert run(path, dataset, 2).final == expected.final
    assert {file: file.stat().st_mtime_ns for file in path.rglob("clients/*")} == before
