"""Tests that killed, interrupted or extended runs have the numbers of uninterrupted runs."""

import dataclasses

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.experiment.killed import numbers_of, rows_of, run, run_until, with_validation
from tests.federation import assert_equal
from tests.marks import slow
from tff_pfl import runtime
from tff_pfl.clients import ClientStateStore, CohortIterator, Participation
from tff_pfl.evaluation import ClientMetrics, Evaluation, MetricName
from tff_pfl.experiment import EarlyStop, OutputDirectoryError, loop
from tff_pfl.experiment.metrics_log import MetricsLog

UPDATE, RELEASE, COMMIT = (
    (CohortIterator, "update"),
    (MetricsLog, "release"),
    (ClientStateStore, "commit"),
)
# No accuracy exceeds another by more than 1, so that the first evaluation stays the best.
NEVER_BETTER = EarlyStop(patience=2, least_gain=1.0)


def assert_same(path, result, expected):
    assert numbers_of(path) == numbers_of(expected[0])
    assert_equal(result.server_state, expected[1].server_state)
    assert (result.best_on_test, result.final) == (expected[1].best_on_test, expected[1].final)


@pytest.mark.parametrize(
    ("moment", "checkpoint_every"),
    [
        ((*UPDATE, 5), 1),
        slow((*UPDATE, 5), 4),
        slow((*RELEASE, 5), 1),
        slow((*RELEASE, 5), 4),
        slow((*COMMIT, 5), 1),
        slow((*COMMIT, 2), 4),
    ],
)
def test_killed_run_resumes_with_the_same_numbers(
    uninterrupted, dataset, tmp_path, moment, checkpoint_every
):
    run_until(*moment, tmp_path, dataset, checkpoint_every=checkpoint_every)
    result = run(tmp_path, dataset, checkpoint_every=checkpoint_every)
    assert_same(tmp_path, result, uninterrupted)


def test_run_in_which_all_clients_report_lacks_participation_metrics(uninterrupted):
    assert not any(name.startswith("participation") for name in rows_of(uninterrupted[0])[0])


@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", [False, True])
def test_killed_run_of_clients_side_by_side_resumes_with_the_same_numbers(
    dataset, tmp_path, jit_compile
):
    options = {"clients_per_round": 4, "rounds": 3}
    lanes = runtime.create_graph_context(vectorize="always", jit_compile=jit_compile)
    with tff.framework.get_context_stack().install(lanes):
        expected = run(tmp_path / "uninterrupted", dataset, **options)
        run_until(*UPDATE, 2, tmp_path / "killed", dataset, **options)
        result = run(tmp_path / "killed", dataset, **options)
    assert_same(tmp_path / "killed", result, (tmp_path / "uninterrupted", expected))


@pytest.mark.thorough
def test_run_that_cannot_write_keeps_its_last_commit(uninterrupted, dataset, tmp_path):
    run_until(*COMMIT, 3, tmp_path, dataset, OSError)
    run_until(*UPDATE, 2, tmp_path, dataset, KeyboardInterrupt)  # after two rounds and one more
    with pytest.raises(OutputDirectoryError, match="has done 3 rounds"):
        run(tmp_path, dataset, rounds=1)
    assert_same(tmp_path, run(tmp_path, dataset), uninterrupted)


def test_finished_run_can_be_made_longer(uninterrupted, dataset, tmp_path):
    run(tmp_path, dataset, rounds=4)
    assert_same(tmp_path, run(tmp_path, dataset), uninterrupted)


@pytest.mark.thorough
def test_late_rounds_exclude_the_previous_end_of_a_longer_run(dataset, tmp_path):
    late = {"evaluation": Evaluation(every=2, late_share=0.5)}
    for rounds in (1, 3, 5):  # rounds without a regular evaluation
        run(tmp_path, dataset, rounds=rounds, **late)
    result = run(tmp_path, dataset, **late)
    assert result.late_mean.rounds == (4, 6)
    assert result.best_on_test.round_num % 2 == 0


def of_new_clients(server_state):
    loss = np.arange(2) / (1 + float(server_state.round_num))
    name = MetricName("fine_tuned", "new_clients_test", "loss", "")
    return ClientMetrics(np.arange(4, 6), np.ones(2, np.int32), {name: loss})


AT_THE_END = {
    "evaluation": Evaluation(every=2, generalization="last", synthetic=()),
    "of_new_clients": of_new_clients,
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory, dataset):
    """Trains runs of 2 and 3 rounds with evaluations at the end; returns paths and results."""
    path = tmp_path_factory.mktemp("straight")
    return {n: (path / str(n), run(path / str(n), dataset, rounds=n, **AT_THE_END)) for n in (2, 3)}


def rows(path, name):
    """Returns the rows of a table of a run, without empty cells."""
    return [{k: v for k, v in row.items() if v} for row in rows_of(path, name)]


def assert_ended(path, result, expected, number, names=("metrics.csv",)):
    assert result.final == expected[1].final
    for name in (f"clients/round_{number:06d}.csv", "new_clients.csv", *names):
        assert rows(path, name) == rows(expected[0], name), name


@pytest.mark.thorough
@pytest.mark.parametrize("rounds", [2, 3])
def test_stopped_run_can_be_made_shorter(dataset, ended, tmp_path, rounds):
    """Covers a round that was evaluated, but not as the last one, and one that was not."""
    run_until(*COMMIT, rounds + 1, tmp_path, dataset, **AT_THE_END)
    result = run(tmp_path, dataset, rounds=rounds, **AT_THE_END)
    assert_ended(tmp_path, result, ended[rounds], rounds)
    assert any(name.pool == "generalization_test" for name in result.final.metrics)
    seconds = [float(row["round_seconds"]) for row in rows(tmp_path, "timings.csv")]
    assert len(seconds) == rounds and result.seconds >= sum(seconds) > 0


@pytest.mark.thorough
@pytest.mark.parametrize("moment", [(MetricsLog, "record", 2), slow((*COMMIT, 2))])
@pytest.mark.parametrize("then", [slow(2), 3])
def test_shortened_run_can_be_killed_at_its_end(dataset, ended, tmp_path, moment, then):
    """Covers a killed run that is then ended there, or made longer again."""
    run_until(*COMMIT, 3, tmp_path, dataset, **AT_THE_END)
    run_until(*moment, tmp_path, dataset, rounds=2, **AT_THE_END)
    result = run(tmp_path, dataset, rounds=then, **AT_THE_END)
    assert_ended(tmp_path, result, ended[then], then)


@pytest.mark.thorough
def test_longer_run_can_be_killed_before_its_last_commit(dataset, ended, tmp_path):
    run(tmp_path, dataset, rounds=2, **AT_THE_END)
    # The first commit is at the start.
    run_until(*COMMIT, 2, tmp_path, dataset, rounds=3, **AT_THE_END)
    result = run(tmp_path, dataset, rounds=3, **AT_THE_END)
    assert_ended(tmp_path, result, ended[3], 3, names=())


@pytest.mark.thorough
def test_finished_run_is_not_evaluated_again(dataset, ended):
    path, expected = ended[2]
    before = {file: file.stat().st_mtime_ns for file in path.rglob("clients/*")}
    assert run(path, dataset, rounds=2, **AT_THE_END).final == expected.final
    assert {file: file.stat().st_mtime_ns for file in path.rglob("clients/*")} == before


@pytest.fixture(scope="module")
def validated(dataset):
    return with_validation(dataset)


STOPS = {"early_stop": NEVER_BETTER, "rounds": 9, "evaluation": AT_THE_END["evaluation"]}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, validated):
    path = tmp_path_factory.mktemp("run")
    return path, run(path, validated, **STOPS)


@pytest.mark.thorough
def test_early_stopped_run_equals_a_run_of_as_many_rounds(stopped, validated, tmp_path):
    path, result = stopped
    assert result.final.round_num == 6  # two evaluations after the best one, in round 2
    assert "in 2 evaluations up to round 6; the last improvement was" in result.stopped
    straight = run(tmp_path / "straight", validated, **{**STOPS, "rounds": 6})
    assert_same(path, result, (tmp_path / "straight", straight))
    # Only the watched metric differs from a run without an early stop.
    without = run(tmp_path / "without", validated, rounds=6, evaluation=STOPS["evaluation"])
    assert without.stopped is None
    metrics = dict(result.final.metrics)
    assert 0 <= metrics.pop(NEVER_BETTER.watched) <= 1
    assert metrics == without.final.metrics
    found = rows(path, "metrics.csv")
    watched = [row.pop(str(NEVER_BETTER.watched), None) for row in found]
    assert [value is not None for value in watched] == [False, True] * 3
    assert found == rows(tmp_path / "without", "metrics.csv")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "moment",
    [slow((*UPDATE, 6)), slow((*RELEASE, 6)), (*COMMIT, 2), slow((loop, "Result", 1))],
)
def test_killed_run_stops_early_at_the_same_round(stopped, validated, tmp_path, moment):
    run_until(*moment, tmp_path, validated, checkpoint_every=4, **STOPS)
    result = run(tmp_path, validated, checkpoint_every=4, **STOPS)
    assert_same(tmp_path, result, stopped)
    assert result.stopped == stopped[1].stopped


@pytest.mark.thorough
def test_early_stop_ignores_the_previous_end_of_a_longer_run(stopped, validated, tmp_path):
    """Checks that an extended run stops in the same round as a run that was long at first."""
    for rounds in (3, 5):
        assert run(tmp_path, validated, **{**STOPS, "rounds": rounds}).stopped is None
    assert run(tmp_path, validated, **STOPS).stopped == stopped[1].stopped
    patient = {**STOPS, "early_stop": EarlyStop(patience=9), "rounds": 7}
    assert run(tmp_path, validated, **patient).final.round_num == 7


@pytest.mark.thorough
@pytest.mark.parametrize("rounds", [slow(6), 7])
def test_resumed_run_with_less_patience_stops_at_once(stopped, validated, tmp_path, rounds):
    """Covers rounds with and without a regular evaluation."""
    patient = {**STOPS, "early_stop": dataclasses.replace(NEVER_BETTER, patience=9)}
    run_until(*COMMIT, rounds + 1, tmp_path, validated, **patient)
    result = run(tmp_path, validated, **STOPS)
    assert result.final.round_num == rounds and "up to round 6" in result.stopped
    if rounds == 6:
        assert_same(tmp_path, result, stopped)
    before = numbers_of(tmp_path)
    assert f"round_{rounds:06d}.csv" in before
    assert run(tmp_path, validated, **STOPS).final == result.final
    assert numbers_of(tmp_path) == before


@pytest.mark.slow
def test_resumed_run_knows_which_clients_reported(dataset, tmp_path):
    unreliable = {
        "participation": Participation(over_selection=2.0, dropout=(0.5,)),
        "algorithm": "fedavg",
        "rounds": 4,
    }
    expected = tmp_path / "whole", run(tmp_path / "whole", dataset, **unreliable)
    run_until(*UPDATE, 4, tmp_path / "parts", dataset, checkpoint_every=2, **unreliable)
    result = run(tmp_path / "parts", dataset, checkpoint_every=2, **unreliable)
    assert_same(tmp_path / "parts", result, expected)
    clients = rows_of(tmp_path / "parts", "clients/round_000004.csv")
    assert any(row["was_selected"] == "0" for row in clients)
