"""Uploads of several fields, each of which is aggregated in its own way."""

import collections

import tensorflow_federated as tff

Aggregator = (
    tff.aggregators.WeightedAggregationFactory | tff.aggregators.UnweightedAggregationFactory
)


class FieldsFactory(tff.aggregators.WeightedAggregationFactory):
    """Aggregates each field of a structure by an aggregator of its own.

    For `FieldsFactory(a=f, b=g)`, with `F` and `G` what the processes of `f` and `g` are of, `next`
    is

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
