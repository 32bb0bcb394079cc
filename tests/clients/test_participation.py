"""Tests the clients that are selected in a round, and the clients that report."""

import dataclasses
import math

import numpy as np
import pytest

from tests.marks import together
from tff_pfl.clients.availability import Always, ByClass, Diurnal
from tff_pfl.clients.participation import EVERYBODY_REPORTS, Participation
from tff_pfl.clients.selectors import BySize

NUM_CLIENTS, COHORT_SIZE, ROUNDS = 40, 10, 400
SLOW = Participation(median_seconds=(10.0,), client_spread=0.5, round_spread=0.5)


def rounds_of(participation, rounds=ROUNDS, seed=5):
    return [
        participation.participants(seed, number, NUM_CLIENTS, COHORT_SIZE)
        for number in range(rounds)
    ]


def assert_share(hits, trials, probability):
    """Asserts that a binomial count is within 4.5 standard deviations; seeds prevent flakiness."""
    deviation = math.sqrt(trials * probability * (1 - probability))
    assert abs(hits - trials * probability) <= 4.5 * deviation


def test_cohort_equals_the_golden_value():
    # np.sort(np.random.default_rng([1, 0, 0xC0403]).choice(10, 3, replace=False))
    assert EVERYBODY_REPORTS.participants(1, 0, 10, 3).reported.tolist() == [1, 2, 9]


def test_all_selected_clients_report_by_default():
    for number, found in enumerate(rounds_of(EVERYBODY_REPORTS, 20)):
        drawn = np.random.default_rng([5, number, 0xC0403]).choice(40, 10, replace=False)
        expected = np.sort(drawn).astype(np.int32)
        assert found.reported.tobytes() == found.selected.tobytes() == expected.tobytes()
        assert found.seconds is None
        assert found.metrics() == {
            "participation/num_available": NUM_CLIENTS,
            "participation/num_selected": COHORT_SIZE,
            "participation/num_dropped": 0,
            "participation/num_late": 0,
            "participation/num_surplus": 0,
            "participation/num_reported": COHORT_SIZE,
        }


@together("seed", range(3))
def test_every_selected_client_has_one_fate(seed):
    """Draws all options at random."""
    rng = np.random.default_rng(seed)
    poisson = rng.random() < 0.3
    participation = Participation(
        sampling="poisson" if poisson else "fixed",
        over_selection=1.0 if poisson else rng.uniform(1, 4),
        availability=[
            Always(),
            ByClass(probabilities=(0.2, 0.9)),
            Diurnal(rounds_per_day=7, least=0.1),
        ][rng.integers(3)],
        class_shares=(1, 3),
        dropout=tuple(rng.random(2)),
        median_seconds=(5.0, 20.0),
        client_spread=rng.random(),
        round_spread=rng.random(),
        deadline=None if rng.random() < 0.3 else rng.uniform(1, 40),
    )
    for number, found in enumerate(rounds_of(participation, 10, seed)):
        again = participation.participants(seed, number, NUM_CLIENTS, COHORT_SIZE)
        np.testing.assert_equal(again, found)
        for ids in found[:-1]:
            assert ids.dtype == np.int32
            assert ids.tolist() == sorted(set(ids.tolist()))
        fates = (found.dropped, found.late, found.surplus, found.reported)
        assert sorted(np.concatenate(fates).tolist()) == found.selected.tolist()
        assert set(found.selected) <= set(found.available)
        assert 0 <= found.seconds <= (participation.deadline or math.inf)
        if not poisson:
            assert len(found.reported) <= COHORT_SIZE
            assert len(found.reported) == COHORT_SIZE or not len(found.surplus)


class TestSampling:
    def test_poisson_selects_each_client_with_its_probability(self):
        poisson = Participation(sampling="poisson")
        probability = COHORT_SIZE / NUM_CLIENTS
        cohorts = rounds_of(poisson)
        taken = np.array([np.isin(range(NUM_CLIENTS), found.reported) for found in cohorts])
        for client in taken.T:
            assert_share(client.sum(), ROUNDS, probability)
        # Clients are independent, so the size of a cohort has the variance of a binomial.
        sizes = taken.sum(axis=1)
        assert np.var(sizes) == pytest.approx(NUM_CLIENTS * 0.25 * 0.75, rel=0.25)
        both = np.mean(taken[:, 0] & taken[:, 1])
        assert_share(both * ROUNDS, ROUNDS, probability**2)

    def test_over_selection_keeps_the_first_that_report(self):
        over = dataclasses.replace(SLOW, over_selection=1.5)
        for number, found in enumerate(rounds_of(over, 30)):
            assert len(found.selected) == 15
            assert len(found.reported) == COHORT_SIZE
            # With the time of the slowest as deadline, the same clients report in time.
            deadline = dataclasses.replace(over, deadline=found.seconds)
            in_time = deadline.participants(5, number, NUM_CLIENTS, COHORT_SIZE)
            np.testing.assert_array_equal(in_time.reported, found.reported)
            np.testing.assert_array_equal(in_time.late, found.surplus)

    def test_over_selection_ignores_rounding_errors(self):
        assert len(Participation(over_selection=1.1).participants(0, 0, 60, 50).selected) == 55


def test_availability_selection_and_dropout_are_independent():
    participation = Participation(
        sampling="poisson", availability=ByClass(probabilities=(0.5,)), dropout=(0.5,)
    )
    found, trials = rounds_of(participation), ROUNDS * NUM_CLIENTS
    assert_share(sum(len(clients.available) for clients in found), trials, 0.5)
    assert_share(sum(len(clients.selected) for clients in found), trials, 0.25 * 0.5)
    assert_share(sum(len(clients.reported) for clients in found), trials, 0.25 * 0.5 * 0.5)


@dataclasses.dataclass(frozen=True)
class FromRound:
    """An availability of 0.5 before a round, and of `value` from that round on."""

    value: float
    from_round: int

    def __call__(self, round_num, devices):
        value = self.value if round_num >= self.from_round else 0.5
        return np.full(len(devices.classes), value)


def test_few_available_clients_are_all_selected_and_awaited():
    """Includes a round in which no client is available."""
    rare = Participation(
        availability=ByClass(probabilities=(0.1,)), median_seconds=(3.0,), deadline=5.0
    )
    few = [found for found in rounds_of(rare, 200) if len(found.available) < COHORT_SIZE]
    for found in few:
        np.testing.assert_array_equal(found.selected, found.available)
        np.testing.assert_array_equal(found.reported, found.available)
        assert found.seconds == (3.0 if len(found.available) else 0.0)
    assert {0, 1, 2} < {len(found.available) for found in few}


def test_availability_and_dropout_depend_on_the_class():
    participation = Participation(
        class_shares=(1, 1), availability=ByClass(probabilities=(0.2, 0.8)), dropout=(0.1, 0.6)
    )
    classes = participation.devices(5, NUM_CLIENTS).classes
    found = rounds_of(participation)
    available, selected, dropped = (
        sum(np.bincount(classes[getattr(one, name)], minlength=2) for one in found)
        for name in ("available", "selected", "dropped")
    )
    for device_class, (probability, dropout) in enumerate([(0.2, 0.1), (0.8, 0.6)]):
        trials = ROUNDS * np.sum(classes == device_class)
        assert_share(available[device_class], trials, probability)
        assert_share(dropped[device_class], selected[device_class], dropout)


class TestAvailability:
    @pytest.mark.parametrize("value", [-0.1, math.nan])
    def test_availability_must_return_probabilities(self, value):
        with pytest.raises(ValueError, match=f"returns {value} in round 0, but must return a prob"):
            Participation(availability=FromRound(value, 0))
        participation = Participation(availability=FromRound(value, 3))
        participation.participants(0, 2, 10, 5)
        with pytest.raises(ValueError, match=rf"FromRound\(.*\) returns {value} in round 3"):
            participation.participants(0, 3, 10, 5)

    def test_diurnal_has_its_best_and_worst_time(self):
        diurnal = Diurnal(rounds_per_day=24, least=0.1, most=0.9)
        devices = Participation().devices(5, NUM_CLIENTS)._replace(phases=np.array([0.0, 0.25]))
        assert diurnal(0, devices) == pytest.approx([0.9, 0.5])
        assert diurnal(6, devices) == pytest.approx([0.5, 0.9])
        assert diurnal(12, devices) == pytest.approx([0.1, 0.5])
        assert diurnal(24, devices) == pytest.approx(diurnal(0, devices))


class TestDevices:
    def test_classes_have_their_shares(self):
        classes = Participation(class_shares=(3, 0, 1)).devices(0, 4000).classes
        assert_share(np.sum(classes == 0), 4000, 0.75)
        assert not np.any(classes == 1)

    def test_device_does_not_depend_on_the_number_of_clients(self):
        participation = Participation(class_shares=(1, 1))
        few, many = participation.devices(3, 10), participation.devices(3, 500)
        np.testing.assert_array_equal(few.classes, many.classes[:10])
        np.testing.assert_array_equal(few.phases, many.phases[:10])
        assert len(set(few.phases)) == 10


class TestDropoutAndDeadline:
    def test_higher_dropout_and_earlier_deadline_lose_the_same_and_further_clients(self):
        for losing in ("dropout", "deadline"):
            less, more = {"dropout": ((0.2,), (0.4,)), "deadline": (20.0, 8.0)}[losing]
            lost = [
                [set(f.selected) - set(f.reported) for f in rounds_of(p, 30)]
                for p in (dataclasses.replace(SLOW, **{losing: value}) for value in (less, more))
            ]
            assert all(few <= many for few, many in zip(*lost, strict=True))
            assert sum(map(len, lost[0])) < sum(map(len, lost[1]))

    def test_seconds_are_log_normal(self):
        """P(seconds > 10 e) = P(z > 1) = 0.1587 for a spread of 1."""
        late = Participation(median_seconds=(10.0,), round_spread=1.0, deadline=10.0 * math.e)
        hits = sum(len(found.late) for found in rounds_of(late))
        assert_share(hits, ROUNDS * COHORT_SIZE, 0.1587)

    def test_slow_clients_stay_slow(self):
        slow = Participation(median_seconds=(10.0,), client_spread=1.0, deadline=10.0)
        late = [set(found.late) for found in rounds_of(slow, 40)]
        in_time = [set(found.reported) for found in rounds_of(slow, 40)]
        assert not set.union(*late) & set.union(*in_time)

    def test_round_lasts_until_the_last_report_or_the_deadline(self):
        exact = Participation(class_shares=(1, 1), median_seconds=(3.0, 7.0))
        assert {found.seconds for found in rounds_of(exact, 20)} == {7.0}
        late = dataclasses.replace(exact, deadline=5.0)  # waits until then for slow clients
        assert {found.seconds for found in rounds_of(late, 20)} == {5.0}
        over = dataclasses.replace(late, over_selection=4.0)  # selects enough fast clients
        assert {found.seconds for found in rounds_of(over, 20)} == {3.0}
        assert rounds_of(late, 1)[0].metrics()["participation/seconds"] == 5.0


@together(
    ("options", "message"),
    [
        ({"sampling": "poison"}, "sampling 'poison'"),
        (
            {"sampling": "poisson", "over_selection": 1.5},
            "over_selection=1.5 has no meaning with sampling='poisson', .* Set over_selection=1 or",
        ),
        ({"dropout": (0.1, 0.2)}, "dropout=.* has 2 numbers, but class_shares has 1 device class"),
        (
            {"availability": ByClass(probabilities=(0.5, 0.5))},
            "probabilities=.* has 2 numbers, but class_shares has 1",
        ),
        ({"availability": lambda round_num, devices: 1}, "an instance of a frozen dataclass"),
        ({"class_shares": (0.0,)}, "class_shares=.* must not all be 0"),
        ({"selector": BySize}, "a frozen dataclass that extends"),
        ({"selector": BySize(), "sampling": "poisson"}, r"BySize\(\) has no meaning with samp"),
    ],
)
def test_contradictory_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Participation(**options)
    with pytest.raises(ValueError, match="least=0.9 must not be above most=0.1"):
        Diurnal(least=0.9, most=0.1)


def test_numbers_of_classes_may_be_lists():
    values = {"class_shares": [1.0, 3.0], "dropout": np.array([0.5, 0.1]), "median_seconds": [2.0]}
    found = Participation(**values)
    assert found == Participation(**{name: tuple(numbers) for name, numbers in values.items()})
    assert len(found.participants(0, 1, 20, 5).selected) == 5


def test_spread_and_deadline_have_no_effect_without_times():
    idle = Participation(deadline=5.0, client_spread=1.0)
    for number in range(3):
        found, expected = (p.participants(0, number, 10, 4) for p in (idle, Participation()))
        np.testing.assert_array_equal(found.reported, expected.reported)
        assert found.seconds is None


@together(
    ("size", "over_selection", "message"),
    [
        (0, 1.0, "The size of a cohort must be a whole number of at least 1, got 0"),
        (9, 1.0, "cohort of 9 clients was asked for, but the federation has only 8"),
        (6, 1.5, "over_selection=1.5 asks for 9 clients, but the federation has only 8"),
    ],
)
def test_check_refuses_cohorts_larger_than_the_federation(size, over_selection, message):
    participation = Participation(over_selection=over_selection)
    participation.check(8, np.int32(5))
    with pytest.raises(ValueError, match=message):
        participation.check(8, size)


@together(
    ("options", "everybody_reports", "message"),
    [
        ({"over_selection": 1.2}, False, "over_selection=1.2, but .* must not depend on others"),
        ({"selector": BySize()}, False, r"BySize\(\), but with privacy .* same probability"),
        ({"availability": Diurnal()}, False, "availability=Diurnal.*Set sampling to 'poisson'"),
        ({"sampling": "poisson"}, True, "sampling='poisson', but .* has to report.* to 'fixed'"),
        ({"dropout": (0.1,)}, True, r"dropout=.* has to report.* to \(0.0,\)"),
        ({"median_seconds": (1.0,), "deadline": 2.0}, True, "deadline=2.0, but .* to None"),
    ],
)
def test_cohorts_that_privacy_does_not_account_for_are_refused(options, everybody_reports, message):
    with pytest.raises(ValueError, match=message):
        Participation(**options).check_private(everybody_reports=everybody_reports)


def test_cohorts_of_known_probability_are_private():
    Participation(sampling="poisson", dropout=(0.2,), availability=Diurnal()).check_private()
    Participation().check_private(everybody_reports=True)
