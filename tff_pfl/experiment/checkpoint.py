"""Saves and loads the checkpoint of a run, from which the run resumes."""

import copy
import dataclasses
import json
import os
import types
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow_federated as tff

from tff_pfl.clients import (
    ClientStateStore,
    CohortDataSource,
    CohortIterator,
    ForeignStateError,
    UnknownCohortSourceError,
    deserialize,
    serialize,
)
from tff_pfl.clients.errors import StateStoreError
from tff_pfl.clients.parted_store import PartedRunStore, RemoteStateStore, num_parts_of
from tff_pfl.evaluation import from_text, to_text
from tff_pfl.experiment.changes import Change, differences
from tff_pfl.experiment.identity import OF_SOFTWARE
from tff_pfl.experiment.run_directory import CHECKPOINT, OutputDirectoryError
from tff_pfl.experiment.summary import EvaluatedRound
from tff_pfl.experiment.versions import other_software
from tff_pfl.privacy import PrivacyLoss
from tff_pfl.templates import PersonalizedProcess

FORMAT = 6
"""The version of the format. Checkpoints of another version cannot be resumed."""

_PLAIN = ("metrics", "timings", "seconds", "released", "ended")  # fields that are JSON values


@dataclasses.dataclass
class Progress:
    """The progress of a run: everything that is committed beside the clients' states.

    Attributes:
        server_state: The process's `ServerState`.
        iterator: The iterator over cohorts, which counts the rounds.
        reported: bool `[clients]`: the clients that have been in a cohort and reported.
        evaluations: The evaluations so far, in order.
        metrics: The metrics of the last round's training, by name.
        timings: The seconds of the last round's training, by name.
        seconds: The seconds of training and evaluation.
        released: See `MetricsLog.released`.
        ended: The round that was evaluated as the last round of the run; 0 before.
        privacy: The privacy loss that is counted; `None` without noise.
    """

    server_state: Any
    iterator: CohortIterator
    reported: np.ndarray
    evaluations: list[EvaluatedRound] = dataclasses.field(default_factory=list)
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    timings: Mapping[str, float] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0
    released: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    ended: int = 0
    privacy: PrivacyLoss | None = None

    @property
    def round_num(self) -> int:
        """The number of rounds done."""
        return self.iterator.round_num

    def forget_evaluation(self) -> None:
        """Removes the evaluation of round `round_num`, the latest, if it was evaluated."""
        self.evaluations = [e for e in self.evaluations if e.round_num != self.round_num]
        self.ended = 0

    def copy(self) -> "Progress":
        """Returns a copy that later rounds do not change."""
        return dataclasses.replace(
            self,
            iterator=copy.deepcopy(self.iterator),
            reported=self.reported.copy(),
            evaluations=list(self.evaluations),
        )


def client_states(
    process: PersonalizedProcess, path: str, *, read_only: bool = False
) -> ClientStateStore:
    """Opens the store that holds the client states of a run and, beside them, its checkpoint.

    Raises:
        StateStoreError: Workers of a cluster have the states, and it is not opened to read.
    """
    of_process = process.initialize_clients, process.client_state_type
    store = ClientStateStore(*of_process, path, read_only=read_only)
    if num_parts_of(store) is None:
        return store
    store.close()
    if not read_only:
        raise StateStoreError(
            f"The run of {path} was trained by a cluster. Continue it by one: pass its client."
        )
    return PartedRunStore(*of_process, path, round_num_of=_round_num_of)


def remote_client_states(
    process: PersonalizedProcess, path: str, num_parts: int
) -> RemoteStateStore:
    """Opens the store of a run whose client states are with workers; see `RemoteStateStore`."""
    return RemoteStateStore(
        process.initialize_clients, process.client_state_type, path, num_parts=num_parts
    )


def _round_num_of(store: ClientStateStore) -> int:
    return json.loads(store.attachment("progress") or b"{}").get("round_num", 0)


def checkpoint_of(run_dir: str | os.PathLike) -> str:
    """Returns the path of a run's checkpoint.

    Raises:
        OutputDirectoryError: The run has no checkpoint.
    """
    path = os.path.join(run_dir, CHECKPOINT)
    if not os.path.isdir(path) or not os.listdir(path):
        raise OutputDirectoryError(f"{os.fspath(run_dir)} has no checkpoint of a run.")
    return path


def check_trained(
    store: ClientStateStore, now: Mapping[str, Any], ignored: Sequence[str] = ()
) -> None:
    """Checks that a run has done a round, and that it has the identity of `now`.

    Args:
        store: The run's client states.
        now: The identity; see `identity.of_run`.
        ignored: Keys of the identity that may differ.

    Raises:
        OutputDirectoryError: No round was committed, or the run is of another process, other data
            or another partition of them.
    """
    committed, run = store.attachment("progress"), _run_of(store)
    if committed is None:
        raise OutputDirectoryError(f"{run} has no checkpoint of a run: no round was committed.")
    if changes := _changes(run, json.loads(committed), now, ignored):
        raise OutputDirectoryError(f"{run} is a run of something else: {changes}.")


def _run_of(store: ClientStateStore) -> str:
    return os.path.dirname(store.path or "")


def _changes(run, committed: Mapping[str, Any], now, ignored: Sequence[str] = ()) -> str:
    """Returns the differences between the identity of a run and that of now, as text."""
    found = committed.get("format")
    if found != FORMAT:
        return str(Change("the format of its checkpoint", found, FORMAT))
    if other_software(run):
        ignored = [*ignored, *OF_SOFTWARE]
    return "; ".join(map(str, differences(committed["identity"], now, ignored)))


def _state_type(process) -> tff.types.Type:
    return process.initialize.type_signature.result.member


def _server_state(store, process) -> Any:
    try:
        return deserialize(store.attachment("server_state"), _state_type(process))
    except ForeignStateError as error:
        raise ForeignStateError(f"The server's state in {store.path}: {error}") from error


class Checkpoint:
    """The checkpoint of a run, which is committed together with the client states."""

    def __init__(
        self,
        store: ClientStateStore,
        process: PersonalizedProcess,
        identity: Mapping[str, Any] = types.MappingProxyType({}),
    ):
        """Prepares the checkpoint without reading it.

        Args:
            store: The client states.
            process: The run's process.
            identity: All that the run's numbers depend on, as JSON values; see `identity.of_run`.
        """
        self._store = store
        self._process = process
        self._identity = identity

    def check(self) -> None:
        """Checks that the run that was committed has the same format and the same identity.

        Raises:
            OutputDirectoryError: It has others.
        """
        committed = self._store.attachment("progress") or b"null"
        if (content := json.loads(committed)) and (
            changes := _changes(_run_of(self._store), content, self._identity)
        ):
            raise self._refusal(changes)

    def load(self, source: CohortDataSource) -> Progress:
        """Returns the progress that was committed last, or the initial progress of a new run.

        Args:
            source: The source of the cohorts.

        Raises:
            OutputDirectoryError: Cohorts are drawn in another way.
        """
        committed = self._store.attachment("progress")
        if committed is None:
            nobody = np.zeros([source.num_clients], np.bool_)
            return Progress(self._process.initialize(), source.iterator(), nobody)
        content = json.loads(committed)
        state = _server_state(self._store, self._process)
        try:
            iterator = CohortIterator.from_bytes(self._store.attachment("iterator") or b"")
        except UnknownCohortSourceError:  # all else was compared before
            raise self._refusal("its cohorts are drawn with another seed") from None
        bits = np.frombuffer(self._store.attachment("reported") or b"", np.uint8)
        evaluations = [(number, from_text(metrics)) for number, metrics in content["evaluations"]]
        return Progress(
            state,
            iterator,
            np.unpackbits(bits, count=source.num_clients).astype(np.bool_),
            [EvaluatedRound(*evaluation) for evaluation in evaluations],
            privacy=content["privacy"] and PrivacyLoss.of(content["privacy"]),
            **{key: content[key] for key in _PLAIN},
        )

    def _refusal(self, reason) -> OutputDirectoryError:
        return OutputDirectoryError(
            f"Cannot resume the run in {_run_of(self._store)}: {reason}. Resume it unchanged, "
            "or start another run."
        )

    def count_privacy(self, progress: Progress, privacy: PrivacyLoss | None) -> None:
        """Sets the privacy loss of a run, after a comparison with its previous rounds.

        Args:
            progress: The progress of the run.
            privacy: The privacy loss of the run with the noise of its rounds; `None` without noise.

        Raises:
            OutputDirectoryError: The previous rounds were counted differently, but epsilon must
                count all rounds.
        """
        before = progress.privacy
        if before is not None and (privacy is None or not before.is_close(privacy)):
            raise self._refusal(
                f"the privacy of its rounds was\n  {before}\nnow it is\n  {privacy}"
            )
        progress.privacy = privacy

    def save(self, progress: Progress) -> None:
        """Commits the progress and the client states, completely or not at all."""
        content = {
            "format": FORMAT,
            "identity": self._identity,
            "round_num": progress.round_num,
            **{key: getattr(progress, key) for key in _PLAIN},
            "evaluations": [[e.round_num, to_text(e.metrics)] for e in progress.evaluations],
            "privacy": progress.privacy and dataclasses.asdict(progress.privacy),
        }
        self._store.commit(
            {
                "server_state": serialize(progress.server_state, _state_type(self._process)),
                "iterator": progress.iterator.to_bytes(),
                "reported": np.packbits(progress.reported).tobytes(),
                "progress": json.dumps(content).encode(),
            }
        )
