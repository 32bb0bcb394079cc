"""Runs that end when their models no longer get better on validation data."""

import csv
import dataclasses
import math

import numpy as np
import pytest

from tests.federation import assert_equal, random_examples, tiny_model, tiny_process
from tests.marks import slow
from tests.runs import keep_the_context, tiny_config
from tff_pfl import experiment
from tff_pfl.algorithms import build_ditto, build_local
from tff_pfl.clients import ClientStateStore, CohortIterator
from tff_pfl.data import FederatedDataset, Partition
from tff_pfl.evaluation import EvaluationOptions, MetricName, sampled_clients
from tff_pfl.experiment import ConfigError, EarlyStop, RunDirectory, check_config, read_summary
from tff_pfl.experiment.metrics_log import MetricsLog
from tff_pfl.experiment.summary import finished_summary

MODEL = tiny_model()
# No accuracy is more than 1 above another: the first evaluation stays the best.
NEVER_BETTER = EarlyStop(patience=2, least_gain=1.0)
WATCHED = MetricName("personalized", "local_validation", "accuracy", "mean")


class Killed(BaseException):
    """Stands in for a process that ends in the middle of a run."""


@pytest.mark.parametrize(
    ("patience", "least_gain", "metric", "values", "best"),
    [
        (2, 0.0, "personalized/accuracy", [0.5, 0.6, 0.6, 0.5], "0.6000 after round 2"),
        (2, 0.0, "personalized/accuracy", [0.5, 0.6, 0.5, 0.7], None),
        (2, 0.0, "personalized/accuracy", [0.5, 0.5], None),
        (1, 0.0, "personalized/accuracy", [0.5, 0.5], "0.5000 after round 1"),
        (1, 0.2, "personalized/accuracy", [0.5, 0.6], "0.5000 after round 1"),
        # Many small steps are a gain over the last improvement, which is the first.
        (3, 0.15, "personalized/accuracy", [0.5, 0.6, 0.7, 0.8], None),
        (1, 0.0, "global/loss", [2.0, 1.0, 1.5], "1.0000 after round 2"),
        (2, 0.0, "global/loss", [2.0, math.nan, 1.5, math.nan], None),
        (2, 0.0, "global/loss", [2.0, math.nan, -math.inf], "2.0000 after round 1"),
    ],
)
def test_when_it_ends_and_why(patience, least_gain, metric, values, best):
    reason = EarlyStop(patience, least_gain, metric).reason(list(enumerate(values, 1)))
    if best is None:
        assert reason is None
    else:
        model, _, quantity = metric.partition("/")
        assert reason.startswith(f"{model}/local_validation/{quantity}_mean did not get better by")
        assert f" up to round {len(values)}; the last improvement was {best}" in reason


def test_what_was_never_finite_ends_too():
    reason = EarlyStop(patience=2).reason([(5, math.nan), (10, math.nan)])
    assert reason == (
        "personalized/local_validation/accuracy_mean did not get better by more than 0 in 2 "
        "evaluations up to round 10; it was never finite"
    )


def test_unknown_metrics():
    with pytest.raises(ValueError, match="Did you mean 'personalized'"):
        EarlyStop(1, metric="personal/accuracy")
    with pytest.raises(ValueError, match="Did you mean 'accuracy'"):
        EarlyStop(1, metric="global/accurracy")


@pytest.fixture(scope="module")
def dataset():
    """Five clients, of whom one has no validation examples."""
    data = [random_examples(12 + i, seed=i) for i in range(5)]
    clients = FederatedDataset.from_client_arrays([(d.x, d.y, d.x, d.y) for d in data], 3)
    parts = [np.split(rows, [6]) for rows in clients.partition.train]
    train, validation = zip(*parts, strict=True)
    validation = (*validation[:-1], np.empty(0, np.int64))
    partition = Partition(train, validation, clients.partition.test)
    return FederatedDataset(clients.x, clients.y, 3, partition)


def run(path, dataset, *, early_stop=NEVER_BETTER, rounds=9, build=build_ditto, **options):
    arguments = {
        "clients_per_round": 2,
        "seed": 3,
        "evaluate_every": 2,
        "evaluate": EvaluationOptions(generalization="last"),
        **options,
    }
    with RunDirectory(path, {}, resume=True) as directory:
        return experiment.train(
            tiny_process(build),
            MODEL,
            dataset,
            directory,
            rounds=rounds,
            early_stop=early_stop,
            **arguments,
        )


def rows_of(path):
    with open(path / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def numbers_of(path):
    """The contents of all files that are functions of the config."""
    names = ["metrics.csv", *(f"clients/{file.name}" for file in (path / "clients").iterdir())]
    return {name: (path / name).read_bytes() for name in names}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, dataset):
    path = tmp_path_factory.mktemp("run")
    return path, run(path, dataset)


def test_a_run_that_stopped_is_one_of_so_many_rounds(stopped, dataset, tmp_path):
    path, result = stopped
    assert result.final.round_num == 6  # the best one is that of round 2, then come two more
    assert "in 2 evaluations up to round 6; the last improvement was" in result.stopped
    straight = run(tmp_path / "straight", dataset, rounds=6)
    assert numbers_of(tmp_path / "straight") == numbers_of(path)
    assert_equal(straight.server_state, result.server_state)
    assert straight._replace(server_state=None, seconds=0) == result._replace(
        server_state=None, seconds=0
    )
    # Nothing but what it watches differs from a run that knows no early stop.
    without = run(tmp_path / "without", dataset, rounds=6, early_stop=None)
    assert without.stopped is None
    metrics = dict(result.final.metrics)
    assert 0 <= metrics.pop(WATCHED) <= 1
    assert metrics == without.final.metrics
    rows = rows_of(path)
    watched = [row.pop(str(WATCHED)) for row in rows]
    assert [bool(value) for value in watched] == [False, True] * 3
    assert rows == rows_of(tmp_path / "without")


@pytest.mark.parametrize("checkpoint_every", [slow(1), 4])
@pytest.mark.parametrize("moment", ["train", "release", "commit", "end"])
def test_a_killed_run_stops_at_the_same_round(
    stopped, dataset, tmp_path, monkeypatch, checkpoint_every, moment
):
    path, expected = stopped

    def killed_at(original, call):
        calls = iter(range(call - 1))

        def wrapped(*args, **kwargs):
            if next(calls, None) is None:
                raise Killed
            return original(*args, **kwargs)

        return wrapped

    target, call = {
        "train": ((CohortIterator, "update"), 6),
        "release": ((MetricsLog, "release"), 6),
        "commit": ((ClientStateStore, "commit"), 2 if checkpoint_every == 4 else 6),
        "end": ((experiment.loop, "Result"), 1),
    }[moment]
    with monkeypatch.context() as patch:
        patch.setattr(*target, killed_at(getattr(*target), call))
        with pytest.raises(Killed):
            run(tmp_path, dataset, checkpoint_every=checkpoint_every)
    result = run(tmp_path, dataset, checkpoint_every=checkpoint_every)
    assert numbers_of(tmp_path) == numbers_of(path)
    assert_equal(result.server_state, expected.server_state)
    assert (result.stopped, result.final) == (expected.stopped, expected.final)


def test_an_evaluation_of_a_last_round_alone_does_not_count(stopped, dataset, tmp_path):
    """A run that is made longer stops where one does that was to be longer from the start."""
    _, expected = stopped
    assert run(tmp_path, dataset, rounds=3).stopped is None
    assert run(tmp_path, dataset, rounds=5).stopped is None
    assert run(tmp_path, dataset, rounds=9).stopped == expected.stopped


def test_a_run_that_has_stopped_goes_on_with_more_patience(stopped, dataset, tmp_path):
    run(tmp_path / "stopped", dataset)
    patient = {"early_stop": EarlyStop(patience=9), "rounds": 8}
    result = run(tmp_path / "stopped", dataset, **patient)
    straight = run(tmp_path / "straight", dataset, **patient)
    assert (result.stopped, result.final) == (straight.stopped, straight.final)
    assert_equal(result.server_state, straight.server_state)


def killed_by_patience(path, dataset, monkeypatch, rounds):
    """Is killed after so many rounds, having more patience than the run that stops at round 6."""
    commits, commit = iter(range(rounds)), ClientStateStore.commit

    def killed(*args):
        if next(commits, None) is None:
            raise Killed
        commit(*args)

    with monkeypatch.context() as patch:
        patch.setattr(ClientStateStore, "commit", killed)
        with pytest.raises(Killed):
            run(path, dataset, early_stop=dataclasses.replace(NEVER_BETTER, patience=9))


def test_with_less_patience_it_stops_where_it_is_with_all_that_is_evaluated_then(
    stopped, dataset, tmp_path, monkeypatch
):
    path, expected = stopped
    killed_by_patience(tmp_path, dataset, monkeypatch, rounds=6)
    result = run(tmp_path, dataset)
    assert (result.stopped, result.final) == (expected.stopped, expected.final)
    assert numbers_of(tmp_path) == numbers_of(path)


def test_also_where_that_round_would_not_have_been_evaluated(dataset, tmp_path, monkeypatch):
    killed_by_patience(tmp_path, dataset, monkeypatch, rounds=7)
    result = run(tmp_path, dataset)
    assert result.final.round_num == 7 and "up to round 6" in result.stopped
    assert (tmp_path / "clients" / "round_000007.csv").exists()
    before = numbers_of(tmp_path)
    assert run(tmp_path, dataset).final == result.final
    assert numbers_of(tmp_path) == before


def test_an_early_stop_needs_evaluations(dataset, tmp_path):
    with pytest.raises(ValueError, match="evaluate_every=0: only the last round is evaluated"):
        run(tmp_path, dataset, evaluate_every=0)
    assert not (tmp_path / "checkpoint").exists()


def test_where_validation_examples_are_evaluated_anyway_it_watches_these(
    stopped, dataset, tmp_path
):
    _, expected = stopped
    options = EvaluationOptions(split="validation")
    result = run(tmp_path, dataset, evaluate=options)
    assert result.stopped == expected.stopped
    assert result.final.metrics[WATCHED] == expected.final.metrics[WATCHED]
    assert sum(str(WATCHED) == name for name in rows_of(tmp_path)[0]) == 1


def test_the_best_round_on_validation_is_reported_on_test_examples(stopped, dataset, tmp_path):
    """By what is watched, or, without an early stop, by all that validation examples are for."""
    path, result = stopped
    best = result.best_on_validation
    watched = [float(row[str(WATCHED)] or "-inf") for row in rows_of(path)]
    assert best.round_num == 1 + int(np.argmax(watched))
    options = EvaluationOptions(validation=True, late_share=0.5)
    found = run(tmp_path, dataset, rounds=6, early_stop=None, evaluate=options)
    assert found.best_on_validation.metrics[WATCHED] == best.metrics[WATCHED]
    for model in ("personalized", "global"):
        for split in ("test", "validation"):
            name = MetricName(model, f"local_{split}", "accuracy", "worst_5_percent")
            assert 0 <= found.best_on_validation.metrics[name] <= 1
    assert found.late_mean.rounds == (4, 6)
    assert found.final.mean("accuracy") == result.final.mean("accuracy")  # of test examples


def test_what_is_watched_has_to_be_there(dataset, tmp_path):
    without = Partition(
        dataset.partition.train, dataset.partition.validation[-1:] * 5, dataset.partition.test
    )
    with pytest.raises(ValueError, match="no client has validation examples. config.data.frac"):
        run(tmp_path, FederatedDataset(dataset.x, dataset.y, 3, without))
    of_global = dataclasses.replace(NEVER_BETTER, metric="global/loss")
    with pytest.raises(ValueError, match="no global model. Choose 'personalized/loss'"):
        run(tmp_path, dataset, early_stop=of_global, build=build_local)
    bare = dataclasses.replace(MODEL, example_metrics={})
    with pytest.raises(ValueError, match="has no accuracy. Choose 'personalized/loss'"):
        NEVER_BETTER.check(tiny_process(build_ditto), bare, dataset, EvaluationOptions())
    draws = (EvaluationOptions(clients=1, seed=seed) for seed in range(99))
    last = next(it for it in draws if sampled_clients(it.seed, 5, 1) == [4])
    with pytest.raises(ValueError, match="none of the clients=1 that are evaluated has valid"):
        run(tmp_path, dataset, evaluate=last)
    assert not (tmp_path / "checkpoint").exists()


def config(rounds=5, patience=1):
    return tiny_config(
        rounds=rounds,
        evaluation={"every": 1},
        data={"fractions": (0.5, 0.25, 0.25)},
        early_stop={"patience": patience, "least_gain": 1.0},
    )


def test_a_run_by_a_config_its_summary_and_its_repetition(tmp_path, capsys):
    def program(asked):
        code = experiment.run_program(
            asked, str(tmp_path / "run"), resume=True, set_context=keep_the_context
        )
        return code, capsys.readouterr()

    code, printed = program(config())
    assert code == 0
    summary = read_summary(tmp_path / "run")
    assert summary.final.round_num == 2
    assert summary.stopped.startswith(f"{WATCHED} did not get better by more than 1 in 1 eval")
    assert f"\nstopped early: {summary.stopped}\n" in printed.out
    metrics = (tmp_path / "run" / "metrics.csv").read_bytes()
    for code, repeated in (program(config()), program(config(rounds=7))):
        assert code == 0
        assert repeated.out.strip() in printed.out
    assert (tmp_path / "run" / "metrics.csv").read_bytes() == metrics
    (tmp_path / "run" / "summary.json").unlink()
    assert program(config())[0] == 0
    assert read_summary(tmp_path / "run") == summary
    code, printed = program(config(rounds=1))
    assert code == 1
    assert "has done 2 rounds already, 1 are asked for" in printed.err
    assert finished_summary(tmp_path / "run", rounds=7) == summary  # for a study


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"fractions": (0.75, 0, 0.25)}}, "config.early_stop: patience=1 needs validat"),
        (
            {"data": {"fractions": (0.75, 0, 0.25)}, "evaluation": {"validation": True}},
            "The split to evaluate on is 'validation', but no client has validation examples.",
        ),
        ({"early_stop": {"metric": "global/los"}}, "config.early_stop: Unknown quantity of the"),
        ({"evaluation": {"every": 0}}, "but config.evaluation.every=0: only the last round is"),
    ],
    ids=str,
)
def test_configs_that_cannot_be(tmp_path, capsys, changes, message):
    wrong = config()
    wrong.update(changes)
    program = experiment.run_program(wrong, str(tmp_path / "run"), set_context=keep_the_context)
    assert program == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_without_patience_nothing_is_asked_of_the_data():
    never = config(patience=0)
    never.evaluation.every = 0
    check_config(never)
    with pytest.raises(ConfigError, match=r"early_stop.patience must be .*, got -1"):
        check_config(config(patience=-1))
