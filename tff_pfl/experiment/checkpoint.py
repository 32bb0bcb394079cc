"""What of a run is on disk, and comes back when it is resumed."""

import json
import os
from typing import Any

from tff_pfl.clients import (
    ClientStateStore,
    CohortDataSource,
    CohortIterator,
    ForeignStateError,
    deserialize,
    serialize,
)
from tff_pfl.data import FederatedDataset
from tff_pfl.experiment.run_directory import OutputDirectoryError
from tff_pfl.templates import PersonalizedProcess


class Checkpoint:
    """A consistent generation of a run: what is committed beside the states of the clients."""

    def __init__(
        self, store: ClientStateStore, process: PersonalizedProcess, dataset: FederatedDataset
    ):
        self._store = store
        self._process = process
        self._data = dataset.fingerprint
        self._state_type = process.initialize.type_signature.result.member

    def load(self, source: CohortDataSource) -> tuple[Any, CohortIterator, dict]:
        """`(server state, iterator, progress)`: those committed last, or those of a new run.

        Raises:
            OutputDirectoryError: If the run has other data, or another partition of them.
        """
        committed = self._store.attachment("progress")
        if committed is None:
            new = {"data": self._data, "evaluations": [], "seconds": 0.0, "released": {}}
            return self._process.initialize(), source.iterator(), new
        progress = json.loads(committed)
        if progress["data"] != self._data:
            raise OutputDirectoryError(
                f"The run in {os.path.dirname(self._store.path)} has other data or another "
                f"partition of them (fingerprint {progress['data']}, here {self._data}). Resume it "
                "with its own; its partition.npz has the partition."
            )
        try:
            state = deserialize(self._store.attachment("server_state"), self._state_type)
        except ForeignStateError as error:
            raise ForeignStateError(f"The server's state in {self._store.path}: {error}") from error
        return state, CohortIterator.from_bytes(self._store.attachment("iterator")), progress

    def save(self, state, iterator: CohortIterator, progress) -> None:
        """Commits, all or nothing."""
        self._store.commit(
            {
                "server_state": serialize(state, self._state_type),
                "iterator": iterator.to_bytes(),
                "progress": json.dumps(progress).encode(),
            }
        )
