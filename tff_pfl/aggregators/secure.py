"""Properties of aggregators: secure sums, and plain means."""

import contextlib
from collections.abc import Iterator

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

Aggregator = (
    tff.aggregators.WeightedAggregationFactory | tff.aggregators.UnweightedAggregationFactory
)

_NUMBERS = tff.types.TensorType(np.float32, [2])
_WEIGHT = tff.types.TensorType(np.float32)


def sums_securely(computation: tff.Computation) -> bool:
    """Returns whether uploads are aggregated by secure sums alone, which show no summand.

    Args:
        computation: Such as `next` of an aggregation process or of an algorithm's process; one
            that aggregates nothing sums securely.
    """
    try:
        tff.test.assert_not_contains_unsecure_aggregation(computation)
    except (AssertionError, ValueError):  # ValueError: an opaque call
        return False
    return True


def is_plain_mean(factory: Aggregator) -> bool:
    """Returns whether an aggregator is the weighted mean of unchanged uploads.

    A `tff.aggregators.MeanFactory` may also be made of sums which are secure, quantized or noisy,
    as `tff.learning.secure_aggregator(clipping=False, zeroing=False)` is.
    """
    if not isinstance(factory, tff.aggregators.MeanFactory):
        return False
    sums = factory._value_sum_factory, factory._weight_sum_factory
    return all(isinstance(part, tff.aggregators.SumFactory) for part in sums)


def is_secure(factory: Aggregator) -> bool:
    """Returns whether an aggregator, weighted or not, sums floats securely."""
    is_weighted = isinstance(factory, tff.aggregators.WeightedAggregationFactory)
    with quiet_secure_sums():
        return sums_securely(factory.create(_NUMBERS, *[_WEIGHT] * is_weighted).next)


@contextlib.contextmanager
def quiet_secure_sums() -> Iterator[None]:
    """Drops the errors that TensorFlow logs while TFF's secure sums of floats are created.

    TFF asserts the bounds of each tensor (`_client_tensor_shift_for_secure_sum`) but does not use
    the assertion, so TensorFlow logs ten lines to say that it was never used.
    """

    def is_another(record):
        message = record.getMessage()
        return not ("Object was never used" in message and "'assert_less_equal" in message)

    logger = tf.get_logger()
    logger.addFilter(is_another)
    try:
        yield
    finally:
        logger.removeFilter(is_another)
