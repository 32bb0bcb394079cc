"""A mean, and how many clients it is of."""

from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.aggregators.fields import Aggregator, FieldsFactory
from tff_pfl.aggregators.secure import is_secure


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
    """

    def __init__(self, mean: Aggregator | None = None):
        """Creates the factory.

        Args:
            mean: Default `tff.aggregators.MeanFactory`.
        """
        self.mean = mean or tff.aggregators.MeanFactory()
        number = tff.aggregators.SumFactory()
        if mean is not None and is_secure(mean):
            number = tff.aggregators.SecureSumFactory(1.0, 0.0)
        super().__init__(value=self.mean, number=number)

    def around(self, mean: Aggregator) -> "CountedFactory":
        """The same with another aggregator of the values."""
        return CountedFactory(mean)
