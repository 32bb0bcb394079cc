"""Tests the line of an evaluation and the figures of the progress bar."""

from tff_pfl.evaluation import MetricName
from tff_pfl.experiment.rounds import one_line, postfix


def test_one_line_has_the_means_and_their_margins():
    accuracy = MetricName("personalized", "local_test", "accuracy", "mean")
    metrics = {
        accuracy: 0.51234,
        accuracy._replace(statistic="mean_margin"): 0.01,
        accuracy._replace(statistic="std"): 0.2,
        accuracy._replace(model="global"): 0.25,
    }
    expected = "personalized/local_test/accuracy 0.5123 ± 0.0100, global/local_test/accuracy 0.2500"
    assert one_line(metrics) == expected


def test_postfix_shows_the_first_exchange_with_each_figure():
    metrics = {"first": {"loss": 1.23456}, "second": {"loss": 2.0, "accuracy": 0.5}}
    assert postfix(metrics, {"round_seconds": 0.123}, ("loss", "accuracy")) == {
        "s/round": "0.12",
        "first/loss": "1.235",
        "second/accuracy": "0.500",
    }
