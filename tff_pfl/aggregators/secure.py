"""Finds whether aggregators reveal single uploads."""

import contextlib
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

Aggregator: TypeAlias = (
    tff.aggregators.WeightedAggregationFactory | tff.aggregators.UnweightedAggregationFactory
)

_NUMBERS = tff.types.TensorType(np.float32, [2])
_WEIGHT = tff.types.TensorType(np.float32)


def sums_securely(computation: tff.Computation) -> bool:
    """Returns whether uploads are aggregated only by secure sums, which reveal no single upload.

    Args:
        computation: A computation such as `next` of an aggregation process or of an algorithm's
            process. The result is true if it aggregates nothing.
    """
    try:
        tff.test.assert_not_contains_unsecure_aggregation(computation)
    except (AssertionError, ValueError):  # TFF raises a ValueError for opaque calls.
        return False
    return True


def is_secure(factory: Aggregator) -> bool:
    """Returns whether an aggregator, weighted or not, sums floats securely."""
    is_weighted = isinstance(factory, tff.aggregators.WeightedAggregationFactory)
    with quiet_secure_sums():
        return sums_securely(factory.create(_NUMBERS, *[_WEIGHT] * is_weighted).next)


@contextlib.contextmanager
def quiet_secure_sums() -> Iterator[None]:
    """Suppresses the errors that TensorFlow logs while TFF creates secure sums of floats.

    TFF creates an assertion of the bounds of each tensor (`_client_tensor_shift_for_secure_sum`)
    and does not use it. TensorFlow then logs ten lines about the unused assertion.
    """

    def is_other_message(record):
        message = record.getMessage()
        return not ("Object was never used" in message and "'assert_less_equal" in message)

    logger = tf.get_logger()
    logger.addFilter(is_other_message)
    try:
        yield
    finally:
        logger.removeFilter(is_other_message)
