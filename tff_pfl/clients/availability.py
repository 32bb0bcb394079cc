"""Which clients can be reached in a round: by name, a probability for each client and round.

An availability is a frozen dataclass that is called with a round and the `Devices` of the clients.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from tff_pfl.ranges import above, between, each, takes
from tff_pfl.registry import Registry

AVAILABILITIES = Registry("availability")


class Devices(NamedTuple):
    """Properties of the clients' devices, which last as long as the run.

    Attributes:
        classes: int64 `[clients]`, the device class of each, from 0.
        num_classes: The number of classes.
        phases: float64 `[clients]` in [0, 1), the share of a day by which a client's day is later.
    """

    classes: np.ndarray
    num_classes: int
    phases: np.ndarray

    def of(self, client_ids: np.ndarray) -> "Devices":
        """Returns the devices of some of the clients, in their order."""
        return Devices(self.classes[client_ids], self.num_classes, self.phases[client_ids])

    def of_classes(self, name: str, values: Sequence[float]) -> np.ndarray:
        """Returns float64 `[clients]`, the number of each client's class.

        Args:
            name: The name of the numbers, for the message.
            values: One for each class, or one for all.

        Raises:
            ValueError: If there are more or fewer.
        """
        if len(values) not in (1, self.num_classes):
            raise ValueError(
                f"{name}={tuple(values)} has {len(values)} numbers, but class_shares has "
                f"{self.num_classes} device classes. Give one number for each, or one for all."
            )
        return np.broadcast_to(np.asarray(values, np.float64), [self.num_classes])[self.classes]


class Availability(Protocol):
    """How probable it is that clients can be reached; a frozen dataclass."""

    def __call__(self, round_num: int, devices: Devices) -> np.ndarray:
        """Returns float64 `[clients]`, the probability of each in a round, from 0."""
        ...


@AVAILABILITIES.register("always")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Always:
    """Makes all clients available in all rounds."""

    def __call__(self, round_num: int, devices: Devices) -> np.ndarray:
        return np.ones(len(devices.classes))


@AVAILABILITIES.register("by_class")
@takes(probabilities=each(between(0, 1), fewest=1))
@dataclasses.dataclass(frozen=True, kw_only=True)
class ByClass:
    """Draws each client anew in each round, by the probability of its device class.

    Attributes:
        probabilities: One for each class, or one for all.
    """

    probabilities: tuple[float, ...] = (1.0,)

    def __call__(self, round_num: int, devices: Devices) -> np.ndarray:
        return devices.of_classes("probabilities", self.probabilities)


@AVAILABILITIES.register("diurnal")
@takes(rounds_per_day=above(0), least=between(0, 1), most=between(0, 1))
@dataclasses.dataclass(frozen=True, kw_only=True)
class Diurnal:
    """Draws each client by a probability that is a cosine of its own time of day.

        least + (most - least) (1 + cos(2 pi (round / rounds_per_day - phase))) / 2

    Attributes:
        rounds_per_day: Rounds, after which all is as before.
        least: The probability at the worst time of the day.
        most: The probability at the best time.
    """

    rounds_per_day: float = 24.0
    least: float = 0.0
    most: float = 1.0

    def __post_init__(self):
        if self.least > self.most:
            raise ValueError(
                f"least={self.least} is above most={self.most}, but must be at most that."
            )

    def __call__(self, round_num: int, devices: Devices) -> np.ndarray:
        angle = 2.0 * math.pi * (round_num / self.rounds_per_day - devices.phases)
        return self.least + (self.most - self.least) * 0.5 * (1.0 + np.cos(angle))
