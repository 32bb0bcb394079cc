"""Branch means of noisy sums, with separate clipping and noise for shares.

The shares of each tensor sum to 1, so their norm is at most `longest(share)`, regardless of the
length of changes. In one vector with the changes, the shares would take most of the clipping norm,
and the noise would be relative to them. Separate noise multipliers for both are as private as one
vector with the noise `z` (the noise of the mean, without the count, if clipping adapts), because
scaling both to the same norm makes them one vector:

    1 / z^2 = 1 / z_changes^2 + 1 / z_shares^2

The shares get a quarter of the left side. A quotient tolerates more noise in its denominator, which
changes the distance that a branch moves, but not its direction.
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
    """Computes the shares' noise `z_shares` from `z`."""
    return noise_multiplier / math.sqrt(_PART_OF_SHARES)


class ShareMeanFactory(tff.aggregators.UnweightedAggregationFactory):
    """An aggregator that applies `fixed_clipping` to shares, with their largest possible norm."""

    def __init__(
        self, noise_multiplier: float, clients_per_round: int, seed: int | None, *, secure: bool
    ):
        """Creates the factory; see `fixed_clipping` for the arguments."""

        def mean(norm):
            noise = noise_multiplier, clients_per_round, norm, seed
            return fixed_clipping(*noise, secure=secure, stream=NOISE_OF_SHARES)

        self._mean = mean

    def create(self, value_type) -> tff.templates.AggregationProcess:
        """See the base class."""
        return self._mean(longest(tff.structure.flatten(value_type))).create(value_type)


def as_one_vector(upload: Shares, clip_norm: float) -> Shares:
    """Scales changes and shares to their parts of the clipping norm, so they are not clipped."""
    pair = weighted(upload, tf.constant(1.0))
    value = trees.clip(pair.value, clip_norm * math.sqrt(1.0 - _PART_OF_SHARES))
    return Shares(value, trees.scale(pair.share, _share_scale(pair.share, clip_norm)))


def from_one_vector(mean: Any, clip_norm: float) -> Shares:
    """Converts the mean of vectors of `as_one_vector` back to changes and shares."""
    value, share = mean
    return Shares(value, trees.scale(share, 1.0 / _share_scale(share, clip_norm)))


def _share_scale(share, clip_norm):
    return clip_norm * math.sqrt(_PART_OF_SHARES) / longest(share)
