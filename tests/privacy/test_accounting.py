"""Epsilon against `dp_accounting` and formulas by hand."""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import rdp

from tff_pfl.clients import Participation
from tff_pfl.clients.availability import Diurnal
from tff_pfl.privacy import Accountant, PrivacyLoss, default_delta

POISSON = Accountant(500, 50, 1e-3, "poisson")
FIXED = Accountant(500, 50, 1e-3, "fixed")
each_accountant = pytest.mark.parametrize("accountant", [POISSON, FIXED], ids=["poisson", "fixed"])


def test_poisson_sampling_is_what_dp_accounting_says(rounds=100):
    by_hand = rdp.RdpAccountant()
    gaussian = dp_accounting.GaussianDpEvent(1.3)
    by_hand.compose(dp_accounting.PoissonSampledDpEvent(0.1, gaussian), rounds)
    expected = by_hand.get_epsilon(1e-3)
    assert POISSON.epsilon(1.3, rounds) == pytest.approx(expected, rel=1e-12)


def test_fixed_cohorts_are_too_with_noise_of_half_the_multiplier(rounds=100):
    """With fewer orders of divergences, epsilon is larger, if at all, and hardly."""
    by_hand = rdp.RdpAccountant(
        orders=[1.5, *range(2, 40)],
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE,
    )
    gaussian = dp_accounting.GaussianDpEvent(4.0 / 2)
    by_hand.compose(dp_accounting.SampledWithoutReplacementDpEvent(500, 50, gaussian), rounds)
    assert FIXED.epsilon(4.0, rounds) == pytest.approx(by_hand.get_epsilon(1e-3), rel=0.01)


def test_if_all_take_part_it_is_the_gaussian_mechanism():
    """Of which the divergence of order a is a T / (2 s^2), s in units of what one client moves."""
    orders = np.linspace(1.01, 64, 5000)

    def by_hand(noise, rounds, delta):
        # Canonne, Kamath, Steinke 2020, Proposition 12.
        shift = np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
        return np.min(orders * rounds / (2 * noise**2) + shift)

    everybody = {"num_clients": 50, "clients_per_round": 50, "delta": 1e-3}
    for sampling, noise in (("poisson", 5.0), ("fixed", 5.0 / 2)):
        found = Accountant(**everybody, sampling=sampling).epsilon(5.0, 10)
        expected = by_hand(noise, 10, 1e-3)
        assert expected * (1 - 1e-6) <= found <= expected * 1.01


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_larger_cohorts_reveal_more_and_no_cohort_more_than_all_clients(sampling):
    """Of fixed cohorts of 90 %, the sampling's bound alone is 68.9, that of all clients 27.0."""
    found = [Accountant(100, k, 100**-1.1, sampling).epsilon(4.0, 100) for k in (10, 40, 90, 100)]
    assert np.all(np.diff(found[:3]) > 0)
    assert found[2] <= found[3]


@each_accountant
def test_extreme_noise_has_an_epsilon(accountant):
    """Divergences of 1e-12 are less than the rounding of `dp_accounting`'s terms."""
    assert accountant.epsilon(1e12, 10) == accountant.epsilon(1e4, 10) < 1e-3
    assert accountant.epsilon(1e-154, 10) == np.inf
    assert accountant.epsilon(1e-90, 10) > 1e100


@each_accountant
def test_more_rounds_reveal_more_and_more_noise_less(accountant):
    over_rounds = [accountant.epsilon(2.0, rounds) for rounds in (0, 1, 10, 100)]
    assert over_rounds[0] == 0.0
    assert np.all(np.diff(over_rounds) > 0)
    assert np.all(np.diff([accountant.epsilon(noise, 10) for noise in (0.5, 1.0, 2.0)]) < 0)
    assert accountant.epsilon(0.0, 1) == math.inf


def test_a_fixed_cohort_reveals_more():
    """As another client in the place of one moves the sum by twice as much as one client more."""
    assert FIXED.epsilon(2.0, 10) > POISSON.epsilon(2.0, 10)


@each_accountant
def test_the_noise_for_an_epsilon_is_the_least(accountant, epsilon=2.0):
    noise = accountant.noise_multiplier(epsilon, rounds=20)
    assert accountant.epsilon(noise, 20) <= epsilon < accountant.epsilon(0.999 * noise, 20)


def test_an_epsilon_that_no_noise_has():
    for epsilon, delta in ((1e19, 1e-3), (1e-5, 1e-9)):
        accountant = Accountant(500, 50, delta, "poisson")
        with pytest.raises(ValueError, match="epsilon of 10 rounds of 50 of 500 clients must be"):
            accountant.noise_multiplier(epsilon, rounds=10)


def test_a_summary_says_what_it_follows_from():
    loss = PrivacyLoss(POISSON, 1.5)
    assert loss.summary(7) == {
        "epsilon": loss.epsilon(7),
        "noise_multiplier": 1.5,
        "num_clients": 500,
        "clients_per_round": 50,
        "delta": 1e-3,
        "sampling": "poisson",
    }
    assert loss.epsilon(7) == POISSON.epsilon(1.5, 7)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"delta": 1.0}, "delta must be"),
        ({"clients_per_round": 600}, "clients_per_round=600 is more than num_clients=500"),
        ({"sampling": "poison"}, "Unknown sampling 'poison'. Did you mean 'poisson'"),
    ],
    ids=str,
)
def test_refusals(values, message):
    with pytest.raises(ValueError, match=message):
        Accountant(**{"num_clients": 500, "clients_per_round": 50, "delta": 1e-3} | values)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ((500, 50, Participation()), "Epsilon was computed for.*poisson.*but .*'fixed'.*Make"),
        ((500, 60, Participation(sampling="poisson")), "clients_per_round=60"),
        ((500, 50, Participation(over_selection=1.2)), "over_selection=1.2, but .* depend on othe"),
        ((500, 50, Participation(availability=Diurnal())), "availability=Diurnal.*Set sampling to"),
    ],
    ids=str,
)
def test_epsilon_of_other_cohorts_is_refused(run, message):
    """With the noise 1, 100 rounds of Poisson sampling have epsilon 5.6, of fixed cohorts 79."""
    POISSON.check(500, 50, Participation(sampling="poisson", dropout=(0.2,)))
    with pytest.raises(ValueError, match=f"(?s){message}"):
        POISSON.check(*run)


def test_noise_that_is_no_number_is_refused():
    """NaN would have an epsilon that reassures."""
    with pytest.raises(ValueError, match="noise_multiplier must be"):
        POISSON.epsilon(np.nan, 10)
    with pytest.raises(ValueError, match="noise_multiplier must be"):
        PrivacyLoss(POISSON, np.nan)


def test_delta_is_less_than_one_over_the_clients_by_default():
    assert default_delta(100) == pytest.approx(100**-1.1)
    with pytest.raises(ValueError, match="which is 1 for one client. Set delta"):
        default_delta(1)
