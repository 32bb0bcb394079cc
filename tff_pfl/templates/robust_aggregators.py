"""Aggregators by name that withstand attackers among the clients of a round."""

import functools

import tensorflow_federated as tff

from tff_pfl.aggregators import StackRuleFactory, robust_rules
from tff_pfl.ranges import above, at_least, takes, up_to, whole
from tff_pfl.templates.aggregators import AGGREGATORS
from tff_pfl.templates.exchange import Aggregator


@AGGREGATORS.register("clipped")
@takes(norm=above(0))
def clipped(*, norm: float = 1.0) -> Aggregator:
    """The weighted mean of uploads that are shortened to a norm; that of `robust` adapts.

    Args:
        norm: The longest upload, all of its tensors being one vector.
    """
    return tff.aggregators.clipping_factory(norm, tff.aggregators.MeanFactory())


@AGGREGATORS.register("trimmed_mean")
@takes(fraction=up_to(0, 0.5))
def trimmed_mean(*, fraction: float = 0.2) -> Aggregator:
    """`robust_rules.trimmed_mean`: without the lowest and the highest values of each coordinate.

    Args:
        fraction: Of the clients, cut at either end.
    """
    return StackRuleFactory(functools.partial(robust_rules.trimmed_mean, fraction=fraction))


@AGGREGATORS.register("median")
def median() -> Aggregator:
    """`robust_rules.median`: the weighted median of each coordinate."""
    return StackRuleFactory(robust_rules.median)


@AGGREGATORS.register("geometric_median")
@takes(iterations=whole(0), tolerance=at_least(0), smoothing=above(0))
def geometric_median(
    *, iterations: int = 1000, tolerance: float = 1e-6, smoothing: float = 1e-6
) -> Aggregator:
    """`robust_rules.geometric_median`: the point with the least weighted distance to all uploads.

    It measures the number of `iterations`, and the `residual` after them: 0 at the optimum, 1 if
    all clients pull one way.

    Args:
        iterations: The largest number of iterations of Weiszfeld's algorithm.
        tolerance: The residual at which it stops earlier.
        smoothing: The distance below which clients pull no more.
    """
    rule = functools.partial(
        robust_rules.geometric_median,
        iterations=iterations,
        tolerance=tolerance,
        smoothing=smoothing,
    )
    return StackRuleFactory(rule, measured=("residual", "iterations"))


@AGGREGATORS.register("krum")
@takes(clients_per_round=whole(1), num_attackers=whole(0))
def krum(*, clients_per_round: int, num_attackers: int = 1) -> Aggregator:
    """`robust_rules.krum`: the upload that is closest to its neighbours.

    A round with fewer accepted clients than `2 num_attackers + 3` leaves the server as it was; see
    `StackRuleFactory`.

    Args:
        clients_per_round: How many are expected.
        num_attackers: That are tolerated.

    Raises:
        ValueError: If no round could have enough clients.
    """
    return _krum(clients_per_round, num_attackers, num_selected=1)


@AGGREGATORS.register("multi_krum")
@takes(clients_per_round=whole(1), num_attackers=whole(0), num_selected=whole(1))
def multi_krum(
    *, clients_per_round: int, num_attackers: int = 1, num_selected: int | None = None
) -> Aggregator:
    """The mean of the uploads that are closest to their neighbours, else as `krum`.

    Args:
        clients_per_round: See `krum`.
        num_attackers: See `krum`.
        num_selected: Of how many uploads, of all accepted ones but `num_attackers` at most;
            `None`: of just these.

    Raises:
        ValueError: See `krum`.
    """
    return _krum(clients_per_round, num_attackers, num_selected)


def _krum(clients_per_round, num_attackers, num_selected):
    fewest = 2 * num_attackers + 3
    if clients_per_round < fewest:
        raise ValueError(
            f"num_attackers={num_attackers} needs 2 * num_attackers + 3 = {fewest} clients a round "
            f"or more, found clients_per_round={clients_per_round}."
        )
    if num_selected is not None and num_selected > clients_per_round - num_attackers:
        raise ValueError(
            f"num_selected={num_selected} would be more than the honest ones of "
            f"clients_per_round={clients_per_round}, if num_attackers={num_attackers} are not."
        )
    rule = functools.partial(
        robust_rules.krum, num_attackers=num_attackers, num_selected=num_selected
    )
    return StackRuleFactory(rule, fewest)
