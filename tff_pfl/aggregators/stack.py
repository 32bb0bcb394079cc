"""Stacks the uploads of a cohort along a leading axis, and aggregates them by rules."""

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.aggregators.means import REPLACED
from tff_pfl.local import trees
from tff_pfl.tracing.equality import elementwise_equality


class Stack(NamedTuple):
    """The uploads of `k` clients, in the order of the cohort.

    Attributes:
        value: The structure of an upload, each tensor with a leading axis of `k`.
        weight: float32 `[k]`, each client's weight. A client that was left out has weight 0 and an
            upload of zeros.
    """

    value: Any
    weight: tf.Tensor

    def accepted(self, client_ids) -> Any:
        """Returns the `value` rows of the clients that were not left out, sorted by id.

        Args:
            client_ids: int32 `[k]`, the ids of all clients of the stack, in its order.

        Raises:
            ValueError: `client_ids` has another shape.
        """
        shape, expected = tf.TensorShape(np.shape(client_ids)), self.weight.shape
        if not shape.is_compatible_with(expected) or shape.num_elements() == 0 != expected[0]:
            raise ValueError(
                "client_ids must be the ids of all clients of the stack, such as "
                f"stack.value.client_id, of shape {expected}, got {client_ids!r:.80}."
            )
        rows = tf.where(self.weight > 0.0)[:, 0]
        rows = tf.gather(rows, tf.argsort(tf.gather(client_ids, rows)))
        return trees.row(self.value, rows)


class StackFactory(tff.aggregators.WeightedAggregationFactory):
    """An aggregator that stacks values of type `T` to a `Stack`, without summing them.

    The server sees every upload. An upload that contains `ClientContext.client_id` identifies its
    client.

    With `T[k]` the type of `T`'s tensors with an unknown leading dimension, `next` is

        (<()@SERVER, {T}@CLIENTS, {float32}@CLIENTS>
         -> <state=()@SERVER, result=<value=T[k],weight=float32[k]>@SERVER, measurements=()@SERVER>)

    For each client, TFF's stock runtime copies all earlier uploads. The graph runtime copies each
    upload once.

    Attributes:
        reason: The reason why another aggregator cannot replace this one.
    """

    reason = "its server needs every upload by itself"

    def of(self, stack: Stack) -> Stack:
        """Returns the stack."""
        return stack

    def create(self, value_type, weight_type) -> tff.templates.AggregationProcess:
        """See the base class.

        Raises:
            TypeError: `T` has members other than tensors of known shapes.
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


class StackRuleFactory(tff.aggregators.WeightedAggregationFactory):
    """An aggregator of values of type `T` to a value of type `T`, by a rule over the cohort.

    The server stacks the uploads and applies the rule to the clients with a weight above 0, which
    were not left out. If the rule needs more clients, all numbers of the result are NaN, so that a
    process made by `tff_pfl.compose` keeps its server state, with the metric `server_kept` 1.

    `next` is

        (<()@SERVER, {T}@CLIENTS, {float32}@CLIENTS>
         -> <state=()@SERVER, result=T@SERVER, measurements=M@SERVER>)

    where `M` has a float32 scalar for each name of `measured`.

    The server needs every upload in the clear, because `tff_pfl.aggregators.robust_rules` compare
    uploads.

    Attributes:
        rule: `Stack -> (T, measurements)`, with a scalar for each name of `measured`.
        fewest: The minimum number of clients for the rule.
        measured: The names of the measurements.
        reason: The reason why another aggregator cannot replace this one.
    """

    reason = REPLACED

    def __init__(
        self,
        rule: Callable[[Stack], tuple[Any, Mapping[str, tf.Tensor]]],
        fewest: int = 1,
        *,
        measured: Sequence[str] = (),
    ):
        """Creates the factory.

        Args:
            rule: See the class. The rule is traced, and gets only clients that were not left out.
            fewest: The minimum number of these clients.
            measured: The names of the rule's measurements.
        """
        self.rule = rule
        self.fewest = fewest
        self.measured = tuple(measured)

    def of(self, stack: Stack) -> Any:
        """Returns the aggregate of a stack, ignoring clients with weight 0."""
        return self.of_measured(stack)[0]

    def of_measured(self, stack: Stack) -> tuple[Any, Mapping[str, tf.Tensor]]:
        """Returns the aggregate and the measurements, all NaN if there are too few clients."""
        rows = tf.where(stack.weight > 0.0)[:, 0]
        accepted = Stack(trees.row(stack.value, rows), tf.gather(stack.weight, rows))

        def apply_rule():
            value, measured = self.rule(accepted)
            return value, collections.OrderedDict((name, measured[name]) for name in self.measured)

        def all_nan():
            value = tf.nest.map_structure(
                lambda leaf: tf.fill(leaf.shape[1:], tf.constant(np.nan, leaf.dtype)), stack.value
            )
            nan = tf.constant(np.nan)
            return value, collections.OrderedDict.fromkeys(self.measured, nan)

        return tf.cond(tf.size(rows) >= self.fewest, apply_rule, all_nan)

    def create(self, value_type, weight_type) -> tff.templates.AggregationProcess:
        """See the base class.

        Raises:
            TypeError: `value_type` has members other than float tensors of known shapes.
        """
        if tff.types.contains(value_type, _is_not_float):
            raise TypeError(f"Only tensors of floats can be aggregated, found {value_type}.")
        stacking = StackFactory().create(value_type, weight_type)
        apply = tff.tensorflow.computation(
            elementwise_equality()(self.of_measured),
            stacking.next.type_signature.result.result.member,
        )

        @tff.federated_computation(
            stacking.initialize.type_signature.result,
            tff.types.FederatedType(value_type, tff.CLIENTS),
            tff.types.FederatedType(weight_type, tff.CLIENTS),
        )
        def aggregate(state, value, weight):
            output = stacking.next(state, value, weight)
            result, measured = tff.federated_map(apply, output.result)
            return tff.templates.MeasuredProcessOutput(output.state, result, measured)

        return tff.templates.AggregationProcess(stacking.initialize, aggregate)


def _is_not_float(type_spec: tff.types.Type) -> bool:
    is_tensor = isinstance(type_spec, tff.types.TensorType)
    return is_tensor and not tf.as_dtype(type_spec.dtype).is_floating


def _cannot_be_stacked(type_spec: tff.types.Type) -> bool:
    if isinstance(type_spec, tff.types.TensorType):
        return not tf.TensorShape(type_spec.shape).is_fully_defined()
    return not isinstance(type_spec, tff.types.StructType)
