"""Central privacy: the server adds noise to the mean of uploads, and releases nothing else."""

import dataclasses
from collections.abc import Callable, Mapping

import tensorflow_federated as tff

from tff_pfl.aggregators import BranchMeanFactory, FieldsFactory, Noise
from tff_pfl.aggregators.means import with_noise
from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.ranges import above, at_least, takes, whole
from tff_pfl.arguments.recipes import remembering
from tff_pfl.privacy.branches import ShareMeanFactory, noise_of_shares
from tff_pfl.privacy.noise import (
    adaptive_clipping,
    fixed_clipping,
    noise_of_mean,
    noise_without,
)
from tff_pfl.templates import Algorithm, Exchange, with_aggregator
from tff_pfl.templates.errors import AggregatorError

CLIPPINGS: Mapping[str, Callable[..., tff.aggregators.UnweightedAggregationFactory]] = {
    "adaptive": adaptive_clipping,
    "fixed": fixed_clipping,
}


@remembering("privacy", "central")
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

    A client's whole upload, with all its fields, is one vector. The vector is clipped to the
    clipping norm. The server, which is trusted with the uploads, adds Gaussian noise to their sum
    and divides it by `clients_per_round`. All clients have the same weight, because weights would
    reveal clients' data. With a `BranchMeanFactory`, shares have their own noise (see
    `tff_pfl.privacy.branches`). With a `CountedFactory`, the number is `clients_per_round`. Clients
    report nothing else, so a round's metrics lack counts and losses. `Accountant` computes epsilon.

    Args:
        algorithm: An algorithm whose uploads are averaged.
        noise_multiplier: The standard deviation of the sum's noise divided by the clipping norm.
        clients_per_round: The expected number of clients.
        clipping: "adaptive", towards the median norm of uploads, or "fixed".
        clip_norm: The clipping norm, or its initial value for adaptive clipping.
        secure_sums: Whether secure sums add up the uploads. The server then sees no upload, and
            must only be trusted to add the noise to the sum.
        seed: The seed of the noise for reproducible simulations, or `None` for noise that is not
            reproducible.

    Raises:
        AggregatorError: The server needs more than the mean of uploads, or a round has no uploads
            or several.
        ValueError: A value is out of range, or the noise is too large for so few clients.
    """
    check_names("clipping", [clipping], CLIPPINGS)

    def clipped(noise_multiplier):
        return CLIPPINGS[clipping](
            noise_multiplier, clients_per_round, clip_norm, seed, secure=secure_sums
        )

    def branch_mean():
        both_noise = noise_multiplier  # The noise of changes and shares, without the count's.
        if clipping == "adaptive":
            both_noise = noise_of_mean(noise_multiplier, clients_per_round)
        share_noise = noise_of_shares(both_noise)
        changes = clipped(noise_without(noise_multiplier, share_noise))
        shares = ShareMeanFactory(share_noise, clients_per_round, seed, secure=secure_sums)
        pairs = FieldsFactory(value=changes, share=shares)
        return BranchMeanFactory(pairs, noise=share_noise / clients_per_round), None

    def mean():
        return clipped(noise_multiplier), None

    return noisy(algorithm, Noise(mean, branch_mean, clients_per_round), noise_multiplier)


def noisy(algorithm: Algorithm, noise: Noise, noise_multiplier: float) -> Algorithm:
    """Adds noise to the one mean of uploads in a round, declares it, and reports nothing else."""

    def change(exchange: Exchange) -> Exchange:
        if exchange.aggregator is None:
            return exchange
        aggregator, send = with_noise(exchange.aggregator, noise)
        return dataclasses.replace(exchange, aggregator=aggregator, send=send or exchange.send)

    private = averaged_once(algorithm).with_exchanges(change)
    made_for = private.made_for._replace(clients_per_round=noise.clients_per_round)
    return dataclasses.replace(private, made_for=made_for).with_declared_noise(noise_multiplier)


def averaged_once(algorithm: Algorithm) -> Algorithm:
    """Replaces the aggregator by a plain mean, and checks that there is one per round.

    An `Accountant` assumes a single noisy mean in each round.

    Raises:
        AggregatorError: Clients upload in more than one exchange of a round, or the server needs
            more than the mean of uploads.
    """
    averaged = with_aggregator(algorithm, tff.aggregators.MeanFactory())
    names = [exchange.name for exchange in algorithm.exchanges if exchange.aggregator is not None]
    if len(names) > 1:
        raise AggregatorError(
            f"Clients of {algorithm.name} upload in {len(names)} exchanges of a round, "
            f"{', '.join(names)}, but privacy needs one noisy mean per round. Combine the uploads "
            "in one exchange."
        )
    return averaged
