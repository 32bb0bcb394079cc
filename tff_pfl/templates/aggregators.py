"""Aggregators by name, for every algorithm whose server needs only the mean of uploads."""

import dataclasses

import tensorflow_federated as tff

from tff_pfl.aggregators import (
    BranchMeanFactory,
    CountedFactory,
    is_plain_mean,
    quiet_secure_sums,
)
from tff_pfl.kinds import check_kind
from tff_pfl.ranges import at_least, takes, whole
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
