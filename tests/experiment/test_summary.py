"""What is printed of a run's result."""

import numpy as np

from tff_pfl.evaluation import summarize
from tff_pfl.experiment.summary import rows, table
from tff_pfl.tables import aligned, decimal

COLUMNS = {
    "client_id": np.arange(3),
    "num_examples": np.array([10, 10, 10]),
    "was_selected": np.array([1, 0, 1]),
    "personalized/local_test/accuracy": np.array([0.75, 0.0, 0.5]),
    "personalized/local_test/loss": np.array([1.0, np.nan, 2.0]),
}


def test_models_that_have_diverged_are_counted():
    metrics = summarize(COLUMNS)
    line = "  personalized/local_test: models that have diverged, of a loss not finite: 1"
    assert rows(metrics)[-1] == line
    fine = summarize(COLUMNS | {"personalized/local_test/loss": np.ones(3)})
    assert len(rows(fine)) == len(rows(metrics)) - 1


def test_the_table_has_both_rounds_and_clients_that_never_took_part():
    metrics = summarize(COLUMNS) | {"num_clients_never_selected": 1}
    evaluated = {"round_num": 4, "metrics": metrics}
    summary = {
        "title": "fedavg on digits",
        "final": evaluated,
        "best": evaluated | {"round_num": 2},
        "best_was_selected_on": "the data that it reports",
        "seconds": 3.0,
    }
    lines = table(summary).splitlines()
    assert "final: round 4" in lines
    assert "best: round 2, selected on the data that it reports" in lines
    accuracy = [line for line in lines if line.startswith("  personalized/local_test/accuracy")]
    assert len(accuracy) == 2 and "0.4167" in accuracy[0]
    assert lines[-1] == "clients that never took part, and are evaluated all the same: 1"


def test_columns_do_not_run_together():
    """However long a loss is, and the name of a column."""
    losses = {"personalized/local_test/loss": np.full(3, 98765432109.0)}
    header, line = rows(summarize(COLUMNS | losses))
    assert header.split() == ["mean", "std", "worst", "5", "%", "best", "5", "%", "loss"]
    assert line.split()[1:] == ["0.4167", "0.3118", "0.0000", "0.7500", "9.877e+10"]
    assert len(header) == len(line)
    # The same columns as those of short numbers.
    short = {"personalized/local_test/loss": np.full(3, 1.5)}
    assert len(rows(summarize(COLUMNS | short))[1]) == len(line)


def test_tables():
    assert aligned([["", "a", "a longer name"], ["x", "-123456.7891", "1"]]) == [
        "                a  a longer name",
        "  x  -123456.7891              1",
    ]
    numbers = [0.5, -999999.9, 1e6, np.nan, np.inf]
    assert list(map(decimal, numbers)) == ["0.5000", "-999999.9000", "1.000e+06", "nan", "inf"]
