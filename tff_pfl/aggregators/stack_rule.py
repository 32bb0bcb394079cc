"""Aggregates of all uploads together, where sums of them do not do."""

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.aggregators.stack import Stack, StackFactory
from tff_pfl.equality import elementwise_equality
from tff_pfl.local import trees


class StackRuleFactory(tff.aggregators.WeightedAggregationFactory):
    """Aggregates values of type `T` to a value of type `T`, by a rule over the whole cohort.

    The server stacks the uploads and applies the rule to those of the clients that were not left
    out, whose weight is above 0. If these are too few for the rule, all numbers of the result are
    NaN: a process made by `tff_pfl.compose` then keeps its server's state, and its metric
    `server_kept` is 1.

    `next` is

        (<()@SERVER, {T}@CLIENTS, {float32}@CLIENTS>
         -> <state=()@SERVER, result=T@SERVER, measurements=M@SERVER>)

    where `M` is `()`, or has a float32 scalar for each name of `measured`.

    The server needs every upload in the clear: there is no secure sum that a rule could be made of,
    as `tff_pfl.aggregators.robust_rules` are of distances between uploads, or of their order.

    Attributes:
        rule: `(Stack -> T)`; with `measured`, `(Stack -> (T, mapping of these names to scalars))`.
        fewest: How many clients it needs.
        measured: The names of the measurements.
        reason: Why another aggregator cannot take its place.
    """

    reason = "another one was chosen before"

    def __init__(
        self, rule: Callable[[Stack], Any], fewest: int = 1, *, measured: Sequence[str] = ()
    ):
        """Creates the factory.

        Args:
            rule: See the class. It is traced, and gets only clients that were not left out.
            fewest: How many of these it needs.
            measured: The names of the rule's measurements.
        """
        self.rule = rule
        self.fewest = fewest
        self.measured = tuple(measured)

    def of(self, stack: Stack) -> Any:
        """The aggregate of a stack, in which clients of weight 0 were left out; in TensorFlow."""
        return self.of_measured(stack)[0]

    def of_measured(self, stack: Stack) -> tuple[Any, Mapping[str, tf.Tensor]]:
        """Returns the aggregate and the measurements, all NaN if there are too few clients."""
        rows = tf.where(stack.weight > 0.0)[:, 0]
        accepted = Stack(trees.row(stack.value, rows), tf.gather(stack.weight, rows))

        def number():
            value, measured = self.rule(accepted) if self.measured else (self.rule(accepted), {})
            return value, collections.OrderedDict((name, measured[name]) for name in self.measured)

        def no_number():
            value = tf.nest.map_structure(
                lambda leaf: tf.fill(leaf.shape[1:], tf.constant(np.nan, leaf.dtype)), stack.value
            )
            nothing = tf.constant(np.nan)
            return value, collections.OrderedDict.fromkeys(self.measured, nothing)

        return tf.cond(tf.size(rows) >= self.fewest, number, no_number)

    def create(self, value_type, weight_type) -> tff.templates.AggregationProcess:
        """See the base class.

        Raises:
            TypeError: If `value_type` holds something else than tensors of floats, of known shapes.
        """
        if tff.types.contains(value_type, _is_no_float):
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


def _is_no_float(type_spec: tff.types.Type) -> bool:
    is_tensor = isinstance(type_spec, tff.types.TensorType)
    return is_tensor and not tf.as_dtype(type_spec.dtype).is_floating
