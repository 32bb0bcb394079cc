"""Central privacy: the server sees a noisy mean of uploads, and nothing else."""

import dataclasses
from collections.abc import Callable, Mapping

import tensorflow_federated as tff

from tff_pfl.aggregators import BranchMeanFactory, CountedFactory, FieldsFactory
from tff_pfl.names import check_names
from tff_pfl.privacy.branches import ShareMeanFactory, noise_of_shares
from tff_pfl.privacy.noise import (
    adaptive_clipping,
    fixed_clipping,
    noise_of_mean,
    noise_without,
)
from tff_pfl.ranges import above, at_least, takes, whole
from tff_pfl.templates import Algorithm, Exchange, with_aggregator
from tff_pfl.templates.errors import AggregatorError

CLIPPINGS: Mapping[str, Callable[..., tff.aggregators.UnweightedAggregationFactory]] = {
    "adaptive": adaptive_clipping,
    "fixed": fixed_clipping,
}


@takes(noise_multiplier=at_least(0), clients_per_round=whole(1), clip_norm=above(0))
def with_privacy(
    algorithm: Algorithm,
    *,
    noise_multiplier: float,
    clients_per_round: int,
    clipping: str = "adaptive",
    clip_norm: float = 0.1,
    secure_sums: bool = False,
    seed: int | None = None,
) -> Algorithm:
    """Adds central differential privacy of clients to an algorithm.

    A client's whole upload, with all its fields, is one vector. It is shortened to the clipping
    norm, and the server receives the sum over the cohort with Gaussian noise, divided by
    `clients_per_round`. Clients weigh the same, as a weight would reveal a client's data. For a
    `BranchMeanFactory`, shares have noise of their own, see `tff_pfl.privacy.branches`; for a
    `CountedFactory`, the number is `clients_per_round`. Nothing else is reported: a round's metrics
    lack counts and losses. `Accountant` computes epsilon.

    Args:
        algorithm: Any whose uploads are averaged.
        noise_multiplier: Standard deviation of the noise of the sum, over the clipping norm.
        clients_per_round: The expected number of clients.
        clipping: "adaptive", towards the median norm of uploads, or "fixed".
        clip_norm: The clipping norm, or the first one.
        secure_sums: Whether uploads are added by secure sums: then the server sees no upload, and
            only needs to be trusted with adding the noise to their sum.
        seed: Seed of the noise, for simulations that can be repeated; `None`: drawn anew.

    Raises:
        AggregatorError: If the server needs more of uploads than their mean, or a round has no
            uploads or several.
        ValueError: If a value is out of range, or so few clients cannot have that much noise.
    """
    check_names("clipping", [clipping], CLIPPINGS)
    averaged = averaged_once(algorithm)

    def clipped(noise_multiplier):
        return CLIPPINGS[clipping](
            noise_multiplier, clients_per_round, clip_norm, seed, secure=secure_sums
        )

    def branch_mean():
        of_both = noise_multiplier  # changes and shares, without the count of clipped clients
        if clipping == "adaptive":
            of_both = noise_of_mean(noise_multiplier, clients_per_round)
        of_shares = noise_of_shares(of_both)
        changes = clipped(noise_without(noise_multiplier, of_shares))
        shares = ShareMeanFactory(of_shares, clients_per_round, seed, secure=secure_sums)
        pairs = FieldsFactory(value=changes, share=shares)
        return BranchMeanFactory(pairs, noise=of_shares / clients_per_round)

    mean = clipped(noise_multiplier)

    def blind(exchange: Exchange) -> Exchange:
        aggregator = exchange.aggregator
        if isinstance(aggregator, CountedFactory):
            aggregator = CountedFactory(mean, number=clients_per_round)
        elif isinstance(aggregator, BranchMeanFactory):
            aggregator = branch_mean()
        return dataclasses.replace(exchange, aggregator=aggregator)

    private = with_aggregator(averaged, mean).with_exchanges(blind)
    return stated(private, noise_multiplier, clients_per_round)


def stated(private: Algorithm, noise_multiplier: float, clients_per_round: int) -> Algorithm:
    """Returns the algorithm with its noise stated, and without reports beside its uploads."""
    return dataclasses.replace(
        private,
        report="none",
        noise_multiplier=noise_multiplier,
        made_for=private.made_for._replace(clients_per_round=clients_per_round),
    )


def averaged_once(algorithm: Algorithm) -> Algorithm:
    """Returns the algorithm with one plain mean a round, as an `Accountant` counts.

    Raises:
        AggregatorError: If clients upload in more than one exchange of a round, or the server needs
            more of uploads than their mean.
    """
    averaged = with_aggregator(algorithm, tff.aggregators.MeanFactory())
    names = [exchange.name for exchange in algorithm.exchanges if exchange.aggregator is not None]
    if len(names) > 1:
        raise AggregatorError(
            f"Clients of {algorithm.name} upload in {len(names)} exchanges of a round, "
            f"{', '.join(names)}: privacy needs one noisy mean a round. Send all in one exchange."
        )
    return averaged
