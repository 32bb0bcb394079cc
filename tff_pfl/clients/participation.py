"""Draws the clients that are selected and report in a round, from the seed and the round.

Some selectors also use what the server knows of clients; see `tff_pfl.clients.selectors`.

A selected client that does not report, for whatever reason, is not part of the round: it sends
nothing to the server and keeps its state.
"""

import functools
import math
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from tff_pfl.arguments.ranges import above, among, at_least, between, each, whole
from tff_pfl.arguments.settings import setting, settings
from tff_pfl.clients.availability import (
    Always,
    Availability,
    Devices,
    check_availability,
    probabilities,
)
from tff_pfl.clients.selectors import KnownClients, Selector, Uniform, check_selector, selected

SAMPLINGS = ("fixed", "poisson")

# Separate streams of random numbers for one seed, which partitions use too.
_COHORT_STREAM = 0xC0403
_AVAILABILITY_STREAM = 0xA7A11
_DROPOUT_STREAM = 0xD2080
_DURATION_STREAM = 0xD02A7
_CLASS_STREAM = 0xC1A55
_PHASE_STREAM = 0x9A5E0
_SPEED_STREAM = 0x59EED


def _uniform(seed, round_num, stream, num_clients) -> np.ndarray:
    """Draws float64 `[clients]` in [0, 1); client i's number does not depend on `num_clients`."""
    return np.random.default_rng([seed, round_num, stream]).random(num_clients)


def _normal(seed, round_num, stream, num_clients) -> np.ndarray:
    """Draws float64 `[clients]`, standard normal; see `_uniform`."""
    return np.random.default_rng([seed, round_num, stream]).standard_normal(num_clients)


@functools.lru_cache(4)
def _drawn_once(draw, seed, stream, num_clients) -> np.ndarray:
    """Draws a number for each client that is the same in all rounds."""
    drawn = draw(seed, 0, stream, num_clients)
    drawn.flags.writeable = False
    return drawn


@functools.lru_cache(4)
def _classes(seed, shares, num_clients) -> np.ndarray:
    """Draws int64 `[clients]`, the device class of each client."""
    bounds = np.cumsum(shares) / sum(shares)
    drawn = _drawn_once(_uniform, seed, _CLASS_STREAM, num_clients)
    classes = np.searchsorted(bounds[:-1], drawn, side="right")
    classes.flags.writeable = False
    return classes


class Participants(NamedTuple):
    """The clients of a round, as int32 ids in ascending order.

    Each client in `selected` is in exactly one of `dropped`, `late`, `surplus` and `reported`.

    Attributes:
        available: The clients that could be selected.
        selected: The clients that were selected.
        dropped: The selected clients that never report.
        late: The selected clients that would report after the deadline.
        surplus: The selected clients that report after the cohort is complete.
        reported: The cohort: the clients whose reports count.
        seconds: The simulated duration of the round; `None` if times are not simulated.
    """

    available: np.ndarray
    selected: np.ndarray
    dropped: np.ndarray
    late: np.ndarray
    surplus: np.ndarray
    reported: np.ndarray
    seconds: float | None

    def metrics(self) -> dict[str, float]:
        """Returns the counts, such as `participation/num_dropped`, and `participation/seconds`."""
        measured: dict[str, float] = {
            f"num_{name}": len(getattr(self, name)) for name in self._fields[:-1]
        }
        if self.seconds is not None:
            measured["seconds"] = self.seconds
        return {f"participation/{name}": value for name, value in measured.items()}


@settings(kw_only=True)
class Participation:
    """The rule by which clients are selected and report; by default all selected clients report.

    A client's draws depend on the seed, the round and the client only: a higher `dropout` or an
    earlier `deadline` loses the same clients and further ones.

    A round lasts until the last report that counts. If fewer clients report than the server waits
    for, it lasts until the deadline.

    `dropout` and `median_seconds` have one number for each device class, or one for all classes.

    Raises:
        ValueError: Some of the values contradict each other.
    """

    sampling: str = setting(
        'With "fixed", a cohort of the given size is drawn without replacement. With "poisson", '
        "each client is drawn independently, and the given size is the expected number of clients. "
        "Such a cohort may have any size and may be empty.",
        among(*SAMPLINGS),
        default="fixed",
    )
    over_selection: float = setting(
        "The number of selected clients divided by the size of the cohort; the number is rounded "
        "up. The first clients that report are the cohort.",
        at_least(1),
        default=1.0,
    )
    availability: Availability = setting(
        "The rule for the clients that can be selected. If there are too few, all of them "
        "are selected.",
        default=Always(),
    )
    selector: Selector = setting(
        "The rule that chooses among them, a `Selector`.", default=Uniform()
    )
    class_shares: tuple[float, ...] = setting(
        "The shares of the device classes, relative to their sum. A client's class is drawn once.",
        each(at_least(0), fewest=1),
        default=(1.0,),
    )
    dropout: tuple[float, ...] = setting(
        "The probability that a selected client never reports.",
        each(between(0, 1), fewest=1),
        default=(0.0,),
    )
    median_seconds: tuple[float, ...] = setting(
        "The median of the log-normal time until a client reports; with 0, reports take no time.",
        each(at_least(0), fewest=1),
        default=(0.0,),
    )
    client_spread: float = setting(
        "The standard deviation of the logarithm of this time between clients, drawn once for each "
        "client.",
        at_least(0),
        default=0.0,
    )
    round_spread: float = setting(
        "The same standard deviation between the rounds of a client.", at_least(0), default=0.0
    )
    deadline: float | None = setting(
        "The seconds after which reports are lost; None: no client is late.", above(0), default=None
    )

    def __post_init__(self):
        """Checks the values."""
        for name in ("class_shares", "dropout", "median_seconds"):
            object.__setattr__(self, name, tuple(getattr(self, name)))  # lists have no hash
        check_availability(self.availability)
        check_selector(self.selector)
        if self.sampling == "poisson" and self.over_selection != 1.0:
            raise ValueError(
                f"over_selection={self.over_selection} has no meaning with sampling='poisson', "
                "which has no fixed cohort size. Set over_selection=1 or sampling='fixed'."
            )
        if self.sampling == "poisson" and self.selects:
            raise ValueError(
                f"selector={self.selector} has no meaning with sampling='poisson', which draws "
                "each client independently. Set the selector to 'uniform' or sampling='fixed'."
            )
        if not sum(self.class_shares):
            raise ValueError(f"class_shares={self.class_shares} must not all be 0.")
        without_effect = self.client_spread or self.round_spread or self.deadline
        if without_effect and not self.takes_time:
            logging.warning(
                "client_spread, round_spread and deadline have no effect, since reports take no "
                "time: median_seconds=%s.",
                self.median_seconds,
            )
        # Checks that there is one number for each device class.
        devices = self.devices(0, 1)
        devices.of_classes("dropout", self.dropout)
        devices.of_classes("median_seconds", self.median_seconds)
        probabilities(self.availability, 0, devices)

    @property
    def takes_time(self) -> bool:
        """Whether rounds have a simulated duration."""
        return any(self.median_seconds)

    @property
    def selects(self) -> bool:
        """Whether clients are selected by another rule than uniformly at random."""
        return self.selector != Uniform()

    def check(self, num_clients: int, cohort_size: int) -> None:
        """Checks that a federation has enough clients for a cohort.

        Raises:
            ValueError: `cohort_size` is not a positive integer, `cohort_size * over_selection` is
                more than `num_clients`, or the selector cannot choose so many clients.
        """
        whole(1).check("The size of a cohort", cohort_size, ValueError)
        wanted = self._num_wanted(cohort_size)
        if wanted > num_clients:
            of = f"with over_selection={self.over_selection} asks for {wanted} clients"
            asked = of if wanted > cohort_size else "was asked for"
            raise ValueError(
                f"A cohort of {cohort_size} clients {asked}, but the federation has only "
                f"{num_clients}."
            )
        self.selector.check(wanted)

    def check_private(self, *, everybody_reports: bool = False) -> None:
        """Checks that clients are drawn with a known probability, for privacy.

        Args:
            everybody_reports: Whether each client of a cohort has to report, because it adds its
                part of the noise.

        Raises:
            ValueError: They are not, or some do not report.
        """
        if self.selects:
            raise ValueError(
                f"selector={self.selector}, but with privacy each client must be drawn with the "
                "same probability. Set the selector to 'uniform'."
            )
        if self.over_selection > 1:
            raise ValueError(
                f"over_selection={self.over_selection}, but with privacy, whether a client takes "
                "part must not depend on others. Set it to 1."
            )
        if self.sampling != "poisson" and self.availability != Always():
            raise ValueError(
                f"availability={self.availability}, but with privacy a cohort of a fixed size must "
                "be drawn from all clients. Set sampling to 'poisson', or let all clients always "
                "be available."
            )
        if not everybody_reports:
            return
        for name, is_right, right in (
            ("sampling", self.sampling == "fixed", "fixed"),
            ("dropout", not any(self.dropout), (0.0,)),
            ("deadline", self.deadline is None, None),
        ):
            if not is_right:
                raise ValueError(
                    f"{name}={getattr(self, name)!r}, but with distributed privacy each client of "
                    "a cohort has to report: it adds its part of the noise, and the server adds "
                    f"no noise. Set it to {right!r}."
                )

    def check_algorithm(self, algorithm: Any) -> None:
        """Checks that an `Algorithm` can have such cohorts; see `check_private`."""
        if algorithm.noise_multiplier is not None:
            needs_all = algorithm.made_for.smallest_cohort is not None
            self.check_private(everybody_reports=needs_all)

    def check_process(self, process: Any) -> None:
        """Checks that a `PersonalizedProcess` can have such cohorts.

        Raises:
            ValueError: The selector needs losses, but there is no global model or reports are not
                sent in the clear.
        """
        if self.selector.needs_losses and process.algorithm.report != "clear":
            raise ValueError(
                f"selector={self.selector} needs the losses of single clients, but this process "
                "hides them: its measurements are sent by secure sums or not at all."
            )
        if self.selector.needs_losses and process.global_weights is None:
            raise ValueError(
                f"selector={self.selector} needs clients' losses of the global model, but the "
                "algorithm has no global model. Choose another selector."
            )

    def devices(self, seed: int, num_clients: int) -> Devices:
        """Draws the clients' devices; a client's device does not depend on `num_clients`."""
        return Devices(
            classes=_classes(seed, self.class_shares, num_clients),
            num_classes=len(self.class_shares),
            phases=_drawn_once(_uniform, seed, _PHASE_STREAM, num_clients),
        )

    def participants(
        self,
        seed: int,
        round_num: int,
        num_clients: int,
        cohort_size: int,
        known: KnownClients | None = None,
    ) -> Participants:
        """Draws the clients of a round; without `known`, they are the same for every algorithm.

        Args:
            seed: The run's seed, not negative.
            round_num: The round, from 0.
            num_clients: The number of clients in the federation.
            cohort_size: The size of the cohort; with "poisson", its expected size.
            known: All clients, as the server knows them; only for selectors that are not uniform.

        Raises:
            ValueError: See `check`; the selector needs `known`, or its result is invalid.
        """
        self.check(num_clients, cohort_size)
        if self.selects and known is None:
            raise ValueError(
                f"selector={self.selector} depends on more than the seed and the round: only "
                "`CohortIterator.select` can select its cohorts."
            )
        devices = self.devices(seed, num_clients)
        available = self._available(seed, round_num, devices)
        chosen = self._selected(seed, round_num, available, num_clients, cohort_size, known)
        drops = self._drops(seed, round_num, devices, chosen)
        seconds = self._seconds(seed, round_num, devices, chosen)
        is_late = ~drops & (seconds > (self.deadline or math.inf))
        arrives = ~(drops | is_late)
        order = np.argsort(seconds[arrives], kind="stable")
        arriving, seconds = chosen[arrives][order], seconds[arrives][order]
        most = cohort_size if self.sampling == "fixed" else num_clients
        reported = arriving[:most]
        is_incomplete = len(reported) < min(most, len(chosen))
        return Participants(
            available=available.astype(np.int32),  # sorted already
            selected=_ids(chosen),
            dropped=_ids(chosen[drops]),
            late=_ids(chosen[is_late]),
            surplus=_ids(arriving[most:]),
            reported=_ids(reported),
            seconds=self._duration(seconds[:most], is_incomplete),
        )

    def _num_wanted(self, cohort_size) -> int:
        exact = cohort_size * self.over_selection
        return math.ceil(round(exact, 9))  # 50 * 1.1 is 55, not 55.00000000000001

    def _available(self, seed, round_num, devices) -> np.ndarray:
        """Draws the ids of the clients that can be selected."""
        if self.availability == Always():
            return np.arange(len(devices.classes))
        drawn = _uniform(seed, round_num, _AVAILABILITY_STREAM, len(devices.classes))
        return np.flatnonzero(drawn < probabilities(self.availability, round_num, devices))

    def _selected(self, seed, round_num, available, num_clients, cohort_size, known) -> np.ndarray:
        """Draws the clients that are selected from `available`.

        With "fixed", the clients are in an order that decides between simultaneous reports.
        """
        if self.sampling == "poisson":
            drawn = _uniform(seed, round_num, _COHORT_STREAM, num_clients)
            return available[drawn[available] < cohort_size / num_clients]
        number = min(self._num_wanted(cohort_size), len(available))
        rng = np.random.default_rng([seed, round_num, _COHORT_STREAM])
        if self.selects and number:
            return selected(self.selector, known.at(available), number, rng)
        return rng.choice(available, number, replace=False)

    def _drops(self, seed, round_num, devices, selected) -> np.ndarray:
        """Draws bool `[selected]`, whether each client drops out."""
        if not any(self.dropout):
            return np.zeros(len(selected), np.bool_)
        drawn = _uniform(seed, round_num, _DROPOUT_STREAM, len(devices.classes))
        return drawn[selected] < devices.of(selected).of_classes("dropout", self.dropout)

    def _seconds(self, seed, round_num, devices, selected) -> np.ndarray:
        """Draws float64 `[selected]`, the time until each client would report."""
        if not self.takes_time:
            return np.zeros(len(selected))
        num_clients = len(devices.classes)
        client_noise = _drawn_once(_normal, seed, _SPEED_STREAM, num_clients)[selected]
        round_noise = _normal(seed, round_num, _DURATION_STREAM, num_clients)[selected]
        spread = self.client_spread * client_noise + self.round_spread * round_noise
        medians = devices.of(selected).of_classes("median_seconds", self.median_seconds)
        return medians * np.exp(spread)

    def _duration(self, seconds, is_incomplete) -> float | None:
        """Returns the seconds of a round, given the times of the reports that count."""
        if not self.takes_time:
            return None
        if is_incomplete and self.deadline:
            return self.deadline
        return float(seconds.max(initial=0))


EVERYBODY_REPORTS = Participation()
"""The default participation: cohorts have a fixed size, and all selected clients report."""


def _ids(client_ids) -> np.ndarray:
    return np.sort(client_ids).astype(np.int32)
