"""Uploads of several fields, each of which is aggregated in its own way."""

import collections
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.aggregators.secure import Aggregator, is_plain_mean, is_secure


class FieldsFactory(tff.aggregators.WeightedAggregationFactory):
    """Aggregates each field of a structure by an aggregator of its own.

    For `FieldsFactory(a=f, b=g)`, with `F` and `G` the processes of `f` and `g`, `next` is

        (<<a=F.state,b=G.state>@SERVER, {<a=A,b=B>}@CLIENTS, {float32}@CLIENTS>
         -> <state=<a=F.state,b=G.state>@SERVER, result=<a=F.result,b=G.result>@SERVER,
             measurements=<a=F.measurements,b=G.measurements>@SERVER>)

    All weighted aggregators receive the same weight.

    Attributes:
        reason: Why another aggregator cannot take its place.
    """

    reason = "its server needs some of every upload by itself"

    def __init__(self, **factories: Aggregator):
        """Creates the factory.

        Args:
            **factories: An aggregator for each field, by its name.
        """
        self.factories = factories

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={factory!r}" for name, factory in self.factories.items())
        return f"FieldsFactory({fields})"

    def create(self, value_type, weight_type) -> tff.templates.AggregationProcess:
        """See the base class.

        Raises:
            TypeError: If the fields of `value_type` are not those of the factory, in their order.
        """
        is_struct = isinstance(value_type, tff.types.StructType)
        names = tff.structure.name_list_with_nones(value_type) if is_struct else None
        if names != list(self.factories):
            raise TypeError(
                f"There are aggregators for the fields {', '.join(self.factories)}, "
                f"found {value_type}."
            )
        weighted = {
            name: isinstance(factory, tff.aggregators.WeightedAggregationFactory)
            for name, factory in self.factories.items()
        }
        processes = {
            name: factory.create(value_type[name], *[weight_type] * weighted[name])
            for name, factory in self.factories.items()
        }

        def zipped(values):
            return tff.federated_zip(collections.OrderedDict(zip(processes, values, strict=True)))

        @tff.federated_computation
        def initialize():
            return zipped([process.initialize() for process in processes.values()])

        @tff.federated_computation(
            initialize.type_signature.result,
            tff.types.FederatedType(value_type, tff.CLIENTS),
            tff.types.FederatedType(weight_type, tff.CLIENTS),
        )
        def aggregate(state, value, weight):
            outputs = [
                process.next(state[name], value[name], *[weight] * weighted[name])
                for name, process in processes.items()
            ]
            return tff.templates.MeasuredProcessOutput(
                zipped([output.state for output in outputs]),
                zipped([output.result for output in outputs]),
                zipped([output.measurements for output in outputs]),
            )

        return tff.templates.AggregationProcess(initialize, aggregate)


class Counted(NamedTuple):
    """An upload to a `CountedFactory`, which returns both fields by name.

    Attributes:
        value: Any structure of float tensors; the server receives its mean.
        number: 1, or 0 if the client was left out; the server receives the sum.
    """

    value: Any
    number: tf.Tensor | float = 1.0


class CountedFactory(FieldsFactory):
    """Computes a mean and the number of clients in it, for servers that divide by another number.

    The number is summed securely if the values are.

    Attributes:
        mean: The aggregator of the values.
        is_default: Whether nothing but a plain mean was chosen.
    """

    def __init__(self, mean: Aggregator | None = None, number: int | None = None):
        """Creates the factory.

        Args:
            mean: Default `tff.aggregators.MeanFactory`.
            number: A constant instead of the sum, where `mean` divides by an expected number and
                the actual one is secret.
        """
        self.mean = mean or tff.aggregators.MeanFactory()
        self.is_default = number is None and is_plain_mean(self.mean)
        if number is not None:
            sum_ = _ConstantFactory(float(number))
        elif mean is not None and is_secure(mean):
            sum_ = tff.aggregators.SecureSumFactory(1.0, 0.0)
        else:
            sum_ = tff.aggregators.SumFactory()
        super().__init__(value=self.mean, number=sum_)

    def around(self, mean: Aggregator) -> "CountedFactory":
        """Returns the same with another aggregator of the values."""
        return CountedFactory(mean)


class _ConstantFactory(tff.aggregators.UnweightedAggregationFactory):
    """Returns a constant; values do not leave their clients."""

    def __init__(self, result: float):
        self._result = np.float32(result)

    def create(self, value_type) -> tff.templates.AggregationProcess:
        @tff.federated_computation
        def initialize():
            return tff.federated_value((), tff.SERVER)

        @tff.federated_computation(
            initialize.type_signature.result, tff.types.FederatedType(value_type, tff.CLIENTS)
        )
        def constant(state, value):
            del value
            result, nothing = (tff.federated_value(x, tff.SERVER) for x in (self._result, ()))
            return tff.templates.MeasuredProcessOutput(state, result, nothing)

        return tff.templates.AggregationProcess(initialize, constant)
