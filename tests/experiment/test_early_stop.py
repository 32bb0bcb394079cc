"""Tests when an early stop ends a run; `test_resume.py` tests resumed runs."""

import math

import numpy as np
import pytest

from tests.experiment.killed import run, with_validation
from tests.marks import together
from tests.runs import tiny_config
from tff_pfl.config import run_program
from tff_pfl.evaluation import Evaluation, MetricName
from tff_pfl.experiment import EarlyStop, EvaluatedRound, RunFiles, read_summary
from tff_pfl.experiment.summary import finished_summary

WATCHED = MetricName("personalized", "local_validation", "accuracy", "mean")


def reason_of(stop, *values):
    """Returns why a run ends after evaluations, `(round, value of the metric)`."""
    return stop.reason([EvaluatedRound(n, {stop.watched: value}) for n, value in values])


@together(
    ("patience", "least_gain", "metric", "values", "best"),
    [
        (2, 0.0, "personalized/accuracy", [0.5, 0.6, 0.6, 0.5], "0.6000 after round 2"),
        (2, 0.0, "personalized/accuracy", [0.5, 0.6, 0.5, 0.7], None),
        (1, 0.0, "personalized/accuracy", [0.5, 0.5], "0.5000 after round 1"),
        (1, 0.2, "personalized/accuracy", [0.5, 0.6], "0.5000 after round 1"),
        # Small steps add up to a gain over the last improvement, which is the first evaluation.
        (3, 0.15, "personalized/accuracy", [0.5, 0.6, 0.7, 0.8], None),
        (1, 0.0, "global/loss", [2.0, 1.0, 1.5], "1.0000 after round 2"),
        (2, 0.0, "global/loss", [2.0, math.nan, -math.inf], "2.0000 after round 1"),
    ],
)
def test_reason_names_the_best_round(patience, least_gain, metric, values, best):
    reason = reason_of(EarlyStop(patience, least_gain, metric), *enumerate(values, 1))
    if best is None:
        assert reason is None
    else:
        model, _, quantity = metric.partition("/")
        assert reason.startswith(f"{model}/local_validation/{quantity}_mean did not get better by")
        assert f" up to round {len(values)}; the last improvement was {best}" in reason


def test_metric_that_was_never_finite_ends_the_run():
    reason = reason_of(EarlyStop(patience=2), (5, math.nan), (10, math.nan))
    assert reason == (
        "personalized/local_validation/accuracy_mean did not get better by more than 0 in 2 "
        "evaluations up to round 10; it was never finite"
    )


def test_evaluations_without_the_metric_do_not_count():
    assert EarlyStop(patience=1).reason([EvaluatedRound(1, {}), EvaluatedRound(2, {})]) is None


@pytest.mark.thorough
def test_result_has_the_best_round_on_validation_examples(dataset, tmp_path):
    """Covers runs that measure only the early stop's metric, and all validation metrics."""
    validated, stop = with_validation(dataset), EarlyStop(patience=9)

    def best(name, **options):
        fields = {"rounds": 4, "evaluation": Evaluation(every=1, **options)}
        early_stop = None if options.get("validation") else stop
        return run(tmp_path / name, validated, early_stop=early_stop, **fields).best_on_validation

    watched = best("watched")
    measured = RunFiles(tmp_path / "watched").metrics[str(WATCHED)]
    assert watched.round_num == 1 + int(np.argmax(measured))
    found = best("all", validation=True)
    assert found.metrics[WATCHED] == watched.metrics[WATCHED]
    for split in ("test", "validation"):
        name = MetricName("global", f"local_{split}", "accuracy", "worst_5_percent")
        assert 0 <= found.metrics[name] <= 1
    assert best("validation", split="validation").metrics[WATCHED] == watched.metrics[WATCHED]


def config(rounds=5):
    return tiny_config(
        rounds=rounds,
        evaluation={"every": 1},
        data={"fractions": (0.5, 0.25, 0.25)},
        early_stop={"patience": 1, "least_gain": 1.0},
    )


@pytest.mark.thorough
def test_program_stops_early_and_does_not_repeat_the_run(tmp_path, capsys):
    def program(config):
        code = run_program(config, str(tmp_path / "run"), resume=True)
        return code, capsys.readouterr()

    code, printed = program(config())
    assert code == 0
    summary = read_summary(tmp_path / "run")
    assert summary.final.round_num == 2
    assert summary.stopped.startswith(f"{WATCHED} did not get better by more than 1 in 1 eval")
    assert f"\nstopped early: {summary.stopped}\n" in printed.out
    assert f"{summary.title}, round 2: stopped early: {summary.stopped}\n" in printed.out
    metrics = (tmp_path / "run" / "metrics.csv").read_bytes()
    for code, repeated in (program(config()), program(config(rounds=7))):
        assert code == 0
        assert repeated.out.strip() in printed.out
    assert (tmp_path / "run" / "metrics.csv").read_bytes() == metrics
    assert finished_summary(tmp_path / "run", rounds=7) == summary  # for a study
