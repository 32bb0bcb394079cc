"""Means of compressed uploads, which the server decodes one at a time."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.local import trees
from tff_pfl.tracing.equality import elementwise_equality


class DecodedMeanFactory(tff.aggregators.WeightedAggregationFactory):
    """An aggregator that computes the weighted mean of decoded uploads.

    With `M` the type of uploads and `T` the type of decoded uploads, `next` is

        (<()@SERVER, {M}@CLIENTS, {float32}@CLIENTS>
         -> <state=()@SERVER, result=T@SERVER, measurements=()@SERVER>)

    Uploads are sent as `M`, and decoded when they are added up.

    Attributes:
        decode: `(M -> T)`.
        reason: The reason why another aggregator cannot replace this one.
    """

    reason = "its uploads are compressed, and the server decodes each by itself"

    def __init__(self, decode: Callable[[Any], Any]):
        """Creates the factory.

        Args:
            decode: `(M -> T)`, a TensorFlow function. `T` has only float tensors.
        """
        self.decode = decode

    def summands(self, upload: Any, weight: tf.Tensor) -> Any:
        """Computes a client's contribution to the sums."""
        return trees.scale(self.decode(upload), weight), weight

    def mean(self, sums: Any) -> Any:
        """Computes the aggregate from the sums over the clients."""
        total, weight = sums
        return trees.scale(total, 1.0 / weight)

    def of(self, stack: Any) -> Any:
        """Aggregates a `Stack`; see `aggregated`."""
        clients = enumerate(tf.unstack(stack.weight))
        summands = [self.summands(trees.row(stack.value, i), weight) for i, weight in clients]
        return self.mean(tf.nest.map_structure(lambda *leaves: tf.add_n(leaves), *summands))

    def create(self, value_type, weight_type) -> tff.templates.AggregationProcess:
        """See the base class."""
        compares = elementwise_equality()
        summands, mean = compares(self.summands), compares(self.mean)
        client_summands = tff.tensorflow.computation(summands, value_type, weight_type)
        sums_type = client_summands.type_signature.result
        specs = tff.types.type_to_tf_tensor_specs(sums_type)

        @tff.tensorflow.computation
        def zero():
            return tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), specs)

        @tff.tensorflow.computation(sums_type, (value_type, weight_type))
        def accumulate(sums, client):
            return trees.add(sums, summands(*client))

        merge = tff.tensorflow.computation(trees.add, sums_type, sums_type)
        report = tff.tensorflow.computation(mean, sums_type)

        @tff.federated_computation
        def initialize():
            return tff.federated_value((), tff.SERVER)

        @tff.federated_computation(
            initialize.type_signature.result,
            tff.types.FederatedType(value_type, tff.CLIENTS),
            tff.types.FederatedType(weight_type, tff.CLIENTS),
        )
        def decoded_mean(state, value, weight):
            clients = tff.federated_zip((value, weight))
            result = tff.federated_aggregate(clients, zero(), accumulate, merge, report)
            measurements = tff.federated_value((), tff.SERVER)
            return tff.templates.MeasuredProcessOutput(state, result, measurements)

        return tff.templates.AggregationProcess(initialize, decoded_mean)
