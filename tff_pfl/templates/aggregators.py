"""Aggregators by name, for algorithms whose server needs only the mean of uploads."""

import dataclasses
import functools

import tensorflow_federated as tff

from tff_pfl.aggregators import StackRuleFactory, means, quiet_secure_sums, robust_rules
from tff_pfl.arguments.kinds import check_kind
from tff_pfl.arguments.ranges import above, at_least, takes, up_to, whole
from tff_pfl.arguments.recipes import remembering
from tff_pfl.arguments.registry import Registry
from tff_pfl.templates.algorithm import Algorithm
from tff_pfl.templates.errors import AggregatorError
from tff_pfl.templates.exchange import Aggregator, Exchange

AGGREGATORS = Registry("aggregator")
_FACTORIES = (
    tff.aggregators.UnweightedAggregationFactory,
    tff.aggregators.WeightedAggregationFactory,
)
# The clipping norm adapts by a count whose own noise is 0.05 times the number of clients; TFF
# requires this to exceed half of the requested noise: `gaussian_adaptive`.
_NOISE_PER_CLIENT = 0.1


@AGGREGATORS.register("mean")
def mean() -> Aggregator:
    """Makes the weighted mean."""
    return tff.aggregators.MeanFactory()


@AGGREGATORS.register("robust")
@takes()
def robust(*, zeroing: bool = True, clipping: bool = True) -> Aggregator:
    """Makes `tff.learning.robust_aggregator`, the mean of clipped uploads without outliers.

    Args:
        zeroing: Whether uploads with extremely large values become 0; the threshold adapts.
        clipping: Whether long uploads are scaled down to a norm, which adapts to the uploads.
    """
    return tff.learning.robust_aggregator(zeroing=zeroing, clipping=clipping)


@AGGREGATORS.register("compression")
@takes()
def compression(*, zeroing: bool = True, clipping: bool = True) -> Aggregator:
    """Makes `tff.learning.compression_aggregator`: `robust` with quantized uploads.

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
    """Makes `tff.learning.dp_aggregator`, the mean of clipped uploads with Gaussian noise.

    The noise has no seed: a run that is repeated or resumed draws other numbers.

    Args:
        clients_per_round: The expected number of clients in a round.
        noise_multiplier: Standard deviation of the noise of the sum, relative to the clipping norm.
        zeroing: See `robust`.

    Raises:
        ValueError: The noise is too large for so few clients.
    """
    _check_noise(noise_multiplier, clients_per_round)
    return tff.learning.dp_aggregator(noise_multiplier, clients_per_round, zeroing)


@AGGREGATORS.register("secure")
@takes()
def secure(*, zeroing: bool = True, clipping: bool = True) -> Aggregator:
    """Makes `tff.learning.secure_aggregator`: `robust` with secure sums.

    The graph runtime simulates secure sums in the clear; TFF's stock runtime has no secure sums.

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
    """Makes `tff.learning.ddp_secure_aggregator`: distributed differential privacy by secure sums.

    The noise has no seed; see `dp`.

    Args:
        clients_per_round: The expected number of clients in a round.
        noise_multiplier: Standard deviation of the noise, relative to the initial clipping norm.
        bits: The number of bits of the sum, for which clients quantize their uploads.
        zeroing: See `robust`.
        rotation_type: "hd" (Hadamard) or "dft".

    Raises:
        ValueError: The noise is too large for so few clients.
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


# The aggregators below withstand attackers among the clients of a round.


@AGGREGATORS.register("clipped")
@takes(norm=above(0))
def clipped(*, norm: float = 1.0) -> Aggregator:
    """Makes the weighted mean of uploads clipped to a fixed norm; `robust` adapts its norm.

    Args:
        norm: The largest norm of an upload, over all of its tensors together.
    """
    return tff.aggregators.clipping_factory(norm, tff.aggregators.MeanFactory())


@AGGREGATORS.register("trimmed_mean")
@takes(fraction=up_to(0, 0.5))
def trimmed_mean(*, fraction: float = 0.2) -> Aggregator:
    """Makes the mean without the lowest and highest values of each coordinate.

    Args:
        fraction: The share of clients whose values are cut at each end; see
            `robust_rules.trimmed_mean`.
    """
    return _unmeasured(functools.partial(robust_rules.trimmed_mean, fraction=fraction))


@AGGREGATORS.register("median")
def median() -> Aggregator:
    """Makes the weighted median of each coordinate; see `robust_rules.median`."""
    return _unmeasured(robust_rules.median)


@AGGREGATORS.register("geometric_median")
@takes(iterations=whole(0), tolerance=at_least(0), smoothing=above(0))
def geometric_median(
    *, iterations: int = 1000, tolerance: float = 1e-6, smoothing: float = 1e-6
) -> Aggregator:
    """Makes the geometric median: the point with the least weighted distance to all uploads.

    Its measurements are the number of `iterations`, and the `residual` after them: 0 at the
    optimum, 1 if all clients pull in one direction. See `robust_rules.geometric_median`.

    Args:
        iterations: The largest number of iterations of Weiszfeld's algorithm.
        tolerance: The residual at which the algorithm stops early.
        smoothing: The distance below which a client's pull shrinks in proportion to it.
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
    """Makes Krum, which takes the upload that is closest to its neighbours.

    If a round has fewer accepted clients than `2 num_attackers + 3`, the server keeps its state;
    see `StackRuleFactory` and `robust_rules.krum`.

    Args:
        clients_per_round: The expected number of clients in a round.
        num_attackers: The number of attackers that are tolerated.

    Raises:
        ValueError: A round of `clients_per_round` clients is too small.
    """
    return _krum(clients_per_round, num_attackers, num_selected=1)


@AGGREGATORS.register("multi_krum")
@takes(clients_per_round=whole(1), num_attackers=whole(0), num_selected=whole(1))
def multi_krum(
    *, clients_per_round: int, num_attackers: int = 1, num_selected: int | None = None
) -> Aggregator:
    """Makes Multi-Krum, the mean of the uploads that are closest to their neighbours; see `krum`.

    Args:
        clients_per_round: See `krum`.
        num_attackers: See `krum`.
        num_selected: The number of uploads that are averaged; default and maximum: the number of
            accepted uploads minus `num_attackers`.

    Raises:
        ValueError: A round is too small, as in `krum`, or `num_selected` is too large.
    """
    return _krum(clients_per_round, num_attackers, num_selected)


def _krum(clients_per_round, num_attackers, num_selected):
    fewest = 2 * num_attackers + 3
    if clients_per_round < fewest:
        raise ValueError(
            f"num_attackers={num_attackers} needs at least 2 * num_attackers + 3 = {fewest} "
            f"clients a round, found clients_per_round={clients_per_round}."
        )
    if num_selected is not None and num_selected > clients_per_round - num_attackers:
        raise ValueError(
            f"num_selected must be at most clients_per_round - num_attackers = "
            f"{clients_per_round - num_attackers} honest clients, got {num_selected}."
        )
    rule = functools.partial(
        robust_rules.krum, num_attackers=num_attackers, num_selected=num_selected
    )
    return _unmeasured(rule, fewest)


def _unmeasured(rule, fewest=1):
    return StackRuleFactory(lambda stack: (rule(stack), {}), fewest)


@remembering("aggregator", "with_aggregator")
def with_aggregator(algorithm: Algorithm, aggregator: Aggregator) -> Algorithm:
    """Replaces the mean of uploads of an algorithm by another aggregator.

    Example:
        >>> model, local = testing.tiny_model(), testing.tiny_local()
        >>> algorithm = tff_pfl.make("ditto", model, local)
        >>> median = tff_pfl.AGGREGATORS["median"]()
        >>> robust = tff_pfl.with_aggregator(algorithm, median)
        >>> robust.exchanges[0].aggregator is median
        True

    Args:
        algorithm: An algorithm in which each exchange averages its uploads, or has none.
        aggregator: A `tff.aggregators` factory.

    Raises:
        AggregatorError: The server needs more than the mean of uploads, or clients upload nothing.
        KindError: `aggregator` is not a `tff.aggregators` factory.
    """
    check_kind("The aggregator", aggregator, _FACTORIES, named="a factory of tff.aggregators")

    def change(exchange: Exchange) -> Exchange:
        present = exchange.aggregator
        if present is None:
            return exchange
        if reason := means.reason_against(present):
            raise AggregatorError(
                f"The aggregator of {algorithm.name} (exchange {exchange.name!r}) cannot be "
                f"replaced: {reason}."
            )
        return dataclasses.replace(exchange, aggregator=means.around(present, aggregator))

    if all(exchange.aggregator is None for exchange in algorithm.exchanges):
        raise AggregatorError(
            f"The aggregator of {algorithm.name} cannot be replaced: clients upload nothing."
        )
    return algorithm.with_exchanges(change)
