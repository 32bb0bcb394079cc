"""Tests the summary of a run, written and printed."""

import math

import numpy as np
import pytest

from tests.marks import together
from tff_pfl.arguments.names import UnknownNameError
from tff_pfl.arguments.quantities import Quantities, Quantity
from tff_pfl.evaluation import ClientMetrics, MetricName, from_text, summarize
from tff_pfl.experiment import (
    EvaluatedRound,
    LateMean,
    Result,
    RunDirectory,
    RunFiles,
    read_summary,
    write_summary,
)
from tff_pfl.experiment.summary import NUM_CLIENTS_NEVER_SELECTED, best_on, rows, table


def measured(loss=(1.0, np.nan, 2.0)):
    """Returns the metrics of three clients' models."""
    values = {
        "personalized/local_test/accuracy": np.array([0.75, 0.0, 0.5]),
        "personalized/local_test/loss": np.array(loss),
    }
    return summarize(ClientMetrics(np.arange(3), np.array([10, 10, 10]), from_text(values)))


def test_diverged_models_are_counted():
    metrics = measured()
    line = "  personalized/local_test: models that diverged (loss is not finite): 1"
    assert rows(metrics)[-1] == line
    fine = measured(loss=(1.0, 1.0, 1.0))
    assert len(rows(fine)) == len(rows(metrics)) - 1


def test_table_has_rounds_and_clients_that_never_took_part():
    metrics = measured() | {NUM_CLIENTS_NEVER_SELECTED: 1}
    late = LateMean((3, 4), metrics)
    summary = Result(
        "fedavg on digits", EvaluatedRound(4, metrics), None, EvaluatedRound(2, metrics), late, 3.0
    )
    lines = table(summary).splitlines()
    assert [line for line in lines if ": round" in line] == [
        "final: round 4",
        "best on test examples, chosen on the same examples: round 2",
        "mean of the late evaluations: rounds 3 to 4",
    ]
    accuracy = [line for line in lines if line.startswith("  personalized/local_test/accuracy")]
    assert len(accuracy) == 3 and "0.4167" in accuracy[0]
    assert lines[-1] == "clients that never took part but are evaluated: 1"


def test_long_numbers_do_not_widen_columns():
    """Covers long losses and long names of columns."""
    header, line = rows(measured(loss=(98765432109.0,) * 3))
    assert header.split() == ["mean", "std", "worst", "5", "%", "best", "5", "%", "loss"]
    assert line.split()[1:] == ["0.4167", "0.3118", "0.0000", "0.7500", "9.877e+10"]
    assert len(header) == len(line)
    # Short numbers have the same columns.
    assert len(rows(measured(loss=(1.5, 1.5, 1.5)))[1]) == len(line)


def test_models_with_only_a_loss_have_a_row():
    values = {"global/local_test/loss": np.array([1.0, 2.0])}
    metrics = summarize(ClientMetrics(np.arange(2), np.array([10, 10]), from_text(values)))
    header, line = rows(metrics)
    assert line.split() == ["global/local_test", *"----", "1.5000"]
    assert len(header) == len(line)


TEST = MetricName("personalized", "local_test", "loss", "mean")
VALIDATION = TEST._replace(pool="local_validation")


def evaluations(losses, validation_losses):
    """Returns evaluations after rounds 1, 2 and so on; the best one has the lowest loss."""
    diverged = TEST._replace(quantity="num_nonfinite", statistic="")
    others = {diverged: 0, NUM_CLIENTS_NEVER_SELECTED: 1}
    return [
        EvaluatedRound(round_num, {TEST: test, VALIDATION: validation, **others})
        for round_num, (test, validation) in enumerate(
            zip(losses, validation_losses, strict=True), 1
        )
    ]


def test_best_on_validation_is_not_chosen_on_test_examples():
    of_run = evaluations([3.0, 1.0, 2.0, np.nan], [2.0, 3.0, 1.0, np.nan])
    assert best_on("validation", of_run).round_num == 3
    assert best_on("test", of_run).round_num == 2
    assert best_on("train", of_run) is None
    assert best_on("test", of_run[3:]).round_num == 4  # only a diverged evaluation


def test_best_is_by_the_first_metric_of_the_task_in_its_stated_direction():
    measured = [{"num_tokens": 9, "error": error, "loss": 1 / error} for error in (1.0, 3.0, 2.0)]
    of_run = [
        EvaluatedRound(n, {TEST._replace(quantity=name): it for name, it in metrics.items()})
        for n, metrics in enumerate(measured, 1)
    ]
    assert best_on("test", of_run).round_num == 1
    assert best_on("test", of_run, Quantities({"error": Quantity("error", 1)})).round_num == 2


def test_quality_prefers_accuracy_and_personalized_models():
    (evaluated,) = evaluations([1.0], [1.0])
    accuracy = TEST._replace(quantity="accuracy")
    of_global = accuracy._replace(model="global")
    assert evaluated.quality("test") == -1.0
    both = EvaluatedRound(1, {of_global: 0.25, **evaluated.metrics})
    assert both.quality("test") == -1.0
    assert EvaluatedRound(1, {**both.metrics, accuracy: 0.5}).quality("test") == 0.5
    assert EvaluatedRound(1, {of_global: 0.25}).quality("test") == 0.25


@together(
    ("number", "share", "rounds"),
    [
        (30, 0.1, (28, 29, 30)),
        (31, 0.1, (28, 29, 30, 31)),
        (2, 0.0, (2,)),
        (2, 1.0, (1, 2)),
    ],
)
def test_late_mean_covers_the_last_evaluations(number, share, rounds):
    losses = [float(round_num) for round_num in range(1, number + 1)]
    of_run = evaluations(losses, losses)
    del of_run[0].metrics[VALIDATION]
    late = LateMean.of(of_run, share)
    assert late.rounds == rounds
    assert late.metrics[TEST] == np.mean(rounds)
    assert NUM_CLIENTS_NEVER_SELECTED not in late.metrics
    assert (VALIDATION in late.metrics) == (1 not in rounds)


def test_summary_is_read_as_it_was_written(tmp_path):
    first, last = evaluations([1.0, 2.0], [2.0, 1.0])
    late = LateMean.of([first, last], 1.0)
    directory = RunDirectory(tmp_path, {})
    directory.create()
    written = Result("title", last, last, first, late, 1.5)
    write_summary(directory, written._replace(server_state=np.ones(3)))
    assert read_summary(tmp_path) == written
    assert last.mean("loss", "global") is None
    with pytest.raises(UnknownNameError, match="Unknown quantity 'acc'"):
        last.mean("acc")


def test_diverged_run_has_files_that_can_be_read(tmp_path):
    (diverged,) = evaluations([np.nan], [np.inf])
    directory = RunDirectory(tmp_path, {"algorithm": {"norm_order": math.inf}})
    directory.create()
    privacy = {"epsilon": math.inf, "noise_multiplier": 0.1, "num_clients": 3}
    privacy |= {"clients_per_round": 1, "delta": 1e-3, "sampling": "fixed"}
    late = LateMean.of([diverged], 1.0)
    write_summary(directory, Result("title", diverged, None, None, late, 1.5, privacy=privacy))
    assert RunFiles(tmp_path).settings == {"algorithm": {"norm_order": math.inf}}
    assert RunDirectory(tmp_path, directory.settings, resume=True).changes == []
    found = read_summary(tmp_path)
    assert math.isnan(found.final.mean("loss"))
    assert found.privacy == privacy
    assert "epsilon inf, delta 0.001" in table(found)
