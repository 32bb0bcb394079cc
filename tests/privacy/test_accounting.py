"""Tests epsilon against `dp_accounting` and against formulas."""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import rdp

from tests.marks import slow, together
from tff_pfl.privacy import Accountant, PrivacyLoss, default_delta

POISSON = Accountant(500, 50, 1e-3, "poisson")
FIXED = Accountant(500, 50, 1e-3, "fixed")
each_accountant = pytest.mark.parametrize("accountant", [POISSON, FIXED], ids=["poisson", "fixed"])


def test_epsilon_of_poisson_sampling_equals_dp_accounting(rounds=100):
    by_hand = rdp.RdpAccountant()
    gaussian = dp_accounting.GaussianDpEvent(1.3)
    by_hand.compose(dp_accounting.PoissonSampledDpEvent(0.1, gaussian), rounds)
    expected = by_hand.get_epsilon(1e-3)
    assert POISSON.epsilon(1.3, rounds) == pytest.approx(expected, rel=1e-12)


def test_epsilon_of_fixed_cohorts_equals_dp_accounting_with_half_the_noise(rounds=100):
    """Allows a slightly larger epsilon, from fewer orders of divergences."""
    by_hand = rdp.RdpAccountant(
        orders=[1.5, *range(2, 40)],
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE,
    )
    gaussian = dp_accounting.GaussianDpEvent(4.0 / 2)
    by_hand.compose(dp_accounting.SampledWithoutReplacementDpEvent(500, 50, gaussian), rounds)
    assert FIXED.epsilon(4.0, rounds) == pytest.approx(by_hand.get_epsilon(1e-3), rel=0.01)


def test_epsilon_of_all_clients_equals_the_gaussian_mechanism():
    """Uses the divergence of order a, a T / (2 s^2), with s in units of one client's influence."""
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
def test_larger_cohorts_reveal_more_but_not_more_than_all_clients(sampling):
    """Includes fixed cohorts of 90 %, whose own bound is 68.9, but 27.0 for all clients."""
    found = [Accountant(100, k, 100**-1.1, sampling).epsilon(4.0, 100) for k in (10, 40, 90, 100)]
    assert np.all(np.diff(found[:3]) > 0)
    assert found[2] <= found[3]


@each_accountant
def test_epsilon_is_defined_for_extreme_noise(accountant):
    """Uses divergences of 1e-12, which are below the rounding errors of `dp_accounting`."""
    assert accountant.epsilon(1e12, 10) == accountant.epsilon(1e4, 10) < 1e-3
    assert accountant.epsilon(1e-154, 10) == np.inf
    assert accountant.epsilon(1e-90, 10) > 1e100


@pytest.mark.thorough
@each_accountant
def test_epsilon_rises_with_rounds_and_falls_with_noise(accountant):
    over_rounds = [accountant.epsilon(2.0, rounds) for rounds in (0, 1, 10, 100)]
    assert over_rounds[0] == 0.0
    assert np.all(np.diff(over_rounds) > 0)
    assert np.all(np.diff([accountant.epsilon(noise, 10) for noise in (0.5, 1.0, 2.0)]) < 0)
    assert accountant.epsilon(0.0, 1) == math.inf


@pytest.mark.thorough
@pytest.mark.parametrize("accountant", [FIXED, slow(POISSON)], ids=["fixed", "poisson"])
def test_noise_multiplier_is_the_least_for_an_epsilon(accountant, epsilon=2.0):
    noise = accountant.noise_multiplier(epsilon, rounds=20)
    assert accountant.epsilon(noise, 20) <= epsilon < accountant.epsilon(0.999 * noise, 20)


def test_noise_multiplier_refuses_unreachable_epsilons():
    for epsilon, delta in ((1e19, 1e-3), (1e-5, 1e-9)):
        accountant = Accountant(500, 50, delta, "poisson")
        with pytest.raises(ValueError, match="epsilon of 10 rounds of 50 of 500 clients must be"):
            accountant.noise_multiplier(epsilon, rounds=10)


def test_summary_has_epsilon_and_its_parameters():
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


@together(
    ("values", "message"),
    [
        ({"clients_per_round": 600}, "clients_per_round=600 is more than num_clients=500"),
        ({"sampling": "poison"}, "sampling 'poison'"),
    ],
)
def test_accountant_refuses_invalid_values(values, message):
    with pytest.raises(ValueError, match=message):
        Accountant(**{"num_clients": 500, "clients_per_round": 50, "delta": 1e-3} | values)


@together(
    ("run", "message"),
    [
        ((500, 50, "fixed"), "Epsilon was computed for.*poisson.*but .*'fixed'.*Compute"),
        ((500, 60, "poisson"), "clients_per_round=60"),
    ],
)
def test_check_refuses_other_cohorts(run, message):
    """Prevents large errors: with noise 1, epsilon of 100 rounds is 5.6 (Poisson) or 79 (fixed)."""
    POISSON.check(500, 50, "poisson")
    with pytest.raises(ValueError, match=f"(?s){message}"):
        POISSON.check(*run)


def test_nan_noise_is_refused():
    """Prevents a finite epsilon for NaN."""
    with pytest.raises(ValueError, match="noise_multiplier must be"):
        POISSON.epsilon(np.nan, 10)
    with pytest.raises(ValueError, match="noise_multiplier must be"):
        PrivacyLoss(POISSON, np.nan)


def test_noise_that_was_computed_on_another_machine_is_close():
    loss = PrivacyLoss(POISSON, 0.5)
    assert loss.is_close(PrivacyLoss(POISSON, np.nextafter(0.5, 1)))
    assert not loss.is_close(PrivacyLoss(POISSON, 0.500001))
    assert not loss.is_close(PrivacyLoss(FIXED, 0.5))


def test_default_delta_is_less_than_one_over_the_clients(caplog):
    default_delta.cache_clear()  # It warns once.
    with caplog.at_level("WARNING", logger="absl"):
        assert default_delta(1000) == pytest.approx(1000**-1.1)
        assert not caplog.messages
        assert default_delta(28) == default_delta(28) == pytest.approx(28**-1.1)
    (warning,) = caplog.messages
    assert warning.startswith("delta is 0.0256, by default num_clients ** -1.1: a weak promise")
    with pytest.raises(ValueError, match="which is 1 for one client. Set delta"):
        default_delta(1)
