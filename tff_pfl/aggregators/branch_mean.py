"""Means of which each part has weights of its own."""

from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff
import tree

from tff_pfl.aggregators.fields import FieldsFactory

# Of the weights of a part, over all clients, below which nothing is known of it.
_LEAST_WEIGHT = 1e-12


class Shares(NamedTuple):
    """What a client sends to a `BranchMeanFactory`.

    Attributes:
        value: Any structure of float tensors.
        share: The weights of its parts: a structure whose leaves stand for a tensor, or for a
            structure of tensors, in the same place of `value`. A leaf of rank `r` weighs the
            entries of the first `r` axes, so that a scalar weighs all of a tensor, and one of
            shape `[B]` its `B` branches.
    """

    value: Any
    share: Any


class BranchMeanFactory(tff.aggregators.WeightedAggregationFactory):
    """The mean `sum_i n_i s_i v_i / sum_i n_i s_i`, branch by branch.

    `n_i` is the client's weight and `s_i` its shares. It is 0 where the sum of the weights is below
    1e-12: upload changes, and what nobody shares in stays as it is. (Equation (5) of pFedMB.)

    It is made of two sums, for which any factory can stand: secure, compressed or private ones.

    With `T` the type of `Shares.value` and `V` that of `Shares.share`, `next` is

        (<value=F.state,share=G.state>@SERVER, {<value=T,share=V>}@CLIENTS, {float32}@CLIENTS
         -> <state=<value=F.state,share=G.state>@SERVER, result=T@SERVER,
             measurements=<value=F.measurements,share=G.measurements>@SERVER>)

    Attributes:
        reason: Why another aggregator cannot take its place.
    """

    reason = "clients weigh differently in each branch"

    def __init__(
        self,
        value_sum_factory: tff.aggregators.UnweightedAggregationFactory | None = None,
        share_sum_factory: tff.aggregators.UnweightedAggregationFactory | None = None,
    ):
        """Creates the factory.

        Args:
            value_sum_factory: Of the sum above; default `tff.aggregators.SumFactory`.
            share_sum_factory: Of the sum below; the same default.
        """
        self._sums = FieldsFactory(
            value=value_sum_factory or tff.aggregators.SumFactory(),
            share=share_sum_factory or tff.aggregators.SumFactory(),
        )

    def create(self, value_type, weight_type) -> tff.templates.AggregationProcess:
        """See the base class.

        Raises:
            TypeError: If `value_type` has not the fields of `Shares`, or its shares do not fit.
        """
        is_struct = isinstance(value_type, tff.types.StructType)
        names = tff.structure.name_list_with_nones(value_type) if is_struct else None
        if names != list(Shares._fields):
            raise TypeError(f"A branch mean is of the fields {Shares._fields}, found {value_type}.")

        weigh = tff.tensorflow.computation(weighted, value_type, weight_type)
        sums = self._sums.create(weigh.type_signature.result, weight_type)

        @tff.tensorflow.computation(sums.next.type_signature.result.result.member)
        def divide(totals):
            return mean_of_sums(Shares(**totals))

        @tff.federated_computation(
            sums.initialize.type_signature.result,
            tff.types.FederatedType(value_type, tff.CLIENTS),
            tff.types.FederatedType(weight_type, tff.CLIENTS),
        )
        def branch_mean(state, value, weight):
            output = sums.next(state, tff.federated_map(weigh, (value, weight)), weight)
            return tff.templates.MeasuredProcessOutput(
                output.state, tff.federated_map(divide, output.result), output.measurements
            )

        return tff.templates.AggregationProcess(sums.initialize, branch_mean)


def weighted(upload: Shares, weight: tf.Tensor) -> Shares:
    """`n_i s_i v_i` and `n_i s_i`, what is summed of a client."""
    share = tf.nest.map_structure(lambda s: s * tf.cast(weight, s.dtype), upload.share)
    return Shares(_each_part(_times, share, upload.value), share)


def mean_of_sums(sums: Shares):
    """The mean, of the two sums over the clients."""
    return _each_part(_divided_by, sums.share, sums.value)


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


def _divided_by(share, leaf):
    known = share >= _LEAST_WEIGHT
    return tf.where(known, leaf / tf.where(known, share, 1.0), 0.0)
