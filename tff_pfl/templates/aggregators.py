"""Aggregators by name, for every algorithm whose server needs only the mean of uploads."""

import dataclasses
import functools

import tensorflow_federated as tff

from tff_pfl.aggregators import (
    BranchMeanFactory,
    CountedFactory,
    StackRuleFactory,
    is_plain_mean,
    quiet_secure_sums,
    robust_rules,
)
from tff_pfl.kinds import check_kind
from tff_pfl.ranges import above, at_least, takes, up_to, whole
from tff_pfl.registry import Registry
from tff_pfl.templates.algorithm import Algorithm
from tff_pfl.templates.errors import AggregatorError
from tff_pfl.templates.exchange import Aggregator, Exchange

AGGREGATORS = Registry("aggregator")
_FACTORIES = (
    tff.aggregators.UnweightedAggregationFactory,
    tff.aggregators.WeightedAggregationFactory,
)
# The clipping norm adapts by a count with noise of its own, of 0.05 times the clients, which has to
# be more than half of what is asked for: `DifferentiallyPrivateFactory.gaussian_adaptive`.
_NOISE_PER_CLIENT = 0.1


@AGGREGATORS.register("mean")
def mean() -> Aggregator:
    """Makes the weighted mean."""
    return tff.aggregators.MeanFactory()


@AGGREGATORS.register("robust")
@takes()
def robust(*, zeroing: bool = True, clipping: bool = True) -> Aggregator:
    """`tff.learning.robust_aggregator`: the mean of clipped uploads, outliers being left out.

    Args:
        zeroing: Whether uploads with extremely large values become 0; what is extreme adapts.
        clipping: Whether uploads are shortened to a norm that adapts to most of them.
    """
    return tff.learning.robust_aggregator(zeroing=zeroing, clipping=clipping)


@AGGREGATORS.register("compression")
@takes()
def compression(*, zeroing: bool = True, clipping: bool = True) -> Aggregator:
    """`tff.learning.compression_aggregator`: `robust`, of uploads that are quantized.

    Args:
        zeroing: See `robust`.
        clipping: See `robust`.
    """
    return tff.learning.compression_aggregator(zeroing=zeroing, clipping=clipping)


@AGGREGATORS.register("dp")
@takes(noise_multiplier=at_least(0), clients_per_round=whole(1))
def dp(
    *, clients_per_round: int, noise_multiplier: float = 1.0, zeroing: bool = True
) -> Aggregator:
    """`tff.learning.dp_aggregator`: the mean of clipped uploads, with Gaussian noise.

    The noise is drawn anew wherever a round is run: a run that is repeated or resumed has other
    numbers.

    Args:
        clients_per_round: How many are expected.
        noise_multiplier: Standard deviation of the noise of the sum, relative to the clipping norm.
        zeroing: See `robust`.

    Raises:
        ValueError: If so few clients cannot have that much noise.
    """
    _check_noise(noise_multiplier, clients_per_round)
    return tff.learning.dp_aggregator(noise_multiplier, clients_per_round, zeroing)


@AGGREGATORS.register("secure")
@takes()
def secure(*, zeroing: bool = True, clipping: bool = True) -> Aggregator:
    """`tff.learning.secure_aggregator`: `robust`, by secure sums.

    The graph runtime simulates secure sums in the clear; TFF's stock runtime has none.

    Args:
        zeroing: See `robust`.
        clipping: See `robust`.
    """
    with quiet_secure_sums():
        return tff.learning.secure_aggregator(zeroing=zeroing, clipping=clipping)


@AGGREGATORS.register("ddp_secure")
@takes(noise_multiplier=at_least(0), clients_per_round=whole(1), bits=whole(1, 22))
def ddp_secure(
    *,
    clients_per_round: int,
    noise_multiplier: float = 1.0,
    bits: int = 20,
    zeroing: bool = True,
    rotation_type: str = "hd",
) -> Aggregator:
    """`tff.learning.ddp_secure_aggregator`: distributed differential privacy by secure sums.

    Its noise is drawn anew as that of `dp`.

    Args:
        clients_per_round: How many are expected.
        noise_multiplier: Relative to the initial clipping norm.
        bits: Of the sum, for which clients quantize their uploads.
        zeroing: See `robust`.
        rotation_type: "hd" (Hadamard) or "dft".

    Raises:
        ValueError: If so few clients cannot have that much noise.
    """
    _check_noise(noise_multiplier, clients_per_round)
    with quiet_secure_sums():
        return tff.learning.ddp_secure_aggregator(
            noise_multiplier, clients_per_round, bits, zeroing, rotation_type
        )


def _check_noise(noise_multiplier, clients_per_round):
    most = _NOISE_PER_CLIENT * clients_per_round
    if not noise_multiplier < most:
        raise ValueError(
            f"noise_multiplier must be below {_NOISE_PER_CLIENT:g} * clients_per_round = {most:g}, "
            f"got {noise_multiplier:g}."
        )


# Those below withstand attackers among the clients of a round.


@AGGREGATORS.register("clipped")
@takes(norm=above(0))
def clipped(*, norm: float = 1.0) -> Aggregator:
    """The weighted mean of uploads shortened to a fixed norm; `robust` adapts its norm.

    Args:
        norm: The longest upload, all of its tensors being one vector.
    """
    return tff.aggregators.clipping_factory(norm, tff.aggregators.MeanFactory())


@AGGREGATORS.register("trimmed_mean")
@takes(fraction=up_to(0, 0.5))
def trimmed_mean(*, fraction: float = 0.2) -> Aggregator:
    """`robust_rules.trimmed_mean`: without the lowest and the highest values of each coordinate.

    Args:
        fraction: The share of the clients whose values are cut at either end.
    """
    return _unmeasured(functools.partial(robust_rules.trimmed_mean, fraction=fraction))


@AGGREGATORS.register("median")
def median() -> Aggregator:
    """`robust_rules.median`: the weighted median of each coordinate."""
    return _unmeasured(robust_rules.median)


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
        num_attackers: How many attackers are tolerated.

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
        num_selected: How many uploads are averaged: at most all accepted ones but
            `num_attackers`, which is also the default.

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
    return _unmeasured(rule, fewest)


def _unmeasured(rule, fewest=1):
    return StackRuleFactory(lambda stack: (rule(stack), {}), fewest)


def with_aggregator(algorithm: Algorithm, aggregator: Aggregator) -> Algorithm:
    """Replaces the mean of an algorithm by another aggregator.

    Args:
        algorithm: Any whose exchanges upload nothing, or what is averaged.
        aggregator: A `tff.aggregators` factory.

    Raises:
        AggregatorError: If the server needs more than the mean of uploads, or clients upload
            nothing.
        KindError: If `aggregator` is not a `tff.aggregators` factory.
    """
    check_kind("The aggregator", aggregator, _FACTORIES, named="a factory of tff.aggregators")

    def change(exchange: Exchange) -> Exchange:
        present = exchange.aggregator
        if present is None:
            return exchange
        is_around = isinstance(present, BranchMeanFactory | CountedFactory)
        if not (present.is_default if is_around else is_plain_mean(present)):
            reason = getattr(present, "reason", f"it is {type(present).__name__}")
            if is_around or isinstance(present, tff.aggregators.MeanFactory):
                reason = "another than the mean was chosen before"
            raise AggregatorError(
                f"The aggregator of {algorithm.name} (exchange {exchange.name!r}) cannot be "
                f"replaced: {reason}."
            )
        if is_around:
            return dataclasses.replace(exchange, aggregator=present.around(aggregator))
        return dataclasses.replace(exchange, aggregator=aggregator)

    if all(exchange.aggregator is None for exchange in algorithm.exchanges):
        raise AggregatorError(
            f"The aggregator of {algorithm.name} cannot be replaced: clients upload nothing."
        )
    return algorithm.with_exchanges(change)
