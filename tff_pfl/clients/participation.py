"""The clients that are selected in a round, and report: a pure function of seed and round.

A client that is selected and does not report, for whatever reason, is not part of the round: it
sends nothing to the server and keeps the state that it had.
"""

import dataclasses
import functools
import math
from typing import NamedTuple

import numpy as np
from absl import logging

from tff_pfl.clients.availability import Always, Availability, Devices
from tff_pfl.names import check_names
from tff_pfl.ranges import above, at_least, between, each, takes, whole

SAMPLINGS = ("fixed", "poisson")

# Streams of random numbers that share a seed, also with the partition.
_COHORT_STREAM = 0xC0403
_AVAILABILITY_STREAM = 0xA7A11
_DROPOUT_STREAM = 0xD2080
_DURATION_STREAM = 0xD02A7
_CLASS_STREAM = 0xC1A55
_PHASE_STREAM = 0x9A5E0
_SPEED_STREAM = 0x59EED


def _uniform(seed, round_num, stream, num_clients) -> np.ndarray:
    """Draws float64 `[clients]` in [0, 1); a client's does not depend on how many follow."""
    return np.random.default_rng([seed, round_num, stream]).random(num_clients)


def _normal(seed, round_num, stream, num_clients) -> np.ndarray:
    """Draws float64 `[clients]`, standard normal; see `_uniform`."""
    return np.random.default_rng([seed, round_num, stream]).standard_normal(num_clients)


@functools.lru_cache(4)
def _for_life(draw, seed, stream, num_clients) -> np.ndarray:
    """Draws once for each client, and remembers it for every round."""
    drawn = draw(seed, 0, stream, num_clients)
    drawn.flags.writeable = False
    return drawn


@functools.lru_cache(4)
def _classes(seed, shares, num_clients) -> np.ndarray:
    """Draws int64 `[clients]`, the device class of each."""
    bounds = np.cumsum(shares) / sum(shares)
    drawn = _for_life(_uniform, seed, _CLASS_STREAM, num_clients)
    classes = np.searchsorted(bounds[:-1], drawn, side="right")
    classes.flags.writeable = False
    return classes


class Participants(NamedTuple):
    """The clients of a round: int32 ids in ascending order.

    `selected` are `dropped`, `late`, `surplus` and `reported`, each client once.

    Attributes:
        available: Clients that could have been selected.
        selected: Clients that were selected.
        dropped: Selected clients that never reported.
        late: Selected clients that would have reported after the deadline.
        surplus: Selected clients that reported when there were enough.
        reported: The cohort: clients that the server heard from in time.
        seconds: The simulated duration of the round; `None` where nothing takes time.
    """

    available: np.ndarray
    selected: np.ndarray
    dropped: np.ndarray
    late: np.ndarray
    surplus: np.ndarray
    reported: np.ndarray
    seconds: float | None

    def metrics(self) -> dict[str, float]:
        """Returns the number of each, as `participation/num_dropped`, and `.../seconds`."""
        measured = {f"num_{name}": len(getattr(self, name)) for name in self._fields[:-1]}
        if self.seconds is not None:
            measured["seconds"] = self.seconds
        return {f"participation/{name}": value for name, value in measured.items()}


@takes(
    over_selection=at_least(1),
    class_shares=each(at_least(0), fewest=1),
    dropout=each(between(0, 1), fewest=1),
    median_seconds=each(at_least(0), fewest=1),
    client_spread=at_least(0),
    round_spread=at_least(0),
    deadline=above(0),
)
@dataclasses.dataclass(frozen=True, kw_only=True)
class Participation:
    """How clients come to take part in rounds; by default all that are selected report.

    A client's draws depend on the seed, the round and the client alone: a higher
    `dropout` or an earlier `deadline` loses the same clients, and others besides.

    A round lasts until the last report that counts; if fewer come than the server waits for, until
    the deadline.

    Numbers of device classes are one for each class, or one for all.

    Attributes:
        sampling: "fixed": so many clients as a cohort has, without replacement. "poisson": each
            client by itself, with such a probability that so many are expected; cohorts are of any
            size, of nobody, too.
        over_selection: So many times the clients of a cohort are selected, rounded up, and the
            first that report are the cohort.
        availability: The clients that can be selected; if they are too few, all of them are.
        class_shares: The shares of the device classes, relative to their sum; a client's class is
            drawn once.
        dropout: The probability that a selected client never reports.
        median_seconds: The median time until a client reports, which is log-normal. 0: no time.
        client_spread: The standard deviation of its logarithm between clients, drawn once for each.
        round_spread: The standard deviation between the rounds of a client.
        deadline: Seconds after which reports are lost. `None`: nobody is late.

    Raises:
        ValueError: If some of these do not fit together.
    """

    sampling: str = "fixed"
    over_selection: float = 1.0
    availability: Availability = Always()
    class_shares: tuple[float, ...] = (1.0,)
    dropout: tuple[float, ...] = (0.0,)
    median_seconds: tuple[float, ...] = (0.0,)
    client_spread: float = 0.0
    round_spread: float = 0.0
    deadline: float | None = None

    def __post_init__(self):
        for name in ("class_shares", "dropout", "median_seconds"):
            object.__setattr__(self, name, tuple(getattr(self, name)))  # lists have no hash
        check_names("sampling", [self.sampling], SAMPLINGS)
        availability = self.availability
        if isinstance(availability, type) or not dataclasses.is_dataclass(availability):
            raise ValueError(
                f"availability={availability!r} must be an instance of a frozen dataclass, whose "
                "options tell it apart from others when a run is resumed."
            )
        if self.sampling == "poisson" and self.over_selection != 1.0:
            raise ValueError(
                f"over_selection={self.over_selection}, but sampling='poisson' has no number of "
                "clients that would be enough. Set over_selection=1 or sampling='fixed'."
            )
        if not sum(self.class_shares):
            raise ValueError(f"class_shares={self.class_shares} must not all be 0.")
        without_effect = self.client_spread or self.round_spread or self.deadline
        if without_effect and not self.takes_time:
            logging.warning(
                "client_spread, round_spread and deadline have no effect: median_seconds=%s, and "
                "nothing takes time.",
                self.median_seconds,
            )
        devices = self.devices(0, 1)  # refuses more or fewer numbers than classes
        devices.of_classes("dropout", self.dropout)
        devices.of_classes("median_seconds", self.median_seconds)
        self._probabilities(0, devices)

    @property
    def takes_time(self) -> bool:
        """Whether rounds have a simulated duration."""
        return any(self.median_seconds)

    def check(self, num_clients: int, cohort_size: int) -> None:
        """Checks that a federation has the clients to be selected.

        Raises:
            ValueError: If `cohort_size` is not an integer or, times `over_selection`, not in
                `1 .. num_clients`.
        """
        whole(1).check("The size of a cohort", cohort_size, ValueError)
        wanted = self._num_wanted(cohort_size)
        if wanted > num_clients:
            with_more = f" with over_selection={self.over_selection}" * (wanted > cohort_size)
            raise ValueError(
                f"A cohort of {cohort_size} clients{with_more} asks for {wanted} clients, but the "
                f"federation has only {num_clients}."
            )

    def devices(self, seed: int, num_clients: int) -> Devices:
        """Draws the clients' devices; a client's does not depend on `num_clients`."""
        return Devices(
            classes=_classes(seed, self.class_shares, num_clients),
            num_classes=len(self.class_shares),
            phases=_for_life(_uniform, seed, _PHASE_STREAM, num_clients),
        )

    def participants(
        self, seed: int, round_num: int, num_clients: int, cohort_size: int
    ) -> Participants:
        """Draws the clients of a round, the same for every algorithm.

        Args:
            seed: The run's seed, not negative.
            round_num: Number of the round, from 0.
            num_clients: Number of clients in the federation.
            cohort_size: The number of clients to take part; with "poisson", its mean.

        Raises:
            ValueError: See `check`.
        """
        self.check(num_clients, cohort_size)
        if self == EVERYBODY_REPORTS:
            return _all_of_a_cohort(seed, round_num, num_clients, cohort_size)
        devices = self.devices(seed, num_clients)
        available = self._available(seed, round_num, devices)
        selected = self._selected(seed, round_num, available, num_clients, cohort_size)
        drops = self._drops(seed, round_num, devices, selected)
        seconds = self._seconds(seed, round_num, devices, selected)
        is_late = ~drops & (seconds > (self.deadline or math.inf))
        arrives = ~(drops | is_late)
        order = np.argsort(seconds[arrives], kind="stable")
        arriving, seconds = selected[arrives][order], seconds[arrives][order]
        enough = cohort_size if self.sampling == "fixed" else num_clients
        reported = arriving[:enough]
        waits_in_vain = len(reported) < min(enough, len(selected))
        return Participants(
            available=available.astype(np.int32),  # which are in order
            selected=_ids(selected),
            dropped=_ids(selected[drops]),
            late=_ids(selected[is_late]),
            surplus=_ids(arriving[enough:]),
            reported=_ids(reported),
            seconds=self._duration(seconds[:enough], waits_in_vain),
        )

    def _num_wanted(self, cohort_size) -> int:
        exact = cohort_size * self.over_selection
        return math.ceil(round(exact, 9))  # 50 times 1.1 is 55, and not a little more

    def _available(self, seed, round_num, devices) -> np.ndarray:
        """Draws the ids of the clients that can be selected."""
        if self.availability == Always():
            return np.arange(len(devices.classes))
        drawn = _uniform(seed, round_num, _AVAILABILITY_STREAM, len(devices.classes))
        return np.flatnonzero(drawn < self._probabilities(round_num, devices))

    def _probabilities(self, round_num, devices) -> np.ndarray:
        """Returns the probabilities of the availability, and checks them."""
        given = np.asarray(self.availability(round_num, devices))
        if given.dtype.kind not in "biuf" or given.shape not in ((), devices.classes.shape):
            raise ValueError(
                f"{self.availability} gives {given.dtype} of shape {given.shape} in round "
                f"{round_num}, but must give a number for each client: {devices.classes.shape}."
            )
        wrong = given[~((given >= 0) & (given <= 1))]  # NaN is neither
        if wrong.size:
            raise ValueError(
                f"{self.availability} gives {wrong[0]} in round {round_num}, but must give a "
                "probability in [0, 1] for each client."
            )
        return given

    def _selected(self, seed, round_num, available, num_clients, cohort_size) -> np.ndarray:
        """Draws the clients that are selected from `available`.

        With "fixed" they are in a random order, which decides between simultaneous reports.
        """
        if self.sampling == "poisson":
            drawn = _uniform(seed, round_num, _COHORT_STREAM, num_clients)
            return available[drawn[available] < cohort_size / num_clients]
        number = min(self._num_wanted(cohort_size), len(available))
        return _choose(seed, round_num, available, number)

    def _drops(self, seed, round_num, devices, selected) -> np.ndarray:
        """Returns bool `[selected]`: whether each drops out."""
        drawn = _uniform(seed, round_num, _DROPOUT_STREAM, len(devices.classes))
        return drawn[selected] < devices.of(selected).of_classes("dropout", self.dropout)

    def _seconds(self, seed, round_num, devices, selected) -> np.ndarray:
        """Draws float64 `[selected]`, the time until each would report."""
        if not self.takes_time:
            return np.zeros(len(selected))
        num_clients = len(devices.classes)
        of_life = _for_life(_normal, seed, _SPEED_STREAM, num_clients)
        of_round = _normal(seed, round_num, _DURATION_STREAM, num_clients)
        spread = self.client_spread * of_life[selected] + self.round_spread * of_round[selected]
        medians = devices.of(selected).of_classes("median_seconds", self.median_seconds)
        return medians * np.exp(spread)

    def _duration(self, seconds, waits_in_vain) -> float | None:
        """Returns the seconds of a round, given those of the reports that count."""
        if not self.takes_time:
            return None
        if waits_in_vain and self.deadline:
            return self.deadline
        return float(seconds.max(initial=0))


EVERYBODY_REPORTS = Participation()
"""The default: a cohort of a fixed size, and all of it reports."""


def _all_of_a_cohort(seed, round_num, num_clients, cohort_size) -> Participants:
    """Draws the clients of `EVERYBODY_REPORTS`, without a draw for each client."""
    nobody = np.zeros([0], np.int32)
    cohort = _ids(_choose(seed, round_num, num_clients, cohort_size))
    return Participants(
        available=np.arange(num_clients, dtype=np.int32),
        selected=cohort,
        dropped=nobody,
        late=nobody,
        surplus=nobody,
        reported=cohort,
        seconds=None,
    )


def _choose(seed, round_num, client_ids, number) -> np.ndarray:
    """Draws from ids, or from a number of clients, uniformly without replacement."""
    rng = np.random.default_rng([seed, round_num, _COHORT_STREAM])
    return rng.choice(client_ids, number, replace=False)


def _ids(client_ids) -> np.ndarray:
    return np.sort(client_ids).astype(np.int32)
