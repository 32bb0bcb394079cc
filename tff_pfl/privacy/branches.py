"""Branch means of noisy sums: a client's shares are a vector of their own.

Those of each tensor sum to 1, so that they are at most `longest(share)` long, whatever changes are.
In one vector with these, they would take most of the clipping norm, and the noise would be that of
their length. With noise multipliers of their own, both are together as private as one vector with
the noise `z` (that of the mean alone, if clipping adapts), as scaling both to the same norm makes
them one:

    1 / z^2 = 1 / z_changes^2 + 1 / z_shares^2

of which the shares have a quarter: a quotient bears more noise below the line than above it, as
that changes how far a branch moves, and not where to.
"""

import math
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.aggregators import Shares
from tff_pfl.aggregators.branch_mean import longest, weighted
from tff_pfl.local import trees
from tff_pfl.local.seeds import NOISE_OF_SHARES
from tff_pfl.privacy.noise import fixed_clipping

_PART_OF_SHARES = 0.25


def noise_of_shares(noise_multiplier: float) -> float:
    """`z_shares`, of a `z`."""
    return noise_multiplier / math.sqrt(_PART_OF_SHARES)


class ShareMeanFactory(tff.aggregators.UnweightedAggregationFactory):
    """`fixed_clipping` of shares, to what is their largest norm."""

    def __init__(
        self, noise_multiplier: float, clients_per_round: int, seed: int | None, **options
    ):
        """Creates the factory.

        Args:
            noise_multiplier: See `fixed_clipping`.
            clients_per_round: See `fixed_clipping`.
            seed: See `fixed_clipping`.
            **options: Those of `fixed_clipping`.
        """
        self._noise = noise_multiplier, clients_per_round
        self._seed = seed
        self._options = options

    def create(self, value_type) -> tff.templates.AggregationProcess:
        """See the base class."""
        norm = longest(tff.structure.flatten(value_type))
        mean = fixed_clipping(
            *self._noise, norm, self._seed, stream=NOISE_OF_SHARES, **self._options
        )
        return mean.create(value_type)


def as_one_vector(upload: Shares, clip_norm: float) -> Shares:
    """The pair of both, each with its part of the clipping norm: what clipping leaves as it is."""
    pair = weighted(upload, tf.constant(1.0))
    value = trees.clip(pair.value, clip_norm * math.sqrt(1.0 - _PART_OF_SHARES))
    return Shares(value, trees.scale(pair.share, _share_scale(pair.share, clip_norm)))


def of_one_vector(mean: Any, clip_norm: float) -> Shares:
    """The means of both, of the mean of `as_one_vector`."""
    value, share = mean
    return Shares(value, trees.scale(share, 1.0 / _share_scale(share, clip_norm)))


def _share_scale(share, clip_norm):
    return clip_norm * math.sqrt(_PART_OF_SHARES) / longest(share)
