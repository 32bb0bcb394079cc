"""Asks aggregators about the mean in them.

The functions answer for the mean of `tff.aggregators`; other aggregators answer by methods of the
same names, or have no such mean:

    reason                 the reason why another aggregator cannot replace the mean, or `None`
    around(mean)           the aggregator around another mean
    averaged_parts()       see `averaged_parts`
    decoding(decode)       see `decoding`
    with_noise(noise)      see `with_noise`
    of(stack)              see `aggregated`
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.aggregators.decoded import DecodedMeanFactory
from tff_pfl.aggregators.secure import Aggregator
from tff_pfl.local import trees

REPLACED = "an aggregator other than the mean was chosen before"


class Noise(NamedTuple):
    """The noisy means of a mechanism of privacy, for `with_noise`.

    Attributes:
        mean: `( -> (aggregator, send))`, the mean of whole uploads, where `send` encodes an upload
            as `Exchange.send` does, or is `None`.
        branch_mean: The same for `Shares`.
        clients_per_round: The number by which the means divide.
    """

    mean: Callable[[], tuple[Aggregator, Callable | None]]
    branch_mean: Callable[[], tuple[Aggregator, Callable | None]]
    clients_per_round: int


def is_plain_mean(factory: Aggregator) -> bool:
    """Returns whether an aggregator is the weighted mean of unchanged uploads.

    A `tff.aggregators.MeanFactory` may also use secure, quantized or noisy sums, as does
    `tff.learning.secure_aggregator(clipping=False, zeroing=False)`.
    """
    if not isinstance(factory, tff.aggregators.MeanFactory):
        return False
    sums = factory._value_sum_factory, factory._weight_sum_factory
    return all(isinstance(part, tff.aggregators.SumFactory) for part in sums)


def reason_against(factory: Aggregator) -> str | None:
    """Returns why another aggregator cannot replace the mean in this one; `None` if it can."""
    if isinstance(factory, tff.aggregators.MeanFactory):
        return None if is_plain_mean(factory) else REPLACED
    return getattr(factory, "reason", f"it is {type(factory).__name__}")


def around(factory: Aggregator, mean: Aggregator) -> Aggregator:
    """Returns the aggregator with another one instead of its mean."""
    return mean if is_plain_mean(factory) else factory.around(mean)


def averaged_parts(factory: Aggregator) -> list[str | None]:
    """Returns the fields of uploads that a plain mean averages; `None` is the whole upload."""
    if is_plain_mean(factory):
        return [None]
    return factory.averaged_parts() if hasattr(factory, "averaged_parts") else []


def decoding(factory: Aggregator, decode: Callable[[Any], Any]) -> Aggregator:
    """Returns the aggregator of uploads whose one averaged part the server decodes."""
    return DecodedMeanFactory(decode) if is_plain_mean(factory) else factory.decoding(decode)


def with_noise(factory: Aggregator, noise: Noise) -> tuple[Aggregator, Callable | None]:
    """Returns the aggregator with noise in its mean, and `Exchange.send` or `None`."""
    return noise.mean() if is_plain_mean(factory) else factory.with_noise(noise)


def aggregated(factory: Aggregator, stack: Any) -> Any:
    """Aggregates a `Stack` of uploads by TensorFlow alone, as the process of the factory does.

    Raises:
        TypeError: The aggregator has no method `of`, and is no plain mean or sum.
    """
    if is_plain_mean(factory):
        sums = _sums(trees.scale_rows(stack.value, stack.weight))
        return trees.scale(sums, 1.0 / tf.reduce_sum(stack.weight))
    if isinstance(factory, tff.aggregators.SumFactory):
        return _sums(stack.value)
    if not hasattr(factory, "of"):
        raise TypeError(f"{type(factory).__name__} needs the whole process: use compose().")
    return factory.of(stack)


def _sums(rows):
    return tf.nest.map_structure(lambda leaf: tf.reduce_sum(leaf, axis=0), rows)
