"""Inner-product manipulation: attackers that know the honest uploads.

An attacker's client work does not have the uploads of other clients, but the aggregation does.
During the aggregation, attackers receive the mean of the honest uploads and send other uploads,
before the server's aggregator sees any upload.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.aggregators import Aggregator, DecodedMeanFactory
from tff_pfl.arguments.ranges import at_least, each, takes, whole
from tff_pfl.attacks.attackers import (
    ATTACKS,
    are_attacked,
    is_attacker,
    with_attacked_exchange,
)
from tff_pfl.templates import Algorithm, Exchange
from tff_pfl.templates.errors import AggregatorError


@ATTACKS.register("inner_product")
@takes(client_ids=each(whole(0)), epsilon=at_least(0))
def inner_product(
    algorithm: Algorithm,
    *,
    client_ids: Sequence[int] = (),
    epsilon: float = 1.0,
    exchange_name: str = "train",
) -> Algorithm:
    """Makes attackers upload `-epsilon` times the mean of the honest uploads.

    The inner product of the aggregate and the honest aggregate is then negative. (Xie, Koyejo,
    Gupta, "Fall of empires: breaking Byzantine-tolerant SGD by inner product manipulation", UAI
    2019.) The mean is the weighted mean over the honest clients of the same round, or 0 without
    honest clients. Scalars, such as a loss, do not change.

    Choose the aggregator before the attack, which wraps it. Each upload has a mark for attackers,
    which adds 4 bytes to the reported bytes.

    Args:
        algorithm: Any algorithm.
        client_ids: The attackers.
        epsilon: The factor. Use 0.1 against rules of distances, which then accept the upload as
            honest, and 10 or more against the mean.
        exchange_name: The exchange whose uploads are changed.

    Raises:
        AggregatorError: Clients encode their uploads, or the algorithm is private.
        TemplateError: Clients upload nothing that can be attacked.
        UnknownNameError: The algorithm has no exchange with this name.
    """

    def change(exchange: Exchange) -> Exchange:
        if reason := _reason_against(algorithm, exchange):
            raise AggregatorError(
                f"The attack inner_product on {algorithm.name} (exchange {exchange.name!r}) needs "
                f"the mean of the honest uploads, but {reason}"
            )

        def client_work(message, state, examples, context):
            output = exchange.client_work(message, state, examples, context)
            attacks = is_attacker(client_ids, context.client_id)
            return output._replace(upload=Marked(output.upload, tf.cast(attacks, tf.float32)))

        aggregator = InnerProductFactory(exchange.aggregator, epsilon)
        return dataclasses.replace(exchange, client_work=client_work, aggregator=aggregator)

    return with_attacked_exchange(algorithm, client_ids, exchange_name, change)


class Marked(NamedTuple):
    """An upload to an `InnerProductFactory`.

    Attributes:
        value: The client's upload.
        attacks: float32 scalar, 1 for an attacker and 0 for an honest client.
    """

    value: Any
    attacks: tf.Tensor


class InnerProductFactory(tff.aggregators.WeightedAggregationFactory):
    """An aggregator that applies the attack to `Marked` uploads, then another aggregator.

    With `T` the type of the uploads and `F` the process of the other aggregator, `next` is

        (F.state@SERVER, {<value=T,attacks=float32>}@CLIENTS, {float32}@CLIENTS
         -> <state=F.state@SERVER, result=F.result@SERVER, measurements=F.measurements@SERVER>)

    Attributes:
        reason: The reason why another aggregator cannot replace this one.
    """

    reason = "an attack wraps it; choose the aggregator before the attack"

    def __init__(self, aggregator: Aggregator, epsilon: float):
        """Creates the factory.

        Args:
            aggregator: The aggregator of the uploads.
            epsilon: The factor: attackers send `-epsilon` times the mean of the honest uploads.
        """
        self._aggregator = aggregator
        self._epsilon = epsilon

    def create(self, value_type, weight_type) -> tff.templates.AggregationProcess:
        """See the base class."""
        is_weighted = isinstance(self._aggregator, tff.aggregators.WeightedAggregationFactory)
        inner = self._aggregator.create(value_type.value, *[weight_type] * is_weighted)

        @tff.tensorflow.computation(value_type, weight_type)
        def weigh(marked, weight):
            honest = (1.0 - marked.attacks) * weight
            return [leaf * tf.cast(honest, leaf.dtype) for leaf in _attacked(marked.value)], honest

        @tff.tensorflow.computation(weigh.type_signature.result)
        def divide(sums):
            totals, weight = sums
            return [tf.math.divide_no_nan(leaf, tf.cast(weight, leaf.dtype)) for leaf in totals]

        @tff.tensorflow.computation(value_type, divide.type_signature.result)
        def attack(marked, honest_mean):
            means = iter(honest_mean)

            sent = [
                tf.where(marked.attacks > 0.0, -self._epsilon * next(means), leaf)
                if is_attacked
                else leaf
                for leaf, is_attacked in _leaves(marked.value)
            ]
            return tf.nest.pack_sequence_as(marked.value, sent)

        @tff.federated_computation(
            inner.initialize.type_signature.result,
            tff.types.FederatedType(value_type, tff.CLIENTS),
            tff.types.FederatedType(weight_type, tff.CLIENTS),
        )
        def aggregate(state, marked, weight):
            sums = tff.federated_sum(tff.federated_map(weigh, (marked, weight)))
            honest_mean = tff.federated_broadcast(tff.federated_map(divide, sums))
            value = tff.federated_map(attack, (marked, honest_mean))
            return inner.next(state, value, *[weight] * is_weighted)

        return tff.templates.AggregationProcess(inner.initialize, aggregate)


def _reason_against(algorithm: Algorithm, exchange: Exchange) -> str | None:
    """Returns why the attack is impossible and what to do, or `None` if it is possible."""
    if algorithm.noise_multiplier is not None:
        return (
            "the epsilon of a private algorithm needs uploads that depend on only one client. "
            "Choose another attack."
        )
    if exchange.send is not None:
        return "clients encode their uploads before they send them. Choose another attack."
    fields = getattr(exchange.aggregator, "factories", {"": exchange.aggregator}).values()
    if any(isinstance(field, DecodedMeanFactory) for field in fields):
        return "clients compress their uploads. Choose another attack, before the compression."
    return None


def _attacked(value: Any) -> list[tf.Tensor]:
    return [leaf for leaf, is_attacked in _leaves(value) if is_attacked]


def _leaves(value: Any) -> list[tuple[tf.Tensor, bool]]:
    """Returns each tensor with whether attackers change it."""
    return list(zip(tf.nest.flatten(value), are_attacked(value), strict=True))
