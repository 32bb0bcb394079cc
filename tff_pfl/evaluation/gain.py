"""Gains of each client over another run, such as one of local training alone."""

from typing import NamedTuple

import numpy as np

from tff_pfl.evaluation.metrics import ClientMetrics, MetricName, direction
from tff_pfl.evaluation.statistics import groups_of

_ROUNDING = 1e-12  # of float64: 4,500 times that of a single number


class Gain(NamedTuple):
    """The gains of some clients.

    Attributes:
        num_clients: The number of clients.
        mean: Over clients, each counting once.
        std: The population standard deviation over clients.
        share_hurt: The share of clients whose gain is below 0.
    """

    num_clients: int
    mean: float
    std: float
    share_hurt: float


def gains_of_clients(
    clients: ClientMetrics, baseline: ClientMetrics
) -> dict[MetricName, np.ndarray]:
    """Computes how much better each client's models are than its own model in the baseline.

    Args:
        clients: The metrics of the run.
        baseline: The metrics of the same clients on the same examples.

    Returns:
        float64 `[clients]` by the name of what is compared: all models' quantities in the pools
        that both were evaluated on, each with that of the baseline's `personalized` model. NaN
        where there is no example.
    """
    found = {}
    for name, values in clients.values.items():
        before = baseline.values.get(name._replace(model="personalized"))
        if before is not None:
            sign = direction(name.quantity)
            found[name] = sign * differences(values, before, sign)
    return found


def differences(values: np.ndarray, others: np.ndarray, direction: int) -> np.ndarray:
    """Computes `values - others`; NaN, of a model that has diverged, is worse than any number.

    Where both are the same up to rounding, as means over rounds may be, it is 0.

    Args:
        values: One number for each client.
        others: The numbers of the same clients elsewhere. Where both are NaN, so is the difference.
        direction: 1 where more is better, or -1.
    """
    with np.errstate(invalid="ignore"):  # of infinities
        found = values - others
        found = without_rounding(found, np.maximum(np.abs(values), np.abs(others)))
    diverged, others_diverged = np.isnan(values), np.isnan(others)
    found = np.where(diverged & ~others_diverged, -direction * np.inf, found)
    return np.where(others_diverged & ~diverged, direction * np.inf, found)


def without_rounding(found: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Replaces by 0 what may be nothing but rounding of numbers of a size.

    Args:
        found: Sums or differences of such numbers.
        scale: Their size, >= 0.
    """
    is_rounding = np.isfinite(scale) & (np.abs(found) <= _ROUNDING * scale)
    return np.where(is_rounding, 0.0, found)


def gains(
    clients: ClientMetrics, baseline: ClientMetrics, was_selected: np.ndarray
) -> dict[str, dict[MetricName, Gain]]:
    """Statistics of `gains_of_clients` over the clients of each group; see `groups_of`."""
    of_clients = gains_of_clients(clients, baseline)
    return {
        group: {name: _over_clients(values[members]) for name, values in of_clients.items()}
        for group, members in groups_of(clients, was_selected).items()
    }


def _over_clients(values) -> Gain:
    with np.errstate(invalid="ignore"):  # of losses that are not finite
        return Gain(
            len(values), float(values.mean()), float(values.std()), float(np.mean(values < 0))
        )
