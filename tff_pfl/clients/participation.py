"""Who is selected in a round, and who of them reports: clients drop out, come late, are away."""

import dataclasses
import functools
import math
from typing import NamedTuple

import numpy as np

from tff_pfl.names import check_names
from tff_pfl.ranges import above_or_infinite, at_least, takes, up_to, whole

SAMPLINGS = ("fixed", "poisson")
AVAILABILITIES = ("always", "diurnal")
# Tell the random numbers of cohorts from those of the partition, which has the same seed, and from
# each other.
_COHORT_STREAM, _FATE_STREAM, _NATURE_STREAM = 0xC0403, 0xFA7E, 0x7A7E


class Cohort(NamedTuple):
    """The clients of a round.

    Attributes:
        reporting: int32 ids of those whose results are used, in ascending order.
        num_available: How many could have been selected.
        num_selected: How many were.
        num_dropped: Of these, how many never report.
        num_late: How many come after the deadline.
        num_surplus: How many report when the server has enough.
        duration: Until the last one that counts, or to the deadline, in medians of what a client
            takes; 0 of nobody.
    """

    reporting: np.ndarray
    num_available: int
    num_selected: int
    num_dropped: int
    num_late: int
    num_surplus: int
    duration: float

    @property
    def metrics(self) -> dict[str, float]:
        """Numbers by name, for the metrics of the round."""
        numbers = self._asdict()
        return {"num_reporting": len(numbers.pop("reporting"))} | numbers


@takes(
    over_selection=at_least(1),
    dropout=up_to(0, 1),
    rounds_per_day=whole(1),
    slow_share=up_to(0, 1),
    slow_factor=at_least(1),
    spread=at_least(0),
    deadline=above_or_infinite(0),
)
@dataclasses.dataclass(frozen=True)
class Participation:
    """How cohorts come about: a pure function of the seed and the round, for every algorithm.

    A client that is selected and does not report costs its own work, and nothing of it is used: it
    keeps the state that it had. By default, all are there and all report.

    Attributes:
        sampling: "fixed": as many as asked for, without replacement; or "poisson": each client by
            itself, with such a probability that so many are expected. Then a cohort may be of any
            size, and of nobody.
        over_selection: So many times more clients are selected than are asked for; of those that
            report, the first ones count, as many as were asked for.
        availability: "always"; or "diurnal": each client has a time of day at which it is there for
            certain, half a day later it is not, and in between with a probability that is a cosine.
            Where fewer are there than are to be selected, all of these are.
        rounds_per_day: For how long the day is.
        dropout: The probability that a selected client never reports.
        slow_share: The probability that a client has a slow device, as long as it lives.
        slow_factor: How much longer such a device takes.
        spread: Of the logarithm of what a client takes, the standard deviation; the median is 1, of
            a slow device `slow_factor`.
        deadline: After this time, results are late and lost.
    """

    sampling: str = "fixed"
    over_selection: float = 1.0
    availability: str = "always"
    rounds_per_day: int = 24
    dropout: float = 0.0
    slow_share: float = 0.0
    slow_factor: float = 5.0
    spread: float = 0.0
    deadline: float = float("inf")

    def __post_init__(self):
        check_names("sampling", [self.sampling], SAMPLINGS)
        check_names("availability", [self.availability], AVAILABILITIES)

    @functools.cached_property
    def is_certain(self) -> bool:
        """Whether everybody who is selected reports, as by default."""
        return self == Participation()

    def cohort(self, seed: int, round_num: int, num_clients: int, number: int) -> Cohort:
        """The cohort of a round.

        Args:
            seed: The run's seed, not negative.
            round_num: Number of the round, from 0.
            num_clients: Number of clients in the federation.
            number: How many clients are asked for.

        Raises:
            ValueError: If `number` is not in `1 .. num_clients`.
        """
        if not 0 < number <= num_clients:
            raise ValueError(
                f"A cohort of {number} clients cannot be drawn without replacement from a "
                f"federation of {num_clients}; its size is 1 to {num_clients}."
            )
        rng = np.random.default_rng([seed, round_num, _COHORT_STREAM])
        if self.is_certain:  # which is quick
            selected = np.sort(rng.choice(num_clients, number, replace=False)).astype(np.int32)
            return Cohort(selected, num_clients, number, 0, 0, 0, 1.0)
        fates = np.random.default_rng([seed, round_num, _FATE_STREAM])
        available = self._available(fates, seed, round_num, num_clients)
        selected = self._selected(rng, available, num_clients, number)
        is_dropped = fates.random(len(selected)) < self.dropout
        durations = self._durations(fates, seed, num_clients, selected)
        is_late = ~is_dropped & (durations > self.deadline)
        in_time = np.flatnonzero(~is_dropped & ~is_late)
        enough = number if self.over_selection > 1 else len(selected)
        first = in_time[np.argsort(durations[in_time], kind="stable")][:enough]
        duration = durations[first].max(initial=0.0)
        if len(first) < min(enough, len(selected)) and np.isfinite(self.deadline):
            duration = self.deadline  # the server waits for those who do not come
        return Cohort(
            reporting=np.sort(selected[first]).astype(np.int32),
            num_available=len(available),
            num_selected=len(selected),
            num_dropped=int(is_dropped.sum()),
            num_late=int(is_late.sum()),
            num_surplus=len(in_time) - len(first),
            duration=float(duration),
        )

    def ever(self, seed: int, rounds: int, num_clients: int, number: int) -> np.ndarray:
        """bool `[num_clients]`: whose results were used in the first `rounds`."""
        cohorts = [self.cohort(seed, t, num_clients, number).reporting for t in range(rounds)]
        return np.isin(np.arange(num_clients), np.concatenate([[], *cohorts]))

    def _available(self, fates, seed, round_num, num_clients) -> np.ndarray:
        everybody = np.arange(num_clients)
        if self.availability == "always":
            return everybody
        times = _natures(seed, num_clients)[0]
        probabilities = 0.5 + 0.5 * np.cos(2 * np.pi * (round_num / self.rounds_per_day - times))
        return everybody[fates.random(num_clients) < probabilities]

    def _selected(self, rng, available, num_clients, number) -> np.ndarray:
        wanted = self.over_selection * number
        if self.sampling == "poisson":
            return available[rng.random(len(available)) < wanted / num_clients]
        return rng.choice(available, min(math.ceil(wanted), len(available)), replace=False)

    def _durations(self, fates, seed, num_clients, selected) -> np.ndarray:
        durations = np.exp(self.spread * fates.standard_normal(len(selected)))
        if self.slow_share:
            is_slow = _natures(seed, num_clients)[1][selected] < self.slow_share
            durations = np.where(is_slow, self.slow_factor, 1.0) * durations
        return durations


def sample_cohort(seed: int, round_num: int, num_clients: int, cohort_size: int) -> np.ndarray:
    """The cohort of a round in which all report: a pure function, the same for every algorithm.

    Args:
        seed: The run's seed, not negative.
        round_num: Number of the round, from 0.
        num_clients: Number of clients in the federation.
        cohort_size: How many of them take part.

    Returns:
        int32 `[cohort_size]` client ids, uniform without replacement, in ascending order.

    Raises:
        ValueError: If `cohort_size` is not in `1 .. num_clients`.
    """
    return Participation().cohort(seed, round_num, num_clients, cohort_size).reporting


@functools.lru_cache(4)
def _natures(seed: int, num_clients: int) -> np.ndarray:
    """float64 `[2, clients]`, in [0, 1): a client's time of day, and how good its device is."""
    return np.random.default_rng([seed, _NATURE_STREAM]).random([2, num_clients])
