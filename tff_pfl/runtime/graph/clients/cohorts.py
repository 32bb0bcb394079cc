"""Places clients and their examples for `lanes`, in few sizes, since XLA compiles each of them."""

import dataclasses
import math
import operator
import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tff_pfl.runtime.graph import devices
from tff_pfl.runtime.graph.clients import lanes
from tff_pfl.runtime.graph.clients.groups import (
    Buffer,
    Parts,
    Rows,
    capacity_of,
    int32,
    power_of_two,
    rounded_up,
)

# The arguments of `capacity_of` for clients in lanes, and the least length of their buffer.
_CAPACITIES_OF_LANES, _LEAST_LENGTH = (256, 16), 1024


class Cohorts(NamedTuple):
    """The sizes of cohorts and of clients, as far as they are known before.

    Attributes:
        clients: The number of clients that most of them have at most.
        most_examples: The number of examples that clients have at most.
        examples: The number of examples that all clients of most cohorts have at most.
    """

    clients: int
    most_examples: int
    examples: float

    @classmethod
    def of(cls, clients: int, sizes: np.ndarray) -> "Cohorts":
        """Returns the sizes for cohorts of a federation whose clients have these sizes.

        Two standard deviations more than the mean suffice for nearly all cohorts.
        """
        examples = clients * sizes.mean() + 2 * clients**0.5 * sizes.std()
        first = max(len(sizes) - clients, 0)
        most = min(examples, np.partition(sizes, first)[first:].sum())
        return cls(clients, int(sizes.max()), float(most))

    def of_shards(self, number: int) -> "Cohorts":
        """Returns the sizes of the shards of cohorts on a number of devices."""
        return Cohorts(-(-self.clients // number), self.most_examples, self.examples / number)


class Forms:
    """The lengths of buffers so far, each of which XLA compiles; smaller cohorts use them again.

    Results do not depend on these lengths, so that they may depend on earlier cohorts.
    """

    def __init__(self):
        """Makes no lengths."""
        self._lengths: dict[int, tuple[int, ...]] = {}
        self._lock = threading.Lock()

    def lengths(self, rows: Sequence[int]) -> tuple[int, ...]:
        """Returns the length of each buffer, given the rows of all clients in each."""
        with self._lock:
            found = self._lengths.get(len(rows), ())
            if not found or any(map(operator.lt, found, rows)):
                longer = map(max, found or rows, rows)
                found = tuple(power_of_two(number, _LEAST_LENGTH) for number in longer)
                self._lengths[len(rows)] = found
            return found


def in_lanes(
    shard: Rows,
    rows: Sequence[tuple[int, ...]],
    forms: Forms,
    size: int,
    expected: Cohorts | None = None,
    limit: int | None = None,
) -> Rows:
    """Returns a shard whose clients are sorted for `lanes`.

    Args:
        shard: The shard without groups.
        rows: See `in_parts`.
        forms: The lengths of buffers so far.
        size: See `in_parts`.
        expected: The sizes that are known before, if any are.
        limit: The largest number of clients in a part, which follow one another. `None`: any.
    """
    clients = sorted(shard.clients.tolist(), key=lambda client: rows[client], reverse=True)
    own = [rows[client] for client in clients]
    number = _lanes_for(len(own), expected)
    number = min(number, limit or number)
    is_gpu = devices.is_gpu(shard.device)
    prefixes = lanes.prefixes(number, len(set(own)) == 1, size, is_gpu=is_gpu)
    columns = list(zip(*own, strict=True))
    capacities = tuple(_capacity_of_lanes(max(column), expected) for column in columns)
    totals = list(map(sum, columns))
    if expected is None:
        lengths = forms.lengths(totals)
    else:
        lengths = tuple(_length_of_lanes(total, number, expected) for total in totals)
    buffers = list(map(Buffer.in_lanes, columns, capacities, lengths))
    ends = int32([*range(number, len(own), number), len(own)])
    parts = Parts(int32([number] * len(ends)), buffers, prefixes)
    return dataclasses.replace(shard, clients=int32(clients), ends=ends, parts=parts)


def _lanes_for(clients: int, expected: Cohorts | None) -> int:
    """Returns the lanes of a number of clients: few numbers, if that of clients varies.

    They are 1, 1.5, 2, 3, 4, 6, ... times the expected number, or 8 numbers in each doubling.
    """
    if expected is None:
        return rounded_up(clients, 8)
    power = power_of_two(-(-clients // expected.clients), 1)
    smaller = -(-expected.clients * power * 3 // 4)
    return smaller if power > 1 and clients <= smaller else expected.clients * power


def _capacity_of_lanes(rows: int, expected: Cohorts | None) -> int:
    """Returns the number of rows that each client may have, given that of the largest."""
    if expected is not None and rows <= expected.most_examples:
        return expected.most_examples
    return capacity_of(rows, *_CAPACITIES_OF_LANES)


def _length_of_lanes(rows: int, number: int, expected: Cohorts) -> int:
    """Returns the length of the buffer of some lanes, the same for nearly all cohorts."""
    length = expected.examples * number / expected.clients
    return capacity_of(rows, _LEAST_LENGTH * max(1, math.ceil(length / _LEAST_LENGTH)), 2)
