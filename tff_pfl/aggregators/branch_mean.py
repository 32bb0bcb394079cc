"""Means of which each part has weights of its own."""

import math
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff
import tree

from tff_pfl.aggregators.fields import Aggregator
from tff_pfl.aggregators.secure import is_plain_mean

# Of a part, over all clients: where less is known of it, it is not known.
_LEAST_SHARE = 1e-12
# What divides a noisy part is at least so many standard deviations of its noise.
_DEVIATIONS = 2.0


class Shares(NamedTuple):
    """What a client sends to a `BranchMeanFactory`.

    Attributes:
        value: Any structure of float tensors.
        share: The weights of its parts: a structure whose leaves stand for a tensor, or for a
            structure of tensors, in the same place of `value`. A leaf of rank `r` weighs the
            entries of the first `r` axes, so that a scalar weighs all of a tensor, and one of
            shape `[B]` its `B` branches. With privacy, the entries of a leaf sum to 1 at most.
    """

    value: Any
    share: Any


class BranchMeanFactory(tff.aggregators.WeightedAggregationFactory):
    """The mean `sum_i n_i s_i v_i / sum_i n_i s_i`, branch by branch.

    `n_i` is the client's weight and `s_i` its shares. It is 0 where the sum below the line is less
    than 1e-12: upload changes, and what nobody shares in stays as it is. (Equation (5) of pFedMB.)

    Both sums are one aggregate, of the pair `(s_i v_i, s_i)`, so that what clips, hides or adds
    noise to an upload does so to all that a client sends. An aggregator other than the plain sum
    receives `n_i` as the weight, or, if it is an unweighted one, weighs all clients the same. A
    common factor of both sums, as that between a sum and a mean, makes no difference.

    With `T` the type of `Shares.value` and `V` that of `Shares.share`, `next` is

        (F.state@SERVER, {<value=T,share=V>}@CLIENTS, {float32}@CLIENTS
         -> <state=F.state@SERVER, result=T@SERVER, measurements=F.measurements@SERVER>)

    Attributes:
        pairs: The aggregator of the pairs; `None` for their sum, times `n_i`.
        noise: See `mean_of_sums`.
    """

    def __init__(self, pairs: Aggregator | None = None, noise: float = 0.0):
        """Creates the factory.

        Args:
            pairs: Default the sum.
            noise: Of the shares' mean, which `pairs` adds; see `mean_of_sums`.
        """
        self.pairs = pairs
        self.noise = noise

    @property
    def is_default(self) -> bool:
        """Whether nothing but a sum or a plain mean was chosen."""
        return self.pairs is None or is_plain_mean(self.pairs)

    def around(self, pairs: Aggregator) -> "BranchMeanFactory":
        """The same with another aggregator of the pairs."""
        return BranchMeanFactory(pairs, self.noise)

    def create(self, value_type, weight_type) -> tff.templates.AggregationProcess:
        """See the base class.

        Raises:
            TypeError: If `value_type` has not the fields of `Shares`, or its shares do not fit.
        """
        is_struct = isinstance(value_type, tff.types.StructType)
        names = tff.structure.name_list_with_nones(value_type) if is_struct else None
        if names != list(Shares._fields):
            raise TypeError(f"A branch mean is of the fields {Shares._fields}, found {value_type}.")

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


def weighted(upload: Shares, weight: tf.Tensor) -> Shares:
    """`n_i s_i v_i` and `n_i s_i`, what is summed of a client."""
    share = tf.nest.map_structure(lambda s: s * tf.cast(weight, s.dtype), upload.share)
    return Shares(_each_part(_times, share, upload.value), share)


def longest(share: Any) -> float:
    """The largest norm of a client's shares, if those of each tensor sum to 1: `sqrt(tensors)`."""
    return math.sqrt(len(tf.nest.flatten(share)))


def mean_of_sums(sums: Shares, noise: float = 0.0):
    """The mean, of the two sums over the clients; 0 where that of the shares is too small.

    Of noisy shares, a quotient may be of noise alone. Therefore sums are divided by

        max( share, min(2 d, 1 / B) ),        d = noise * longest(share)

    where `d` is the standard deviation of a share's noise, and `1 / B` what each of `B` branches
    would have if all had the same: a branch whose share is hard to tell from 0 moves less.

    Args:
        sums: Without noise, of any scale; else the means over the clients.
        noise: The standard deviation, relative to `longest`.
    """
    limit = _DEVIATIONS * noise * longest(sums.share)

    def divided_by(share, leaf):
        if noise:
            return leaf / tf.maximum(share, min(limit, 1.0 / share.shape.num_elements()))
        known = tf.logical_not(share < tf.cast(_LEAST_SHARE, share.dtype))  # NaN stays
        return tf.where(known, leaf / tf.where(known, share, 1.0), 0.0)

    return _each_part(divided_by, sums.share, sums.value)


def _each_part(fn, share, value):
    """`fn(share, tensor)` of each tensor of `value` and the leaf of `share` that stands for it."""
    try:
        result = tree.map_structure_up_to(
            share,
            lambda s, part: tf.nest.map_structure(lambda leaf: fn(_spread(s, leaf), leaf), part),
            share,
            value,
        )
        tf.nest.assert_same_structure(result, value)  # else there are parts without a share
    except (ValueError, TypeError) as error:
        raise TypeError(f"Shares do not fit the value: {error}") from error
    return result


def _spread(share, leaf):
    """A share with trailing axes of 1, so that it multiplies the entries it stands for."""
    if share.shape != leaf.shape[: share.shape.rank]:
        raise TypeError(f"Shares of shape {share.shape} do not fit a tensor of {leaf.shape}.")
    trailing = [1] * (leaf.shape.rank - share.shape.rank)
    return tf.cast(tf.reshape(share, [*share.shape, *trailing]), leaf.dtype)


def _times(share, leaf):
    return share * leaf
