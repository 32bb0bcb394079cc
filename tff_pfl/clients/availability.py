"""Availabilities, which give the probability that a client can be reached in a round, by name.

An availability is a frozen dataclass that is called with a round and the `Devices` of the clients.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from tff_pfl.arguments.digests import digest_of
from tff_pfl.arguments.ranges import above, between, each, takes
from tff_pfl.arguments.registry import Registry

AVAILABILITIES = Registry("availability")


class Devices(NamedTuple):
    """The properties of the clients' devices, which are the same in all rounds.

    Attributes:
        classes: int64 `[clients]`, the device class of each client, from 0.
        num_classes: The number of classes.
        phases: float64 `[clients]` in [0, 1), the delay of each client's day, as a share of a day.
    """

    classes: np.ndarray
    num_classes: int
    phases: np.ndarray

    def of(self, client_ids: np.ndarray) -> "Devices":
        """Returns the devices of some of the clients, in their order."""
        return Devices(self.classes[client_ids], self.num_classes, self.phases[client_ids])

    def of_classes(self, name: str, values: Sequence[float]) -> np.ndarray:
        """Returns float64 `[clients]`, the value of each client's device class.

        Args:
            name: The name of the values, for the message.
            values: One value for each class, or one for all classes.

        Raises:
            ValueError: The number of values is neither 1 nor the number of classes.
        """
        if len(values) not in (1, self.num_classes):
            raise ValueError(
                f"{name}={tuple(values)} has {len(values)} numbers, but class_shares has "
                f"{self.num_classes} device classes. Give one number for each class or one for all."
            )
        return np.broadcast_to(np.asarray(values, np.float64), [self.num_classes])[self.classes]


class Availability(Protocol):
    """A frozen dataclass that gives the probability that each client can be reached."""

    def __call__(self, round_num: int, devices: Devices) -> np.ndarray:
        """Returns float64 `[clients]`, each client's probability in round `round_num`, from 0."""
        ...


@AVAILABILITIES.register("always")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Always:
    """An availability of all clients in all rounds."""

    def __call__(self, round_num: int, devices: Devices) -> np.ndarray:
        """Returns ones."""
        return np.ones(len(devices.classes))


@AVAILABILITIES.register("by_class")
@takes(probabilities=each(between(0, 1), fewest=1))
@dataclasses.dataclass(frozen=True, kw_only=True)
class ByClass:
    """An availability that depends on the device class of a client, but not on the round.

    Attributes:
        probabilities: One probability for each class, or one for all classes.
    """

    probabilities: tuple[float, ...] = (1.0,)

    def __call__(self, round_num: int, devices: Devices) -> np.ndarray:
        """Returns the probability of each client's class."""
        return devices.of_classes("probabilities", self.probabilities)


@AVAILABILITIES.register("diurnal")
@takes(rounds_per_day=above(0), least=between(0, 1), most=between(0, 1))
@dataclasses.dataclass(frozen=True, kw_only=True)
class Diurnal:
    """An availability that varies as a cosine of the client's time of day.

        least + (most - least) (1 + cos(2 pi (round / rounds_per_day - phase))) / 2

    Attributes:
        rounds_per_day: The number of rounds in a day.
        least: The probability at the worst time of the day.
        most: The probability at the best time of the day.
    """

    rounds_per_day: float = 24.0
    least: float = 0.0
    most: float = 1.0

    def __post_init__(self):
        """Checks that `least` is not above `most`."""
        if self.least > self.most:
            raise ValueError(f"least={self.least} must not be above most={self.most}.")

    def __call__(self, round_num: int, devices: Devices) -> np.ndarray:
        """Returns each client's probability at its time of day."""
        angle = 2.0 * math.pi * (round_num / self.rounds_per_day - devices.phases)
        return self.least + (self.most - self.least) * 0.5 * (1.0 + np.cos(angle))


def check_availability(availability: Any) -> None:
    """Checks that an availability can be compared when a run is resumed.

    Raises:
        KindError: See `digest_of`.
        ValueError: It is not an instance of a dataclass.
    """
    if isinstance(availability, type) or not dataclasses.is_dataclass(availability):
        raise ValueError(
            f"availability={availability!r} must be an instance of a frozen dataclass, whose "
            "options are compared when a run is resumed."
        )
    digest_of(availability)


def probabilities(availability: Availability, round_num: int, devices: Devices) -> np.ndarray:
    """Returns the probability of each client, or one for all of them.

    Raises:
        ValueError: The availability does not return such probabilities.
    """
    given = np.asarray(availability(round_num, devices))
    if given.dtype.kind not in "biuf" or given.shape not in ((), devices.classes.shape):
        raise ValueError(
            f"{availability} returns {given.dtype} of shape {given.shape} in round {round_num}, "
            f"but must return one number per client: {devices.classes.shape}."
        )
    wrong = given[~((given >= 0) & (given <= 1))]  # includes NaN
    if wrong.size:
        raise ValueError(
            f"{availability} returns {wrong[0]} in round {round_num}, but must return a "
            "probability in [0, 1] for each client."
        )
    return given
