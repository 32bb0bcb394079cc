"""What of a run is on disk, and comes back when it is resumed."""

import copy
import dataclasses
import json
import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from tff_pfl.clients import (
    ClientStateStore,
    CohortDataSource,
    CohortIterator,
    ForeignStateError,
    UnknownCohortSourceError,
    deserialize,
    serialize,
)
from tff_pfl.data import FederatedDataset
from tff_pfl.evaluation import from_text, to_text
from tff_pfl.experiment.results import Evaluation
from tff_pfl.experiment.run_directory import OutputDirectoryError
from tff_pfl.privacy import PrivacyLoss
from tff_pfl.templates import PersonalizedProcess


@dataclasses.dataclass
class Progress:
    """How far a run has come: all that is committed beside the states of the clients.

    Attributes:
        server_state: The process's `ServerState`.
        iterator: Of the cohorts; it counts the rounds.
        reported: bool `[clients]`, who was in a cohort, and reported.
        evaluations: Those so far, in order.
        metrics: Of the last round's training, by name.
        timings: Seconds of the last round's training, by name.
        seconds: Of training and evaluation.
        released: See `MetricsLog.released`.
        watched: `(round, value)` of each evaluation that an early stop is decided by.
        ended: The round that was evaluated as the last one, if there is one yet; else 0.
        privacy: What its rounds reveal is counted by; `None`: nothing is counted.
    """

    server_state: Any
    iterator: CohortIterator
    reported: np.ndarray
    evaluations: list[Evaluation] = dataclasses.field(default_factory=list)
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    timings: Mapping[str, float] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0
    released: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    watched: list[tuple[int, float]] = dataclasses.field(default_factory=list)
    ended: int = 0
    privacy: PrivacyLoss | None = None

    @property
    def round_num(self) -> int:
        """Rounds done."""
        return self.iterator.round_num

    def forget_evaluation(self) -> None:
        """Forgets what was evaluated after the last round, if anything was."""
        round_num = self.round_num
        self.evaluations = [e for e in self.evaluations if e.round_num != round_num]
        self.watched = [(number, value) for number, value in self.watched if number != round_num]
        self.ended = 0

    def count_privacy(self, path: str, privacy: PrivacyLoss | None) -> None:
        """Says what rounds are counted by from now on, which is what they were before.

        Args:
            path: Of the run.
            privacy: What counts; `None`: nothing.

        Raises:
            OutputDirectoryError: If the rounds so far were counted by anything else, or not at
                all: epsilon has to count all rounds.
        """
        before = self.privacy
        is_same = privacy is None if before is None else before.is_close(privacy)
        if self.round_num and not is_same:
            was, now = (of or "not counted" for of in (before, privacy))
            raise OutputDirectoryError(
                f"Cannot resume the run in {path}: the privacy of its rounds was\n  {was}\nnow it "
                f"is\n  {now}\nResume it with its own, or begin another one."
            )
        self.privacy = privacy

    def copy(self) -> "Progress":
        """As it is now, whatever happens to this one."""
        return dataclasses.replace(
            self,
            iterator=copy.deepcopy(self.iterator),
            reported=self.reported.copy(),
            evaluations=list(self.evaluations),
            watched=list(self.watched),
        )


def client_states(
    process: PersonalizedProcess, path: str, *, read_only: bool = False
) -> ClientStateStore:
    """The states of a process's clients, with the checkpoint that is committed beside them."""
    return ClientStateStore(
        process.initialize_clients, process.client_state_type, path, read_only=read_only
    )


class Checkpoint:
    """A consistent generation of a run: what is committed beside the states of the clients.

    Args:
        store: Of the states.
        process: The run's.
        dataset: The federation's data.
        clients_per_round: Size of a cohort.
    """

    def __init__(
        self,
        store: ClientStateStore,
        process: PersonalizedProcess,
        dataset: FederatedDataset,
        clients_per_round: int,
    ):
        self._store = store
        self._process = process
        self._data = {"data": dataset.fingerprint, "inputs": dataset.inputs_fingerprint}
        self._clients_per_round = clients_per_round
        self._state_type = process.initialize.type_signature.result.member

    def load(self, source: CohortDataSource) -> Progress:
        """What was committed last, or the beginning of a new run.

        Args:
            source: Of the cohorts.

        Raises:
            OutputDirectoryError: If the run has other data, or another partition of them, or its
                cohorts are drawn otherwise, or are of another size, or it has other noise.
        """
        committed = self._store.attachment("progress")
        if committed is None:
            nobody = np.zeros([source.num_clients], np.bool_)
            return Progress(self._process.initialize(), source.iterator(), nobody)
        content = json.loads(committed)
        self._check_data(content)
        before = content.get("clients_per_round", self._clients_per_round)  # earlier versions
        if before != self._clients_per_round:
            raise OutputDirectoryError(
                f"The run in {os.path.dirname(self._store.path)} has rounds of {before} clients, "
                f"but now they are to be of {self._clients_per_round}. Resume it with "
                f"clients_per_round={before}, or begin another one."
            )
        self._check_noise(content)
        try:
            state = deserialize(self._store.attachment("server_state"), self._state_type)
        except ForeignStateError as error:
            raise ForeignStateError(f"The server's state in {self._store.path}: {error}") from error
        try:
            iterator = CohortIterator.from_bytes(self._store.attachment("iterator"))
        except UnknownCohortSourceError:  # the data and the type are those of the run
            raise OutputDirectoryError(
                f"The run in {os.path.dirname(self._store.path)} draws its cohorts with another "
                "seed, or participation. Resume it with its own, or begin another one."
            ) from None
        evaluations = [
            Evaluation(number, from_text(metrics)) for number, metrics in content["evaluations"]
        ]
        # Earlier versions took any evaluation of the last round for that of the end.
        ended = evaluations[-1].round_num if evaluations else 0
        return Progress(
            state,
            iterator,
            self._reported(source),
            evaluations,
            content["metrics"],
            content.get("timings", {}),
            content["seconds"],
            content["released"],
            [(number, value) for number, value in content.get("watched", [])],
            content.get("ended", ended),
            PrivacyLoss.of(content["privacy"]) if content.get("privacy") else None,
        )

    def _check_data(self, content):
        found = {"inputs": self._data["inputs"]} | content  # earlier versions did not keep them
        for key, what, tip in (
            (
                "data",
                "other data or another partition of them",
                "Resume it with its own; its partition.npz has the partition.",
            ),
            (
                "inputs",
                "other inputs, perhaps the same that were prepared in another way",
                "Resume it with its own, to the last bit.",
            ),
        ):
            if found[key] != self._data[key]:
                raise OutputDirectoryError(
                    f"The run in {os.path.dirname(self._store.path)} has {what} (fingerprint "
                    f"{found[key]}, here {self._data[key]}). {tip}"
                )

    def _check_noise(self, content):
        """Checks that the noise is the same: the state keeps the noise of the first round."""
        now = self._process.noise_multiplier
        before = content.get("noise_multiplier", now)  # earlier versions did not keep it
        # Noise that was searched for an epsilon may differ by rounding on another machine.
        if before != now and not (before and now and math.isclose(before, now, rel_tol=1e-6)):
            raise OutputDirectoryError(
                f"Cannot resume the run in {os.path.dirname(self._store.path)}: its "
                f"noise_multiplier was {before}, now it is {now}. Resume it with its own, or begin "
                "another one."
            )

    def _reported(self, source) -> np.ndarray:
        bits = np.frombuffer(self._store.attachment("reported"), np.uint8)
        return np.unpackbits(bits, count=source.num_clients).astype(np.bool_)

    def save(self, progress: Progress) -> None:
        """Commits, all or nothing."""
        content = {
            **self._data,
            "clients_per_round": self._clients_per_round,
            "evaluations": [[e.round_num, to_text(e.metrics)] for e in progress.evaluations],
            "metrics": progress.metrics,
            "timings": progress.timings,
            "seconds": progress.seconds,
            "released": progress.released,
            "watched": progress.watched,
            "ended": progress.ended,
            "privacy": progress.privacy and dataclasses.asdict(progress.privacy),
            "noise_multiplier": self._process.noise_multiplier,
        }
        self._store.commit(
            {
                "server_state": serialize(progress.server_state, self._state_type),
                "iterator": progress.iterator.to_bytes(),
                "reported": np.packbits(progress.reported).tobytes(),
                "progress": json.dumps(content).encode(),
            }
        )
