"""Gains of each client over a baseline run, such as local training only."""

from typing import NamedTuple

import numpy as np

from tff_pfl.evaluation.metrics import ClientMetrics, MetricName
from tff_pfl.evaluation.statistics import groups_of

_ROUNDING = 1e-12  # Relative; 4,500 times float64's rounding of a single number.


class Gain(NamedTuple):
    """Statistics of the gains of a group of clients.

    Attributes:
        num_clients: The number of clients.
        mean: The mean gain, with equal weights for all clients.
        std: The population standard deviation over clients.
        share_hurt: The share of clients with a gain below 0.
    """

    num_clients: int
    mean: float
    std: float
    share_hurt: float


def gains_of_clients(
    clients: ClientMetrics, baseline: ClientMetrics
) -> dict[MetricName, np.ndarray]:
    """Computes how much better each client's models are than its personal model in the baseline.

    Args:
        clients: The metrics of the run.
        baseline: The metrics of the same clients on the same examples.

    Returns:
        float64 `[clients]` by the name of the metric: all quantities of all models, in the pools on
        which both runs were evaluated, compared with the baseline's `personalized` model. NaN for
        clients without examples, for which one of the two numbers is undefined, or both of whose
        models diverged.
    """
    found = {}
    for name, values in clients.values.items():
        own = name._replace(model="personalized")
        if own in baseline.values:
            sign = clients.quantities[name.quantity].better
            gain = sign * differences(values, baseline.values[own], sign)
            found[name] = np.where(_are_defined(clients, baseline, name), gain, np.nan)
    return found


def _are_defined(clients, baseline, name) -> np.ndarray:
    """Returns for which clients a metric and its baseline are defined, bool `[clients]`."""
    return clients.is_defined(name) & baseline.is_defined(name._replace(model="personalized"))


def differences(values: np.ndarray, others: np.ndarray, direction: int) -> np.ndarray:
    """Computes `values - others`, where NaN, of a diverged model, is worse than any number.

    Differences that may be rounding errors, such as those between means over rounds, become 0.

    Args:
        values: One number for each client.
        others: The numbers to compare with. If both numbers are NaN, the difference is NaN.
        direction: 1 if more is better, -1 if less is better.
    """
    with np.errstate(invalid="ignore"):  # Infinities may be subtracted.
        found = values - others
        found = without_rounding(found, np.maximum(np.abs(values), np.abs(others)))
    diverged, others_diverged = np.isnan(values), np.isnan(others)
    found = np.where(diverged & ~others_diverged, -direction * np.inf, found)
    return np.where(others_diverged & ~diverged, direction * np.inf, found)


def without_rounding(found: np.ndarray | float, scale: np.ndarray | float) -> np.ndarray:
    """Replaces sums or differences that may be rounding errors by 0.

    Args:
        found: The sums or differences.
        scale: The size of the numbers that were added or subtracted, >= 0.
    """
    is_rounding = np.isfinite(scale) & (np.abs(found) <= _ROUNDING * scale)
    return np.where(is_rounding, 0.0, found)


def gains(
    clients: ClientMetrics, baseline: ClientMetrics, was_selected: np.ndarray
) -> dict[str, dict[MetricName, Gain]]:
    """Computes statistics of `gains_of_clients` over the clients of each group of `groups_of`."""
    client_gains = gains_of_clients(clients, baseline)
    return {
        group: {
            name: _over_clients(values[counted])
            for name, values in client_gains.items()
            if np.any(counted := members & _are_defined(clients, baseline, name))
        }
        for group, members in groups_of(clients, was_selected).items()
    }


def _over_clients(values) -> Gain:
    with np.errstate(invalid="ignore"):  # Losses may be infinite.
        return Gain(
            len(values), float(values.mean()), float(values.std()), float(np.mean(values < 0))
        )
