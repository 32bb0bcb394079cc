"""Means over examples, kept as sums that can be added up."""

from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf


class Mean(NamedTuple):
    """A mean over examples, kept as two sums so that the means of clients can be added up.

    Attributes:
        total: float32 scalar, the sum of the quantity.
        count: float32 scalar, the number of examples in the sum, or the sum of their weights.
    """

    total: tf.Tensor
    count: tf.Tensor

    @property
    def mean(self) -> tf.Tensor:
        """The mean, as a TensorFlow scalar; 0 without examples."""
        return tf.math.divide_no_nan(self.total, self.count)


Totals = Mapping[str, Mean]


def prefixed(prefix: str, totals: Totals) -> Totals:
    """Renames totals to `PREFIX_NAME`, for a second model that is trained beside the first."""
    return {f"{prefix}_{name}": mean for name, mean in totals.items()}


def merged(*several: Totals) -> Totals:
    """Merges the totals of several measurements.

    Raises:
        ValueError: Two totals have the same name.
    """
    result: dict[str, Mean] = {}
    for totals in several:
        if twice := result.keys() & totals.keys():
            raise ValueError(
                f"The algorithm and the model both have a metric {min(twice)!r}. Rename one of "
                "them."
            )
        result |= totals
    return result
