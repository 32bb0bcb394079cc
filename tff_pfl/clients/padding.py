"""Pads the examples of clients that are computed together."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import tensorflow as tf

from tff_pfl.arguments.ranges import at_least, takes, whole
from tff_pfl.local.examples import Examples


def pad_examples(examples: Examples, capacity: int) -> Examples:
    """Returns a client's `size` examples in `capacity` rows; the other rows are zeros.

    Raises:
        ValueError: The client has more than `capacity` examples, or `size` is not in 0..rows.
    """
    size = int(examples.size)
    arrays = {name: tf.nest.flatten(getattr(examples, name)) for name in ("x", "y")}
    rows = {name: min(map(len, flat)) for name, flat in arrays.items()}
    fewest = min(rows.values())
    if not 0 <= size <= fewest:
        raise ValueError(
            f"A client's Examples have size {size}, which must be in 0 to {fewest}, the rows of "
            f"x ({rows['x']}) and y ({rows['y']})."
        )
    if size > capacity:
        raise ValueError(f"{size} examples do not fit into a capacity of {capacity}.")

    def pad(rows):
        rows = np.asarray(rows)
        padded = np.zeros((capacity, *rows.shape[1:]), rows.dtype)
        padded[:size] = rows[:size]
        return padded

    if all(len(array) == capacity == size for flat in arrays.values() for array in flat):
        return examples
    x, y = tf.nest.map_structure(pad, (examples.x, examples.y))
    return Examples(x, y, np.int32(size))


def shared_capacity(sizes: Iterable[int]) -> int:
    """Returns the least of 0, 1, 2, 3, 4, 6, 8, 12, ... that is at least the largest of `sizes`.

    Cohorts of similar clients get the same capacity and so share compiled functions. The largest
    client is padded by less than half of its rows.
    """
    largest = int(max(sizes, default=0))
    power = 1 << max(largest - 1, 0).bit_length()
    capacities = (power * 3 // 4, power) if power > 2 else (power,)
    return next(capacity for capacity in capacities if capacity >= largest) if largest else 0


@takes(batch_size=whole(1), group_cost=at_least(0))
@dataclasses.dataclass(frozen=True)
class Ladder:
    """The capacities of 0, 1, 2, 3, 4, 6, 8, 12, ... batches, for each client the least that fits.

    A cohort of unequal clients then has few different shapes, and the graph runtime computes all
    clients of one shape at once. Padding within a batch adds no steps. Small groups join the next
    larger one, which adds steps, but saves a group.

    Example:
        >>> ladder = tff_pfl.Ladder(batch_size=20)
        >>> [ladder.capacity(size) for size in (0, 7, 20, 21, 85, 300)]
        [0, 20, 20, 40, 120, 320]
        >>> ladder.capacities([7, 20, 85, 300])  # Three groups would take longer.
        [320, 320, 320, 320]

    Attributes:
        batch_size: The number of examples in a batch.
        group_cost: The time that a group takes besides its clients' steps, in steps of a client.
            The default was measured for a linear model on CPUs.
    """

    batch_size: int
    group_cost: float = 40.0

    def capacity(self, size: int) -> int:
        """Returns the number of rows for a client with `size` examples."""
        return self.batch_size * shared_capacity([-(-size // self.batch_size)])

    def capacities(self, sizes: Sequence[int]) -> list[int]:
        """Returns the number of rows for each client of a cohort."""
        own = list(map(self.capacity, sizes))
        joined: dict[int, int] = {}
        largest = max(own, default=0)
        for capacity in sorted(set(own), reverse=True):
            added_steps = own.count(capacity) * (largest - capacity) / self.batch_size
            largest = largest if added_steps < self.group_cost else capacity
            joined[capacity] = largest
        return [joined[capacity] for capacity in own]


def capacities_of(
    sizes: Sequence[int], capacity: int | Literal["cohort"] | Ladder | None
) -> list[int]:
    """Returns the number of rows for each client of a cohort; see `CohortDataSource`."""
    if capacity is None:
        return list(sizes)
    if isinstance(capacity, Ladder):
        return capacity.capacities(sizes)
    shared = shared_capacity(sizes) if capacity == "cohort" else capacity
    return [shared] * len(sizes)
