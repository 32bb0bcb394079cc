"""Tests statistics over clients."""

import numpy as np
import pytest

from tests.marks import together
from tff_pfl.arguments.quantities import Quantities, Quantity
from tff_pfl.evaluation import (
    ClientMetrics,
    Distribution,
    MetricName,
    distributions,
    from_text,
    groups_of,
    mean_margin,
    over_clients,
    summarize,
    to_text,
)


def test_over_clients_computes_mean_spread_and_tails():
    values = np.arange(100)[::-1] / 100
    assert over_clients(values) == {
        "mean": pytest.approx(0.495),
        "std": pytest.approx(np.std(values)),  # The population standard deviation.
        "worst_5_percent": pytest.approx(np.mean([0, 0.01, 0.02, 0.03, 0.04])),
        "best_5_percent": pytest.approx(np.mean([0.95, 0.96, 0.97, 0.98, 0.99])),
    }


@together(("num_clients", "tail"), [(1, 1), (31, 2), (100, 5)])
def test_tails_are_five_percent_but_at_least_one_client(num_clients, tail):
    values = np.arange(num_clients, dtype=float)
    assert over_clients(values)["worst_5_percent"] == values[:tail].mean()
    assert over_clients(values)["best_5_percent"] == values[-tail:].mean()
    losses = over_clients(values, direction=-1)
    assert losses["worst_5_percent"] == values[-tail:].mean()
    assert losses["best_5_percent"] == values[:tail].mean()


def test_over_clients_takes_nan_for_the_worst():
    values = np.array([0.1, np.nan, 0.3])
    for better, best in ((1, 0.3), (-1, 0.1)):
        found = over_clients(values, better)
        assert np.isnan(found["worst_5_percent"]) and found["best_5_percent"] == best


def test_deciles_beside_infinite_values_are_finite():
    ones = np.ones(11, np.int32)
    found = Distribution.of(np.array([*range(1, 11), np.inf]), ones).deciles
    assert found == tuple(range(2, 11))
    found = Distribution.of(np.array([*range(1, 10), np.inf, np.inf]), ones).deciles
    assert found == (*range(2, 10), np.inf)
    values = np.random.default_rng(0).normal(size=37)
    found = Distribution.of(values, np.ones(37, np.int32)).deciles
    np.testing.assert_allclose(found, np.quantile(values, np.arange(1, 10) / 10), rtol=1e-12)


def test_summarize_names_model_data_and_statistic():
    """Leaves out a client without examples, and adds margins if clients are a sample."""
    loss, accuracy = np.array([1.0, 2.0, np.nan]), np.array([0.5, 1.0, np.nan])
    values = {"global/local_test/loss": loss, "global/local_test/accuracy": accuracy}
    clients = ClientMetrics(np.array([2, 5, 7]), np.array([3, 4, 0]), from_text(values))
    expected = {
        "global/local_test/loss_mean": 1.5,
        "global/local_test/num_nonfinite": 0,
        "global/local_test/accuracy_mean": 0.75,
        "global/local_test/accuracy_std": 0.25,
        "global/local_test/accuracy_worst_5_percent": 0.5,
        "global/local_test/accuracy_best_5_percent": 1.0,
    }
    assert to_text(summarize(clients)) == expected
    assert to_text(summarize(clients._replace(population=6))) == expected | {
        "global/local_test/loss_mean_margin": mean_margin(loss[:2], 6),
        "global/local_test/accuracy_mean_margin": mean_margin(accuracy[:2], 6),
    }


def test_distribution_computes_all_statistics():
    values = np.arange(100)[::-1] / 100
    num_examples = np.arange(1, 101)
    found = Distribution.of(values, num_examples)
    assert found == Distribution(
        num_clients=100,
        num_examples=5050,
        mean=pytest.approx(0.495),
        weighted_mean=pytest.approx((values * num_examples).sum() / 5050),
        std=pytest.approx(np.std(values)),
        lowest_5_percent=pytest.approx(np.mean([0, 0.01, 0.02, 0.03, 0.04])),
        lowest_10_percent=pytest.approx(0.045),
        top_10_percent=pytest.approx(0.945),
        top_5_percent=pytest.approx(0.97),
        # The deciles are at the positions 9.9, 19.8 and so on, from 0.
        deciles=tuple(pytest.approx(0.099 * tenths) for tenths in range(1, 10)),
    )
    assert found.deciles[4] == pytest.approx(np.median(values))


def test_distribution_accepts_one_client_and_infinite_values():
    one = Distribution.of(np.array([0.25]), np.array([8]))
    assert {*one[2:4], *one[5:-1], *one.deciles} == {0.25}
    assert one.std == 0
    diverged = Distribution.of(np.array([1.0, np.inf, 2.0]), np.array([1, 1, 1]))
    assert diverged.mean == diverged.weighted_mean == diverged.top_5_percent == np.inf
    assert diverged.lowest_10_percent == 1.0


def test_distributions_are_by_group():
    accuracy = MetricName("personalized", "local_test", "accuracy")
    values = {accuracy: np.array([0.2, 0.4, np.nan, 0.9, 0.5])}
    clients = ClientMetrics(np.arange(5), np.array([1, 3, 0, 2, 2]), values)
    was_selected = np.array([True, True, False, False, True])
    found = distributions(clients, was_selected)
    means = {group: all_quantities[accuracy].mean for group, all_quantities in found.items()}
    assert means == {
        "all": pytest.approx(0.5),
        "participants": pytest.approx(1.1 / 3),
        "never_selected": pytest.approx(0.9),
    }
    assert found["participants"][accuracy].weighted_mean == pytest.approx((0.2 + 1.2 + 1.0) / 6)
    # Client 2 has no examples, so the group is empty if all others took part.
    was_selected[3] = True
    assert list(groups_of(clients, was_selected)) == ["all", "participants"]


def test_mean_margin_matches_the_formula():
    # 2.776445 is from tables for 4 degrees of freedom; the sample's variance is 0.025.
    values = np.array([0.1, 0.2, 0.3, 0.4, 0.5])
    expected = 2.776445 * np.sqrt(0.025 * (1 - 5 / 20) / 5)
    assert mean_margin(values, 20) == pytest.approx(expected)
    assert mean_margin(values, 5) == 0.0  # The sample is the population.
    assert np.isnan([mean_margin(values[:1], 20), mean_margin(values[:0], 20)]).all()
    assert np.isnan(mean_margin(np.array([1.0, np.inf, 2.0]), 20))
    # Of 10 drawn clients, 5 have a value; if all 20 are drawn, these are all that have one.
    expected = expected * np.sqrt((1 - 10 / 20) / (1 - 5 / 20))
    assert mean_margin(values, 20, num_drawn=10) == pytest.approx(expected)
    assert mean_margin(values, 20, num_drawn=20) == 0.0


def test_intervals_contain_the_population_mean_in_95_percent(number=400):
    """Uses skewed accuracies.

    Without the finite population correction, the intervals would contain it in 99.4 %.
    """
    rng = np.random.default_rng(number)
    accuracies = rng.beta(4, 1, size=800)
    samples = [rng.choice(accuracies, number, replace=False) for _ in range(1000)]
    margins = np.array([mean_margin(sample, 800) for sample in samples])
    errors = np.abs(np.mean(samples, axis=1) - accuracies.mean())
    assert 0.93 < np.mean(errors <= margins) < 0.97


def test_undefined_values_are_left_out_and_those_of_diverged_models_are_not():
    """A client without examples, one without weight, one that diverged, one of one class."""
    loss, auc = (MetricName("personalized", "local_test", it) for it in ("loss", "auc"))
    clients = ClientMetrics(
        np.arange(5),
        np.array([0, 3, 3, 3, 3]),
        {
            loss: np.array([np.nan, np.nan, np.nan, 1.0, 2.0]),
            auc: np.array([np.nan, np.nan, 0.5, np.nan, 1.0]),
        },
        population=4,
        quantities=Quantities({"auc": Quantity("auc", 1, is_partial=True)}),
        undefined={
            loss: np.array([True, True, False, False, False]),
            auc: np.array([True, True, False, True, False]),
        },
    )
    found = summarize(clients)
    assert found[loss._replace(quantity="num_nonfinite")] == 1
    assert np.isnan(found[loss._replace(statistic="mean")])
    assert found[auc._replace(statistic="mean")] == 0.75
    assert found[auc._replace(statistic="mean_margin")] == 0.0
    assert found[auc._replace(quantity="num_undefined_auc")] == 2
    groups = distributions(clients, np.ones(5, bool))
    assert groups["all"][auc].num_clients == 2 and groups["all"][loss].num_clients == 3
    assert clients.columns(undefined=None)[str(auc)].tolist() == [None, None, 0.5, None, 1.0]
