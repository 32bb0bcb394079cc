"""Tests the gains of clients over a baseline."""

import numpy as np
import pytest

from tff_pfl.evaluation import (
    ClientMetrics,
    MetricName,
    from_text,
    gains,
    gains_of_clients,
    to_text,
)

NUM_EXAMPLES = np.array([4, 4, 0, 2])


def measured(**values):
    names = {name.replace("__", "/"): np.array(column) for name, column in values.items()}
    return ClientMetrics(np.arange(4), NUM_EXAMPLES, from_text(names))


BASELINE = measured(
    personalized__local_test__accuracy=[0.5, 0.5, np.nan, 0.5],
    personalized__local_test__loss=[1.0, 1.0, np.nan, 1.0],
    global__local_test__accuracy=[0.0, 0.0, np.nan, 0.0],
)
CLIENTS = measured(
    personalized__local_test__accuracy=[0.75, 0.25, np.nan, 0.5],
    personalized__local_test__loss=[0.5, 1.25, np.nan, np.inf],
    global__local_test__accuracy=[1.0, 1.0, np.nan, 0.25],
    personalized__generalization_test__accuracy=[0.5, 0.5, 0.5, 0.5],
)


def test_gains_compare_all_models_with_the_baselines_personalized():
    found = to_text(gains_of_clients(CLIENTS, BASELINE))
    expected = {
        "personalized/local_test/accuracy": [0.25, -0.25, np.nan, 0.0],
        "personalized/local_test/loss": [0.5, -0.25, np.nan, -np.inf],  # Less is better.
        "global/local_test/accuracy": [0.5, 0.5, np.nan, -0.25],
    }
    assert list(found) == list(expected)
    for name, gain in expected.items():
        np.testing.assert_array_equal(found[name], gain)


def test_gains_are_summarised_by_group():
    was_selected = np.array([True, False, False, True])
    found = {name: to_text(group) for name, group in gains(CLIENTS, BASELINE, was_selected).items()}
    own = "personalized/local_test/accuracy"
    # A client with a gain of 0 is not hurt; client 2 has no examples.
    assert found["all"][own] == (3, 0.0, pytest.approx(np.std([0.25, -0.25, 0])), 1 / 3)
    assert found["participants"][own] == (2, 0.125, 0.125, 0.0)
    assert found["never_selected"][own] == (1, -0.25, 0.0, 1.0)
    loss = found["participants"]["personalized/local_test/loss"]
    assert (loss.mean, loss.share_hurt) == (-np.inf, 0.5)


def test_diverged_clients_count_as_hurt():
    name = MetricName("personalized", "local_test", "loss")
    losses = {
        "run": [np.nan, np.inf, 0.5, 0.4, 0.1, np.nan],
        "baseline": [0.3, 0.3, 0.6, 0.3, np.nan, np.nan],
    }
    run, baseline = (
        ClientMetrics(np.arange(6), np.ones(6, np.int32), {name: np.array(values)})
        for values in losses.values()
    )
    assert gains(run, baseline, np.ones(6, bool))["all"][name].share_hurt == 3 / 6
    np.testing.assert_allclose(
        gains_of_clients(run, baseline)[name], [-np.inf, -np.inf, 0.1, -0.1, np.inf, np.nan]
    )
