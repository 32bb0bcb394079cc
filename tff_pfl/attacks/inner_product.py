"""Inner-product manipulation: attackers that know the honest uploads.

An attacker's client work knows nothing of other clients, but the aggregation does. There, attackers
receive the mean of the honest uploads, and send another upload, before the server's aggregator sees
any.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.aggregators import Aggregator, DecodedMeanFactory
from tff_pfl.attacks.attackers import (
    ATTACKS,
    are_attacked,
    is_attacker,
    with_attacked_exchange,
)
from tff_pfl.ranges import at_least, each, takes, whole
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
    """Has some clients upload `-epsilon` times the mean of the honest uploads.

    The inner product of the aggregate with the honest one is then negative. (Xie, Koyejo, Gupta,
    "Fall of empires: breaking Byzantine-tolerant SGD by inner product manipulation", UAI 2019.) The
    mean is over the honest clients of the same round, by their weights; 0 if there are none.
    Scalars, such as a loss, stay.

    Choose the aggregator before: the attack surrounds it. A mark of attackers travels beside the
    upload, and adds 4 bytes to those reported.

    Args:
        algorithm: Any algorithm.
        client_ids: The attackers.
        epsilon: 0.1 to mislead rules of distances, which take the upload for an honest one; 10 or
            more against the mean.
        exchange_name: The exchange whose uploads are changed.

    Raises:
        AggregatorError: If clients encode their uploads, or the algorithm is private.
        TemplateError: If they upload nothing that could be attacked.
        UnknownNameError: If there is no such exchange.
    """

    def change(exchange: Exchange) -> Exchange:
        if reason := _reason_against(algorithm, exchange):
            raise AggregatorError(
                f"The attack inner_product on {algorithm.name} (exchange {exchange.name!r}) sends "
                f"a mean of the honest uploads, but {reason}"
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
        value: Its upload.
        attacks: float32 scalar, 1 for an attacker and 0 for an honest client.
    """

    value: Any
    attacks: tf.Tensor


class InnerProductFactory(tff.aggregators.WeightedAggregationFactory):
    """Aggregates the `value`s of `Marked` uploads by another aggregator, after the attack.

    With `T` the type of the uploads and `F` the process of the other aggregator, `next` is

        (F.state@SERVER, {<value=T,attacks=float32>}@CLIENTS, {float32}@CLIENTS
         -> <state=F.state@SERVER, result=F.result@SERVER, measurements=F.measurements@SERVER>)

    Attributes:
        reason: Why another aggregator cannot take its place.
    """

    reason = "an attack surrounds it; choose the aggregator before the attack"

    def __init__(self, aggregator: Aggregator, epsilon: float):
        """Creates the factory.

        Args:
            aggregator: Aggregates the uploads.
            epsilon: Attackers send `-epsilon` times the mean of the others.
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
    """Returns why the attack is impossible, and what to do; `None` if it is possible."""
    if algorithm.noise_multiplier is not None:
        return (
            "the epsilon of a private algorithm needs uploads that depend on one client alone. "
            "Choose another attack."
        )
    if exchange.send is not None:
        return "clients send something else in their place. Choose another attack."
    fields = getattr(exchange.aggregator, "factories", {"": exchange.aggregator}).values()
    if any(isinstance(field, DecodedMeanFactory) for field in fields):
        return "clients send compressed ones. Choose another attack, before the compression."
    return None


def _attacked(value: Any) -> list[tf.Tensor]:
    return [leaf for leaf, is_attacked in _leaves(value) if is_attacked]


def _leaves(value: Any) -> list[tuple[tf.Tensor, bool]]:
    """Returns each tensor, and whether attackers change it."""
    return list(zip(tf.nest.flatten(value), are_attacked(value), strict=True))
