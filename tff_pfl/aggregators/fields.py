"""Aggregates uploads of several fields, each field by its own aggregator."""

import collections
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.aggregators import means
from tff_pfl.aggregators.secure import Aggregator, is_secure


class FieldsFactory(tff.aggregators.WeightedAggregationFactory):
    """An aggregator that aggregates each field of a structure by its own aggregator.

    For `FieldsFactory(a=f, b=g)`, with `F` and `G` the processes of `f` and `g`, `next` is

        (<<a=F.state,b=G.state>@SERVER, {<a=A,b=B>}@CLIENTS, {float32}@CLIENTS>
         -> <state=<a=F.state,b=G.state>@SERVER, result=<a=F.result,b=G.result>@SERVER,
             measurements=<a=F.measurements,b=G.measurements>@SERVER>)

    All weighted aggregators receive the same weight.

    Attributes:
        reason: The reason why another aggregator cannot replace this one.
    """

    reason: str | None = "each field of its uploads has its own aggregator"

    def __init__(self, **factories: Aggregator):
        """Creates the factory.

        Args:
            **factories: The aggregators by names of fields.
        """
        self.factories = factories

    def __repr__(self) -> str:
        """Returns the factory's call, with its aggregators."""
        fields = ", ".join(f"{name}={factory!r}" for name, factory in self.factories.items())
        return f"FieldsFactory({fields})"

    def averaged_parts(self) -> list[str]:
        """Returns the fields that a plain mean averages."""
        parts = {name: means.averaged_parts(factory) for name, factory in self.factories.items()}
        return [name for name, found in parts.items() if found == [None]]

    def decoding(self, decode: Callable[[Any], Any]) -> "FieldsFactory":
        """Returns a copy for uploads whose one averaged field the server decodes."""
        (name,) = self.averaged_parts()
        decoded = means.decoding(self.factories[name], decode)
        return FieldsFactory(**{**self.factories, name: decoded})

    def of(self, stack: Any) -> Any:
        """Aggregates a `Stack`; see `aggregated`."""
        return collections.OrderedDict(
            (name, means.aggregated(factory, stack._replace(value=getattr(stack.value, name))))
            for name, factory in self.factories.items()
        )

    def create(self, value_type, weight_type) -> tff.templates.AggregationProcess:
        """See the base class.

        Raises:
            TypeError: `value_type` does not have the fields of the factory, in this order.
        """
        is_struct = isinstance(value_type, tff.types.StructType)
        names = tff.structure.name_list_with_nones(value_type) if is_struct else None
        if names != list(self.factories):
            raise TypeError(
                f"The aggregators are for the fields {', '.join(self.factories)}, found "
                f"{value_type}."
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
    """An upload to a `CountedFactory`, whose result has the same fields.

    Attributes:
        value: Any structure of float tensors. The server receives the mean.
        number: 1, or 0 if the client was left out. The server receives the sum.
    """

    value: Any
    number: tf.Tensor | float = 1.0


class CountedFactory(FieldsFactory):
    """An aggregator that computes a mean and its number of clients.

    Servers that divide by another number use it. If the values are summed securely, so is the
    number.

    Attributes:
        mean: The aggregator of the values.
        reason: Why another aggregator cannot replace `mean`: it is no plain mean.
    """

    def __init__(self, mean: Aggregator | None = None, number: int | None = None):
        """Creates the factory.

        Args:
            mean: The aggregator of the values. Default: `tff.aggregators.MeanFactory`.
            number: A constant that replaces the sum, if `mean` divides by an expected number and
                the actual number is secret.
        """
        self.mean = mean or tff.aggregators.MeanFactory()
        self.reason = None if number is None and means.is_plain_mean(self.mean) else means.REPLACED
        if number is not None:
            sum_ = _ConstantFactory(float(number))
        elif mean is not None and is_secure(mean):
            sum_ = tff.aggregators.SecureSumFactory(1.0, 0.0)
        else:
            sum_ = tff.aggregators.SumFactory()
        super().__init__(value=self.mean, number=sum_)

    def around(self, mean: Aggregator) -> "CountedFactory":
        """Returns a copy with another aggregator of the values."""
        return CountedFactory(mean)

    def with_noise(self, noise: means.Noise) -> tuple["CountedFactory", Callable | None]:
        """Returns a copy with noisy values and the expected number; see `Noise`."""
        mean, encode = means.with_noise(self.mean, noise)

        def send(upload, seed):
            return upload._replace(value=encode(upload.value, seed))

        return CountedFactory(mean, number=noise.clients_per_round), encode and send


class _ConstantFactory(tff.aggregators.UnweightedAggregationFactory):
    """An aggregator that returns a constant, for which clients send nothing."""

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
