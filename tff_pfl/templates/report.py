"""The report of an exchange: counts of clients and sums of their metrics."""

import collections
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.aggregators import quiet_secure_sums
from tff_pfl.models import Totals
from tff_pfl.tracing.structures import is_empty

REPORTS = ("clear", "secure", "none")
COUNTS = ("num_clients", "num_examples", "num_nonfinite", "num_empty")
# Bounds that secure sums need: the bits of a client's counts, and its largest total.
_BITS = dict(num_clients=1, num_examples=31, num_nonfinite=1, num_empty=1)
_LARGEST_TOTAL = 2.0**20


class Report(NamedTuple):
    """Counts and totals of metrics, summed over the clients of an exchange.

    Attributes:
        counts: int32 `[4]`, in the order of `COUNTS`.
        totals: The sums of metrics.
    """

    counts: tf.Tensor
    totals: Totals


def sum_of_reports(report_type: tff.types.Type, how: str) -> tff.Computation | None:
    """Makes `({Report}@CLIENTS -> Report@SERVER)`, the sum; `None` if reports are not sent.

    With secure sums, counts are exact. Totals become float32, are clipped to 2^20 and rounded to
    multiples of 2^-11.

    Args:
        report_type: The type of a client's `Report`.
        how: One of `REPORTS`.
    """
    if how == "none":
        return None
    add = _secure_sums if how == "secure" else tff.federated_sum

    @tff.federated_computation(tff.types.FederatedType(report_type, tff.CLIENTS))
    def summed(reports):
        return add(reports)

    return summed


def secure_report_bytes(report_type: tff.types.Type) -> int:
    """Returns the number of bytes of a client's `Report` in secure sums, 4 for each number."""
    totals = tff.types.count(report_type.totals, lambda t: isinstance(t, tff.types.TensorType))
    return 4 * (len(COUNTS) + totals)


def _secure_sums(reports):
    by_name = tff.federated_map(_counts_by_name, reports.counts)
    sums = [tff.federated_secure_sum_bitwidth(by_name[name], bits) for name, bits in _BITS.items()]
    counts = tff.federated_map(_stacked_counts, tff.federated_zip(sums))
    totals_type = reports.totals.type_signature.member
    if is_empty(totals_type):
        totals = tff.federated_value(collections.OrderedDict(), tff.SERVER)
    else:
        as_floats = tff.tensorflow.computation(_as_floats, totals_type)
        factory = tff.aggregators.SecureSumFactory(_LARGEST_TOTAL, -_LARGEST_TOTAL)
        with quiet_secure_sums():
            process = factory.create(as_floats.type_signature.result)
        floats = tff.federated_map(as_floats, reports.totals)
        totals = process.next(process.initialize(), floats).result
    return tff.federated_zip(Report(counts, totals))


@tff.tensorflow.computation(tff.types.TensorType(np.int32, [len(COUNTS)]))
def _counts_by_name(counts):
    return collections.OrderedDict(zip(COUNTS, tf.unstack(counts), strict=True))


@tff.tensorflow.computation([np.int32] * len(COUNTS))
def _stacked_counts(counts):
    return tf.stack(list(counts))


def _as_floats(totals):
    return tf.nest.map_structure(lambda leaf: tf.cast(leaf, tf.float32), totals)
