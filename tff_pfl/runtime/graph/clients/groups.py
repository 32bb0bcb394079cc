"""Groups of clients whose tensors have equal shapes, so that each group can be stacked."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from tff_pfl.runtime.graph import devices
from tff_pfl.runtime.graph.clients import client_values
from tff_pfl.runtime.graph.memory import tensor_on

_HOST = "CPU:0"
_LEAST_CAPACITY = 64
# Rows at which parts begin, so that TensorFlow does not copy parts of a buffer.
_ALIGNED_ROWS = 64
# The most work of a part, in rows times elements of weights, and the work below which the call of a
# program takes longer; the number of parts for each core into which larger work is divided; the
# most clients of a part, and the most elements of a leaf of all of them.
_MOST_WORK, _LEAST_WORK, _PARTS_PER_CORE, _MOST_PLACES = 100_000_000, 2_500_000, 2, 32
_MOST_ELEMENTS = 1 << 21
# The elements of weights to which other work on a row amounts.
_LEAST_SIZE = 2_000


@dataclasses.dataclass(frozen=True)
class Rows:
    """The clients of a shard, as indices into the cohort, in the order of the shard's tensors.

    Attributes:
        device: The shard's device.
        clients: int32 indices, in the order of the cohort or group after group.
        ends: int32, the end of each group in `clients`, or `None` without groups.
        parts: The places of clients and rows in parts, if groups are parts of compiled loops.
    """

    device: str
    clients: np.ndarray
    ends: np.ndarray | None = None
    parts: "Parts | None" = None

    def tensors(self) -> list[tf.Tensor]:
        """Returns the number of clients and, with groups, the tensors of `client_values.Groups`."""
        arrays = [np.array(len(self.clients), np.int32)]
        if self.ends is not None:
            arrays += [self.ends, self._positions]
        if self.parts is not None:
            arrays.append(self.parts.places)
        return [tensor_on(_HOST, array) for array in arrays]

    def in_order(self, results: Sequence) -> Sequence:
        """Returns the clients' results in the order of the cohort."""
        if self.ends is None:
            return results
        return [results[position] for position in self._positions]

    @functools.cached_property
    def _positions(self) -> np.ndarray:
        return np.argsort(self.clients).astype(np.int32)


def grouped(shard: Rows, forms: Sequence, limit: int | None) -> Rows:
    """Returns a shard whose clients are sorted into groups of one form.

    Args:
        shard: The shard without groups.
        forms: A form for each client of the cohort. Groups are in the order of their forms.
        limit: The largest number of clients in a group; larger ones are cut. `None`: any number.
    """
    clients = sorted(shard.clients.tolist(), key=lambda client: forms[client])
    ends, end = [], 0
    for _, group in itertools.groupby(clients, key=lambda client: forms[client]):
        start, end = end, end + len(list(group))
        ends += [*range(start + limit, end, limit), end] if limit else [end]
    return dataclasses.replace(
        shard, clients=np.array(clients, np.int32), ends=np.array(ends, np.int32)
    )


@dataclasses.dataclass(frozen=True)
class Buffer:
    """The places of clients' examples in a buffer with rows for all places of each part.

    Attributes:
        capacities: int32, the number of rows that each client of a part may have.
        starts: int32, the row of the buffer at which each client begins.
        rows: int32, the number of rows of each client.
        length: The number of rows of the buffer.
    """

    capacities: np.ndarray
    starts: np.ndarray
    rows: np.ndarray
    length: int

    @classmethod
    def of(cls, rows: Sequence[int], ends: Sequence[int], places: Sequence[int]) -> "Buffer":
        """Returns the buffer of clients, given the number of rows of each."""
        capacities: list[int] = []
        starts: list[int] = []
        start = length = 0
        for first, last, number in zip([0, *ends], ends, places, strict=False):
            *begins, end = itertools.accumulate(rows[first:last], initial=start)
            starts += begins
            capacities.append(capacity_of(max(rows[first:last])))
            length = max(length, start + number * capacities[-1])
            start = -(-end // _ALIGNED_ROWS) * _ALIGNED_ROWS
        return cls(int32(capacities), int32(starts), int32(rows), length)

    @classmethod
    def in_lanes(cls, rows: Sequence[int], capacity: int, length: int) -> "Buffer":
        """Returns the buffer of clients in lanes, each behind the other."""
        *starts, _ = itertools.accumulate(rows, initial=0)
        return cls(int32([capacity]), int32(starts), int32(rows), length)

    @functools.cached_property
    def tensors(self) -> list[tf.Tensor]:
        """The tensors of the arrays."""
        arrays = self.capacities, self.starts, self.rows
        return [tensor_on(_HOST, array) for array in arrays]


@dataclasses.dataclass(frozen=True)
class Parts:
    """The parts of a compiled loop, which XLA compiles again for other places and capacities.

    Attributes:
        places: int32, the number of clients for which each part has places.
        buffers: The buffers of examples whose numbers differ.
        prefixes: Nothing, or the numbers of lanes of loops if the one part is of clients in lanes;
            see `lanes`.
    """

    places: np.ndarray
    buffers: Sequence[Buffer]
    prefixes: tuple[int, ...] = ()

    def buffer(self, rows: Sequence[int]) -> Buffer:
        """Returns the buffer for these numbers of rows of the clients."""
        return next(buffer for buffer in self.buffers if np.array_equal(buffer.rows, rows))


def in_parts(shard: Rows, rows: Sequence[tuple[int, ...]], size: int) -> Rows:
    """Returns a shard whose clients are sorted into parts of similar clients, the largest first.

    Args:
        shard: The shard without groups.
        rows: The numbers of rows of each client of the cohort, such as of training and of test
            examples.
        size: The number of elements of the largest tensor of one shape.
    """
    capacities = {numbers: tuple(map(capacity_of, numbers)) for numbers in set(rows)}
    clients = sorted(
        shard.clients.tolist(), key=lambda i: (capacities[rows[i]], rows[i]), reverse=True
    )
    own = [rows[client] for client in clients]
    work_of_row = size + _LEAST_SIZE
    num_parts = _PARTS_PER_CORE * devices.num_cores()
    share = max(work_of_row * sum(map(sum, own)) / num_parts, _LEAST_WORK)
    ends: list[int] = []
    places: list[int] = []
    start = work = 0
    for end, numbers in enumerate(own, 1):
        capacity = capacities[numbers]
        work_of_most = work_of_row * sum(capacity)
        most = min(_MOST_WORK // work_of_most, _MOST_ELEMENTS // max(size, 1), _MOST_PLACES) or 1
        work += work_of_row * sum(numbers)
        is_last = end == len(own) or capacities[own[end]] != capacity
        if is_last or work >= share or end - start == most:
            ends.append(end)
            places.append(most)
            start, work = end, 0
    buffers = [Buffer.of(numbers, ends, places) for numbers in zip(*own, strict=True)]
    parts = Parts(int32(places), buffers)
    return dataclasses.replace(shard, clients=int32(clients), ends=int32(ends), parts=parts)


def int32(numbers: Sequence[int]) -> np.ndarray:
    """Returns an array of int32."""
    return np.array(numbers, np.int32)


def power_of_two(number: int, least: int) -> int:
    """Returns the least power of two that is at least a number."""
    return max(least, 1 << max(number - 1, 0).bit_length())


def rounded_up(number: int, each_doubling: int) -> int:
    """Returns the least of so many numbers in each doubling that is at least a number."""
    step = max(1, power_of_two(number, 1) // (2 * each_doubling))
    return -(-number // step) * step


def capacity_of(rows: int, capacity: int = _LEAST_CAPACITY, factor: int = 4) -> int:
    """Returns the least of a capacity times powers of a factor that is at least `rows`."""
    while capacity < rows:
        capacity *= factor
    return capacity


def are_on_a_ladder(forms: Sequence[Sequence[tuple[int, ...]]]) -> bool:
    """Returns whether clients have 0, 1, 2, 3, 4, 6, 8, 12, ... times the same number of rows.

    Other cohorts then have the same few shapes, as with `tff_pfl.Ladder`.

    Args:
        forms: The shapes of the tensors of each client.
    """
    for shapes in zip(*forms, strict=True):
        rows = [shape[0] if shape else 0 for shape in shapes]
        unit = math.gcd(*rows) or 1
        if any(_odd_part(number // unit) > 3 for number in rows):
            return False
    return True


def _odd_part(number: int) -> int:
    return number // (number & -number) if number else 0


class Column:
    """The tensor arrays in which groups collect one leaf of the clients' results."""

    def __init__(self, leaf_type, output: tf.TensorSpec, num_groups: tf.Tensor, differ: bool):
        """Makes the arrays.

        Args:
            leaf_type: The type of a client's leaf.
            output: The spec of the stack of a group.
            num_groups: The number of groups.
            differ: Whether the shapes may differ between groups.
        """
        self._leaf_type = leaf_type if differ and client_values.may_differ(leaf_type) else None
        shapes = [(output.dtype, output.shape)]
        if self._leaf_type is not None:
            shapes = [(output.dtype, [None]), (tf.int64, [None, client_values.rank(leaf_type)])]
        self.arrays = [
            tf.TensorArray(dtype, num_groups, element_shape=shape, infer_shape=False)
            for dtype, shape in shapes
        ]

    def cells(self, stack: tf.Tensor) -> list[tf.Tensor]:
        """Returns the tensors to write into the arrays for a group."""
        if self._leaf_type is None:
            return [stack]
        shape = tf.shape(stack, out_type=tf.int64)
        row = client_values.row_of_shape(shape[1:], client_values.rank(self._leaf_type))
        return [tf.reshape(stack, [-1]), tf.tile(row[tf.newaxis], [shape[0], 1])]

    def leaf(self, arrays: Iterator[tf.TensorArray]) -> client_values.Leaf:
        """Returns the leaf of all clients from the arrays after the last group."""
        if self._leaf_type is None:
            return client_values.Stacked(next(arrays).concat())
        elements, shapes = next(arrays).concat(), next(arrays).concat()
        return client_values.Grouped.make(elements, shapes, self._leaf_type)
