"""A mean, and how many clients it is of."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.aggregators.fields import Aggregator, FieldsFactory
from tff_pfl.aggregators.secure import is_plain_mean, is_secure


class Counted(NamedTuple):
    """What a client sends to a `CountedFactory`, which returns both fields by name.

    Attributes:
        value: Any structure of float tensors; the server receives its mean.
        number: 1, of which the server receives the sum, a client that was left out being 0.
    """

    value: Any
    number: tf.Tensor | float = 1.0


class CountedFactory(FieldsFactory):
    """Aggregates a `Counted`: for servers that divide by more than those who take part.

    The number travels as the values do: by a secure sum, if their mean is made of such alone.

    Attributes:
        mean: The aggregator of the values.
        is_default: Whether nothing but a plain mean was chosen.
    """

    def __init__(self, mean: Aggregator | None = None, number: int | None = None):
        """Creates the factory.

        Args:
            mean: Default `tff.aggregators.MeanFactory`.
            number: In the place of how many there are: where `mean` divides by an expected number,
                and nobody is to know the other.
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
        """Another aggregator of the values in the place of the mean, of one that `is_default`."""
        return CountedFactory(mean)


class _ConstantFactory(tff.aggregators.UnweightedAggregationFactory):
    """Of values that do not leave their clients: the result is known before."""

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
