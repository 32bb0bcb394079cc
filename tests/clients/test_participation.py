"""Who is selected, and who reports."""

import dataclasses

import numpy as np
import pytest

from tff_pfl.clients import Participation, sample_cohort

ROUNDS, CLIENTS, NUMBER = 2000, 20, 6


def cohorts(rounds=ROUNDS, seed=0, **options):
    participation = Participation(**options)
    return [participation.cohort(seed, t, CLIENTS, NUMBER) for t in range(rounds)]


def assert_frequency(found, expected, number):
    """Of `number` independent draws; the bound is met but once in 10,000 seeds."""
    deviation = np.sqrt(expected * (1 - expected) / number)
    assert abs(found - expected) < 4 * deviation


def test_by_default_all_who_are_selected_report():
    for t, cohort in enumerate(cohorts(20)):
        np.testing.assert_array_equal(cohort.reporting, sample_cohort(0, t, CLIENTS, NUMBER))
        assert cohort.metrics == {
            "num_reporting": NUMBER,
            "num_available": CLIENTS,
            "num_selected": NUMBER,
            "num_dropped": 0,
            "num_late": 0,
            "num_surplus": 0,
            "duration": 1.0,
        }


@pytest.mark.parametrize(
    "options",
    [{"sampling": "poisson"}, {"dropout": 0.3}, {"spread": 0.5}, {"availability": "diurnal"}],
    ids=str,
)
def test_a_cohort_is_a_function_of_seed_and_round(options):
    first, second = cohorts(50, **options), cohorts(50, **options)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a.reporting, b.reporting)
        assert a.metrics == b.metrics
    others = cohorts(50, seed=1, **options)
    assert [c.reporting.tolist() for c in first] != [c.reporting.tolist() for c in others]


def test_what_becomes_of_clients_does_not_change_who_is_selected():
    """The same clients are asked, whatever their fate."""
    for whole, part in zip(cohorts(50), cohorts(50, dropout=0.5), strict=True):
        assert set(part.reporting) <= set(whole.reporting)


def test_poisson_sampling_draws_each_client_by_itself():
    sizes = np.array([len(cohort.reporting) for cohort in cohorts(sampling="poisson")])
    share = NUMBER / CLIENTS
    assert_frequency(sizes.sum() / (ROUNDS * CLIENTS), share, ROUNDS * CLIENTS)
    # Of a binomial distribution, whose variance has a standard error of about sqrt(2 / ROUNDS).
    assert sizes.var() == pytest.approx(CLIENTS * share * (1 - share), rel=4 * np.sqrt(2 / ROUNDS))
    counts = np.bincount(
        np.concatenate([c.reporting for c in cohorts(sampling="poisson")]), minlength=CLIENTS
    )
    assert np.all(np.abs(counts / ROUNDS - share) < 4.5 * np.sqrt(share * (1 - share) / ROUNDS))


def test_who_drops_out():
    found = cohorts(dropout=0.3)
    dropped = sum(cohort.num_dropped for cohort in found)
    assert_frequency(dropped / (NUMBER * ROUNDS), 0.3, NUMBER * ROUNDS)
    assert all(len(c.reporting) == NUMBER - c.num_dropped for c in found)


def test_who_is_late():
    """A log-normal duration of median 1 is above e^sigma with the probability of one deviation."""
    found = cohorts(spread=0.5, deadline=float(np.exp(0.5)))
    late = sum(cohort.num_late for cohort in found)
    assert_frequency(late / (NUMBER * ROUNDS), 0.158655, NUMBER * ROUNDS)
    assert all(len(c.reporting) == NUMBER - c.num_late for c in found)
    for cohort in found:
        assert cohort.duration <= np.exp(0.5)
        if cohort.num_late:
            assert cohort.duration == pytest.approx(np.exp(0.5))


def test_a_slow_device_is_slow_in_every_round():
    found = cohorts(slow_share=0.4, slow_factor=3.0, deadline=2.0)
    seen = np.unique(np.concatenate([cohort.reporting for cohort in found]))
    assert 0 < len(seen) < CLIENTS  # those with slow devices are never in time
    assert sum(c.num_late for c in found) > 0
    selected = np.concatenate([sample_cohort(0, t, CLIENTS, NUMBER) for t in range(ROUNDS)])
    assert np.isin(selected, seen).sum() == sum(len(c.reporting) for c in found)


def test_of_more_than_enough_the_first_ones_count():
    found = cohorts(200, over_selection=1.5, spread=1.0, dropout=0.2)
    assert {cohort.num_selected for cohort in found} == {9}
    for cohort in found:
        came = 9 - cohort.num_dropped
        assert len(cohort.reporting) == min(NUMBER, came)
        assert cohort.num_surplus == max(0, came - NUMBER)
    alone = cohorts(200, spread=1.0, dropout=0.2)
    assert np.mean([c.duration for c in found]) < np.mean([c.duration for c in alone])


def test_who_is_there_depends_on_the_time_of_day():
    found = cohorts(availability="diurnal", rounds_per_day=4)
    assert_frequency(np.mean([c.num_available for c in found]) / CLIENTS, 0.5, ROUNDS * CLIENTS)
    # The same quarter of the day has the same clients more often than the opposite one.
    there = np.zeros([4, CLIENTS])
    for t, cohort in enumerate(found):
        there[t % 4, cohort.reporting] += 1
    assert np.corrcoef(there[0], there[2])[0, 1] < -0.5
    assert np.corrcoef(there[1], there[3])[0, 1] < -0.5


def test_if_few_are_there_all_of_them_are_selected():
    participation = Participation(availability="diurnal")
    found = [participation.cohort(0, t, 4, 4) for t in range(50)]
    assert {cohort.num_available for cohort in found} > {0, 1}
    assert all(cohort.num_selected == cohort.num_available for cohort in found)


def test_who_ever_reported():
    participation = Participation(dropout=0.5)
    assert participation.ever(7, 0, 5, 2).tolist() == [False] * 5
    reported = {i for t in range(2) for i in participation.cohort(7, t, 5, 2).reporting.tolist()}
    assert participation.ever(7, 2, 5, 2).tolist() == [i in reported for i in range(5)]
    assert Participation().ever(7, 1, 5, 5).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampling": "poison"}, "Unknown sampling 'poison'. Did you mean 'poisson'"),
        ({"availability": "daily"}, "Unknown availability 'daily'"),
        ({"dropout": 1.0}, "dropout must be"),
        ({"over_selection": 0.5}, "over_selection must be"),
        ({"deadline": 0.0}, "deadline must be"),
        ({"spread": -1.0}, "spread must be"),
    ],
    ids=str,
)
def test_refusals(options, message):
    with pytest.raises(ValueError, match=message):
        Participation(**options)


def test_only_the_default_is_certain():
    assert Participation().is_certain
    for field in dataclasses.fields(Participation):
        other = {"sampling": "poisson", "availability": "diurnal"}.get(field.name, 0.5)
        if field.name in ("over_selection", "slow_factor", "deadline", "rounds_per_day"):
            other = 2
        assert not Participation(**{field.name: other}).is_certain
