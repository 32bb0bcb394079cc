"""What is printed of a run's result."""

import numpy as np

from tff_pfl.evaluation import ClientMetrics, from_text, summarize
from tff_pfl.experiment import Evaluation, Summary
from tff_pfl.experiment.results import NUM_CLIENTS_NEVER_SELECTED
from tff_pfl.experiment.summary import rows, table
from tff_pfl.tables import aligned, decimal


def measured(loss=(1.0, np.nan, 2.0)):
    """The metrics of three clients' models."""
    values = {
        "personalized/local_test/accuracy": np.array([0.75, 0.0, 0.5]),
        "personalized/local_test/loss": np.array(loss),
    }
    return summarize(ClientMetrics(np.arange(3), np.array([10, 10, 10]), from_text(values)))


def test_models_that_have_diverged_are_counted():
    metrics = measured()
    line = "  personalized/local_test: models that have diverged, of a loss not finite: 1"
    assert rows(metrics)[-1] == line
    fine = measured(loss=(1.0, 1.0, 1.0))
    assert len(rows(fine)) == len(rows(metrics)) - 1


def test_the_table_has_both_rounds_and_clients_that_never_took_part():
    metrics = measured() | {NUM_CLIENTS_NEVER_SELECTED: 1}
    summary = Summary("fedavg on digits", Evaluation(4, metrics), Evaluation(2, metrics), 3.0)
    lines = table(summary).splitlines()
    assert "final: round 4" in lines
    assert "best: round 2, selected on the data that it reports" in lines
    accuracy = [line for line in lines if line.startswith("  personalized/local_test/accuracy")]
    assert len(accuracy) == 2 and "0.4167" in accuracy[0]
    assert lines[-1] == "clients that never took part, and are evaluated all the same: 1"


def test_columns_do_not_run_together():
    """However long a loss is, and the name of a column."""
    header, line = rows(measured(loss=(98765432109.0,) * 3))
    assert header.split() == ["mean", "std", "worst", "5", "%", "best", "5", "%", "loss"]
    assert line.split()[1:] == ["0.4167", "0.3118", "0.0000", "0.7500", "9.877e+10"]
    assert len(header) == len(line)
    # The same columns as those of short numbers.
    assert len(rows(measured(loss=(1.5, 1.5, 1.5)))[1]) == len(line)


def test_tables():
    assert aligned([["", "a", "a longer name"], ["x", "-123456.7891", "1"]]) == [
        "                a  a longer name",
        "  x  -123456.7891              1",
    ]
    numbers = [0.5, -999999.9, 1e6, np.nan, np.inf]
    assert list(map(decimal, numbers)) == ["0.5000", "-999999.9000", "1.000e+06", "nan", "inf"]
