"""Weighted means in which each part of an upload has its own weight."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff
import tree

from tff_pfl.aggregators.decoded import DecodedMeanFactory
from tff_pfl.aggregators.means import REPLACED, Noise, aggregated, is_plain_mean
from tff_pfl.aggregators.secure import Aggregator
from tff_pfl.local import trees

# A sum of shares below this counts as 0.
_LEAST_SHARE = 1e-12
# Noisy parts are divided by at least this many standard deviations of their noise.
_DEVIATIONS = 2.0


class Shares(NamedTuple):
    """An upload to a `BranchMeanFactory`.

    Attributes:
        value: Any structure of float tensors.
        share: The weights of the parts of `value`: a structure in which each leaf stands for a
            tensor, or a structure of tensors, at the same place in `value`. A leaf of rank `r`
            weights the entries of the first `r` axes: a scalar weights a whole tensor, and a leaf
            of shape `[B]` its `B` branches. With privacy, the sum of a leaf is at most 1.
    """

    value: Any
    share: Any


class BranchMeanFactory(tff.aggregators.WeightedAggregationFactory):
    """An aggregator that computes the mean `sum_i n_i s_i v_i / sum_i n_i s_i` of each branch.

    `n_i` is the client's weight and `s_i` its shares. The mean is 0 where the denominator is below
    1e-12, so if clients upload changes, branches without shares do not move (equation (5) of
    pFedMB).

    Both sums are one aggregate, of the pair `(s_i v_i, s_i)`, so that clipping, noise and secure
    sums apply to the whole upload. An aggregator other than the plain sum receives `n_i` as the
    weight, or weights all clients equally if it is unweighted. A common factor of both sums, such
    as the factor between a sum and a mean, has no effect.

    With `T` the type of `Shares.value` and `V` the type of `Shares.share`, `next` is

        (F.state@SERVER, {<value=T,share=V>}@CLIENTS, {float32}@CLIENTS
         -> <state=F.state@SERVER, result=T@SERVER, measurements=F.measurements@SERVER>)

    Attributes:
        pairs: The aggregator of the pairs. `None` sums them, weighted by `n_i`.
        noise: See `mean_of_sums`.
    """

    def __init__(self, pairs: Aggregator | None = None, noise: float = 0.0):
        """Creates the factory.

        Args:
            pairs: The aggregator of the pairs. Default: the sum.
            noise: The noise that `pairs` adds to the mean of the shares; see `mean_of_sums`.
        """
        self.pairs = pairs
        self.noise = noise

    @property
    def reason(self) -> str | None:
        """Why another aggregator cannot replace `pairs`: it is no plain mean or sum."""
        return None if self.pairs is None or is_plain_mean(self.pairs) else REPLACED

    def around(self, mean: Aggregator) -> "BranchMeanFactory":
        """Returns a copy with another aggregator of the pairs."""
        return BranchMeanFactory(mean, self.noise)

    def averaged_parts(self) -> list[str]:
        """Returns the field of the values, unless `pairs` was replaced."""
        return ["value"] if self.reason is None else []

    def decoding(self, decode: Callable[[Any], Any]) -> "DecodedBranchMeanFactory":
        """Returns the aggregator of `Shares` whose values the server decodes."""
        return DecodedBranchMeanFactory(decode)

    def with_noise(self, noise: Noise) -> tuple[Aggregator, Callable | None]:
        """Returns the noisy branch mean; see `Noise`."""
        return noise.branch_mean()

    def of(self, stack: Any) -> Any:
        """Aggregates a `Stack`; see `aggregated`."""
        weights = stack.weight if self.pairs is None else tf.ones_like(stack.weight)
        clients = enumerate(tf.unstack(weights))
        pairs = [weighted(trees.row(stack.value, i), weight) for i, weight in clients]
        factory = self.pairs or tff.aggregators.SumFactory()
        sums = aggregated(factory, stack._replace(value=trees.stack(pairs)))
        return mean_of_sums(sums, self.noise)

    def create(self, value_type, weight_type) -> tff.templates.AggregationProcess:
        """See the base class.

        Raises:
            TypeError: `value_type` does not have the fields of `Shares`, or its shares do not fit.
        """
        is_struct = isinstance(value_type, tff.types.StructType)
        names = tff.structure.name_list_with_nones(value_type) if is_struct else None
        if names != list(Shares._fields):
            raise TypeError(f"A branch mean takes the fields {Shares._fields}, found {value_type}.")

        factory = self.pairs or tff.aggregators.SumFactory()
        is_weighted = isinstance(factory, tff.aggregators.WeightedAggregationFactory)

        @tff.tensorflow.computation(value_type, weight_type)
        def pair(upload, weight):
            return weighted(upload, weight if self.pairs is None else tf.ones_like(weight))

        pairs = factory.create(pair.type_signature.result, *[weight_type] * is_weighted)

        @tff.tensorflow.computation(pairs.next.type_signature.result.result.member)
        def divide(totals):
            sums = Shares(**totals) if isinstance(totals, dict) else Shares(*totals)
            return mean_of_sums(sums, self.noise)

        @tff.federated_computation(
            pairs.initialize.type_signature.result,
            tff.types.FederatedType(value_type, tff.CLIENTS),
            tff.types.FederatedType(weight_type, tff.CLIENTS),
        )
        def branch_mean(state, value, weight):
            uploads = tff.federated_map(pair, (value, weight))
            output = pairs.next(state, uploads, *[weight] * is_weighted)
            return tff.templates.MeasuredProcessOutput(
                output.state, tff.federated_map(divide, output.result), output.measurements
            )

        return tff.templates.AggregationProcess(pairs.initialize, branch_mean)


class DecodedBranchMeanFactory(DecodedMeanFactory):
    """A `BranchMeanFactory` for `Shares` whose values are compressed."""

    def summands(self, upload: Shares, weight: tf.Tensor) -> Shares:
        """See the base class."""
        return weighted(Shares(self.decode(upload.value), upload.share), weight)

    def mean(self, sums: Shares) -> Any:
        """See the base class."""
        return mean_of_sums(Shares(*sums))


def weighted(upload: Shares, weight: tf.Tensor) -> Shares:
    """Computes a client's contribution to both sums, `n_i s_i v_i` and `n_i s_i`."""
    share = tf.nest.map_structure(lambda s: s * tf.cast(weight, s.dtype), upload.share)
    return Shares(_each_part(_times, share, upload.value), share)


def longest(share: Any) -> float:
    """Returns the largest norm of shares whose leaves sum to 1: `sqrt(number of leaves)`."""
    return math.sqrt(len(tf.nest.flatten(share)))


def mean_of_sums(sums: Shares, noise: float = 0.0):
    """Divides the two sums over the clients, with 0 where the sum of the shares is too small.

    A noisy share may consist of noise only. Noisy sums are therefore divided by

        max( share, min(2 d, 1 / B) ),        d = noise * longest(share)

    where `d` is the standard deviation of a share's noise, and `1 / B` is each share of `B` equal
    branches. A branch whose share cannot be distinguished from 0 moves less.

    Args:
        sums: The sums, up to a common factor. With noise, the means over the clients.
        noise: The standard deviation of the shares' noise, relative to `longest`.
    """
    limit = _DEVIATIONS * noise * longest(sums.share)

    def divided_by(share, leaf):
        if noise:
            return leaf / tf.maximum(share, min(limit, 1.0 / share.shape.num_elements()))
        known = tf.logical_not(share < tf.cast(_LEAST_SHARE, share.dtype))  # Keeps NaN.
        return tf.where(known, leaf / tf.where(known, share, 1.0), 0.0)

    return _each_part(divided_by, sums.share, sums.value)


def _each_part(fn, share, value):
    """Maps `fn(share, tensor)` over the tensors of `value` and their shares."""
    try:
        result = tree.map_structure_up_to(
            share,
            lambda s, part: tf.nest.map_structure(lambda leaf: fn(_spread(s, leaf), leaf), part),
            share,
            value,
        )
        tf.nest.assert_same_structure(result, value)  # Each part needs a share.
    except (ValueError, TypeError) as error:
        raise TypeError(f"Shares do not fit the value: {error}") from error
    return result


def _spread(share, leaf):
    """Adds trailing axes of length 1 to a share, so that it broadcasts to its tensor."""
    if share.shape != leaf.shape[: share.shape.rank]:
        raise TypeError(f"Shares of shape {share.shape} do not fit a tensor of {leaf.shape}.")
    trailing = [1] * (leaf.shape.rank - share.shape.rank)
    return tf.cast(tf.reshape(share, [*share.shape, *trailing]), leaf.dtype)


def _times(share, leaf):
    return share * leaf
