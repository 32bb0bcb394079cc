"""The uploads of a cohort side by side: for servers that treat each client by itself."""

from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.local import trees


class Stack(NamedTuple):
    """What the server receives of `k` clients, in the order of the cohort.

    Attributes:
        value: The structure of an upload, each tensor with a leading axis of `k`.
        weight: float32 `[k]`, each client's weight. That of a client which was left out is 0, its
            upload zeros.
    """

    value: Any
    weight: tf.Tensor

    def accepted(self, client_ids) -> Any:
        """`value` of the clients that were not left out, in the order of their ids; in TensorFlow.

        Args:
            client_ids: int32 `[k]`, which `value` has.
        """
        rows = tf.where(self.weight > 0.0)[:, 0]
        rows = tf.gather(rows, tf.argsort(tf.gather(client_ids, rows)))
        return trees.row(self.value, rows)


class StackFactory(tff.aggregators.WeightedAggregationFactory):
    """Aggregates values of type `T` to a `Stack`, nothing being summed.

    The server sees every upload; those that hold their `ClientContext.client_id` tell whose they
    are.

    With `T[k]` the type of `T`'s tensors with an unknown leading dimension, `next` is

        (<()@SERVER, {T}@CLIENTS, {float32}@CLIENTS>
         -> <state=()@SERVER, result=<value=T[k],weight=float32[k]>@SERVER, measurements=()@SERVER>)

    The stock runtime copies all uploads so far for each client that it adds; the graph runtime
    copies each once.

    Attributes:
        reason: Why another aggregator cannot take its place.
    """

    reason = "its server needs every upload by itself"

    def create(self, value_type, weight_type) -> tff.templates.AggregationProcess:
        """See the base class.

        Raises:
            TypeError: If `T` holds something else than tensors of known shapes.
        """
        member = tff.types.StructWithPythonType(
            [("value", value_type), ("weight", weight_type)], Stack
        )
        if tff.types.contains(member, _cannot_be_stacked):
            raise TypeError(f"Only tensors of known shapes can be stacked, found {value_type}.")
        specs = tff.types.type_to_tf_tensor_specs(member)

        @tff.tensorflow.computation
        def nothing():
            return tf.nest.map_structure(lambda spec: trees.no_rows(spec.shape, spec.dtype), specs)

        stack_type = nothing.type_signature.result

        @tff.tensorflow.computation(stack_type, member)
        def accumulate(stack, client):
            return tf.nest.map_structure(
                lambda rows, row: tf.concat([rows, row[tf.newaxis]], axis=0), stack, client
            )

        @tff.tensorflow.computation(stack_type, stack_type)
        def merge(first, second):
            return tf.nest.map_structure(lambda a, b: tf.concat([a, b], axis=0), first, second)

        @tff.tensorflow.computation(stack_type)
        def report(stack):
            return stack

        @tff.federated_computation
        def initialize():
            return tff.federated_value((), tff.SERVER)

        @tff.federated_computation(
            initialize.type_signature.result,
            tff.types.FederatedType(value_type, tff.CLIENTS),
            tff.types.FederatedType(weight_type, tff.CLIENTS),
        )
        def stack(state, value, weight):
            clients = tff.federated_zip(Stack(value, weight))
            result = tff.federated_aggregate(clients, nothing(), accumulate, merge, report)
            measurements = tff.federated_value((), tff.SERVER)
            return tff.templates.MeasuredProcessOutput(state, result, measurements)

        return tff.templates.AggregationProcess(initialize, stack)


def _cannot_be_stacked(type_spec: tff.types.Type) -> bool:
    if isinstance(type_spec, tff.types.TensorType):
        return not tf.TensorShape(type_spec.shape).is_fully_defined()
    return not isinstance(type_spec, tff.types.StructType)
