"""Privacy accounting: computes epsilon from the noise and the sampling of cohorts.

Two federations are neighbours if they differ in one client. A run is `(epsilon, delta)`-private if
the probabilities of everything that the server releases differ between neighbours by at most a
factor `e^epsilon`, except with a probability of `delta`. The sampling of cohorts makes neighbours:

    "poisson"   Each client is drawn independently with the probability k / N. Neighbours have one
                client more or less. One client moves the sum of clipped uploads by at most `C`.
    "fixed"     k of N clients are drawn without replacement. Neighbours have one client replaced.
                This moves the sum by at most `2 C`, so noise of `z C` counts with half the
                multiplier.

Both use Renyi differential privacy, as computed by `dp_accounting` (Mironov et al., 2019; Wang et
al., AISTATS 2019). The bound for fixed cohorts exceeds the bound for all clients if about half of
them or more take part. Drawing clients reveals no more than taking all clients, so the smaller
bound is used.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import absl.logging
import dp_accounting
import numpy as np
from dp_accounting import rdp
from scipy import optimize

from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.ranges import above, at_least, inside, takes, whole

_RELATIONS = {
    "poisson": dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    "fixed": dp_accounting.NeighboringRelation.REPLACE_ONE,
}
# Orders of Renyi divergences. Fractional orders are slow without replacement, because each needs
# two others. Epsilon is a minimum over all orders, and only slightly larger with fewer orders.
_ORDERS = {
    "poisson": None,  # The default of dp_accounting.
    "fixed": [1.25, 1.5, 1.75, 2, 2.25, 2.5, 2.75, 3, 3.5, *range(4, 33), 48, 64],
}
# The search range of noise multipliers; larger ones have divergences below rounding errors.
_LEAST_NOISE, _MOST_NOISE = 0.1, 1e4
_NO_NOISE = 1e-100  # Smaller noise counts as none, because its square may underflow.
_TOLERANCE = 1 + 1e-4
_WEAK_DELTA = 1e-3  # Larger ones are no small probability of failure.


@takes(num_clients=whole(1), clients_per_round=whole(1), delta=inside(0, 1))
@dataclasses.dataclass(frozen=True)
class Accountant:
    """The sampling of cohorts and delta, from which epsilon is computed.

    Attributes:
        num_clients: `N`.
        clients_per_round: `k`, the size of a cohort, or the expected size for Poisson sampling.
        delta: The probability `delta`; see the module.
        sampling: "poisson" or "fixed".
    """

    num_clients: int
    clients_per_round: int
    delta: float
    sampling: str = "fixed"

    def __post_init__(self):
        """Checks the sampling and the size of cohorts."""
        check_names("sampling", [self.sampling], _RELATIONS)
        if self.clients_per_round > self.num_clients:
            raise ValueError(
                f"clients_per_round={self.clients_per_round} is more than num_clients="
                f"{self.num_clients}. Use a smaller cohort."
            )

    def check(self, num_clients: int, clients_per_round: int, sampling: str) -> None:
        """Raises a `ValueError` unless cohorts are drawn as this accountant assumes.

        Args:
            num_clients: The number of clients in the federation.
            clients_per_round: The size of a cohort.
            sampling: How cohorts are drawn, as in `sampling`.
        """
        drawn = Accountant(num_clients, clients_per_round, self.delta, sampling)
        if drawn != self:
            raise ValueError(
                f"Epsilon was computed for\n  {self}\nbut the run's cohorts are drawn as\n"
                f"  {drawn}\nCompute the noise and epsilon with the second Accountant."
            )

    def event(self, noise_multiplier: float) -> dp_accounting.DpEvent:
        """Returns the `dp_accounting` event of a round.

        Args:
            noise_multiplier: The standard deviation of the sum's noise divided by the clipping
                norm.
        """
        if self.sampling == "poisson":
            share = self.clients_per_round / self.num_clients
            return dp_accounting.PoissonSampledDpEvent(
                share, dp_accounting.GaussianDpEvent(noise_multiplier)
            )
        return dp_accounting.SampledWithoutReplacementDpEvent(
            self.num_clients,
            self.clients_per_round,
            dp_accounting.GaussianDpEvent(noise_multiplier / 2),
        )

    @takes(noise_multiplier=at_least(0), rounds=whole(0))
    def epsilon(self, noise_multiplier: float, rounds: int) -> float:
        """Computes epsilon after a number of rounds; it is infinite without noise.

        Args:
            noise_multiplier: See `event`.
            rounds: The number of rounds, 0 or more.
        """
        if not rounds:
            return 0.0
        if noise_multiplier < _NO_NOISE:
            return math.inf
        orders, divergences = _round_divergences(self, min(noise_multiplier, _MOST_NOISE))
        return float(rdp.compute_epsilon(orders, rounds * divergences, self.delta)[0])

    @takes(epsilon=above(0), rounds=whole(1))
    def noise_multiplier(self, epsilon: float, rounds: int) -> float:
        """Finds the least noise multiplier with which `rounds` rounds have at most `epsilon`.

        Raises:
            ValueError: The noise multiplier would not be between 0.1 and 10,000.
        """
        least, most = (self.epsilon(noise, rounds) for noise in (_MOST_NOISE, _LEAST_NOISE))
        if not least <= epsilon <= most:
            raise ValueError(
                f"epsilon of {rounds} rounds of {self.clients_per_round} of {self.num_clients} "
                f"clients must be between {least:.3g} and {most:.3g}, got {epsilon:g}."
            )
        return _calibrated(self, epsilon, rounds)


@takes(noise_multiplier=at_least(0))
@dataclasses.dataclass(frozen=True)
class PrivacyLoss:
    """The privacy loss of a run.

    Attributes:
        accountant: The accountant, with the sampling of cohorts and delta.
        noise_multiplier: See `Accountant.event`.
    """

    accountant: Accountant
    noise_multiplier: float

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> "PrivacyLoss":
        """Makes a `PrivacyLoss` from the fields of `dataclasses.asdict`."""
        return cls(Accountant(**fields["accountant"]), fields["noise_multiplier"])

    def is_close(self, other: "PrivacyLoss") -> bool:
        """Returns whether another privacy loss is equal up to rounding of the noise.

        The noise is computed again when a run is resumed, possibly on another machine.
        """
        return self.accountant == other.accountant and math.isclose(
            self.noise_multiplier, other.noise_multiplier, rel_tol=1e-6
        )

    def epsilon(self, rounds: int) -> float:
        """Computes epsilon after a number of rounds."""
        return self.accountant.epsilon(self.noise_multiplier, rounds)

    def summary(self, rounds: int) -> dict[str, Any]:
        """Returns epsilon, which may be infinite, and the values from which it is computed."""
        return {
            "epsilon": self.epsilon(rounds),
            "noise_multiplier": self.noise_multiplier,
            **dataclasses.asdict(self.accountant),
        }


@functools.cache
def _round_divergences(accountant: Accountant, noise_multiplier: float):
    """Returns orders and a round's Renyi divergences, which add up over rounds."""
    one = rdp.RdpAccountant(_ORDERS[accountant.sampling], _RELATIONS[accountant.sampling])
    one.compose(accountant.event(noise_multiplier))
    if accountant.clients_per_round == accountant.num_clients:
        return one._orders, one._rdp
    everybody = dataclasses.replace(accountant, clients_per_round=accountant.num_clients)
    return one._orders, np.minimum(one._rdp, _round_divergences(everybody, noise_multiplier)[1])


@functools.cache
def _calibrated(accountant: Accountant, epsilon: float, rounds: int) -> float:
    """Finds the noise for an epsilon; cached, because a run needs it twice."""

    def excess(log_noise):
        return accountant.epsilon(math.exp(log_noise), rounds) - epsilon

    bounds = math.log(_LEAST_NOISE), math.log(_MOST_NOISE)
    found = math.exp(optimize.brentq(excess, *bounds, xtol=math.log(_TOLERANCE)))
    return found if accountant.epsilon(found, rounds) <= epsilon else found * _TOLERANCE


@functools.cache
def default_delta(num_clients: int) -> float:
    """Returns `N^-1.1`, a common choice below `1 / N`, for `N` clients.

    A warning is logged, once for each `N`, if so few clients make it a weak promise.
    """
    if num_clients < 2:
        raise ValueError(
            "The default delta is num_clients to the power of -1.1, which is 1 for one client. Set "
            "delta."
        )
    delta = num_clients**-1.1
    if delta > _WEAK_DELTA:
        absl.logging.warning(
            "delta is %.3g, by default num_clients ** -1.1: a weak promise, because a client may "
            "lose the protection of epsilon with this probability. Set a smaller delta.",
            delta,
        )
    return delta
