"""Stores of clients' states that are in the files of parts of a federation."""

import collections
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from tff_pfl.clients.errors import StateStoreError
from tff_pfl.clients.state_files import StateFiles, rounds_of
from tff_pfl.clients.state_store import ClientStateStore

PARTS = "parts"
"""The folder of the files in a checkpoint, and the attachment that describes them."""


def part_of(client_id: int, num_parts: int) -> int:
    """Returns the part of a federation that a client belongs to."""
    return client_id % num_parts


def forget_after(path: str | os.PathLike, round_num: int) -> None:
    """Deletes the states of rounds that a stopped run has not committed.

    Args:
        path: The checkpoint of the run.
        round_num: The number of rounds that are committed.
    """
    for file in pathlib.Path(path, PARTS).glob("*/*.states"):
        if (found := rounds_of(file.name)) is not None and found > round_num:
            file.unlink(missing_ok=True)


def last_rounds(path: str | os.PathLike) -> dict[int, int]:
    """Returns the number of rounds after which the newest file of each part has states."""
    last: dict[int, int] = {}
    for file in pathlib.Path(path, PARTS).glob("*/*.states"):
        if found := rounds_of(file.name):
            part = int(file.parent.name)
            last[part] = max(last.get(part, 0), found)
    return last


class PartedStateStore(ClientStateStore):
    """A store of the states of some parts, which are read from files and written to them.

    Attributes:
        round_num: The number of rounds after which states are read.
    """

    def __init__(self, initialize_clients, state_type, path, *, num_parts: int, round_num: int = 0):
        """Opens the files when they are needed.

        Args:
            initialize_clients: See `ClientStateStore`.
            state_type: See `ClientStateStore`.
            path: The checkpoint of the run.
            num_parts: The number of parts of the federation.
            round_num: The number of rounds after which states are read.
        """
        super().__init__(initialize_clients, state_type)
        self._folder, self._num_parts = pathlib.Path(path, PARTS), num_parts
        self.round_num = round_num
        self._files: dict[int, StateFiles] = {}
        self._last: dict[int, int] = {}

    def take_over(self, parts: Mapping[int, int]) -> None:
        """Forgets what is known of parts, which others had since.

        Args:
            parts: The number of rounds after which the newest file of each part has states.
        """
        self._last |= parts
        for part in parts:
            self._files.pop(part, None)

    def write(self, parts: Iterable[int], round_num: int) -> None:
        """Writes the pending states of parts; `round_num` counts their round."""
        for part in parts:
            pending = self._pending.items()
            states = {i: it for i, it in pending if it is not None and self._part_of(i) == part}
            if states:
                self._of_part(part).write(round_num, states)
                for client_id in states:
                    del self._pending[client_id]

    def merge(self, parts: Iterable[int], committed: int) -> None:
        """Merges files of committed rounds; see `StateFiles.merge`."""
        for part in parts:
            if part in self._files:
                self._files[part].merge(committed)

    def _known(self, client_ids: Iterable[int]) -> dict[int, bytes]:
        pending = ((i, self._pending.get(i)) for i in client_ids)
        found = {i: state for i, state in pending if state is not None}
        by_part = collections.defaultdict(list)
        for client_id in client_ids:
            if client_id not in found:
                by_part[self._part_of(client_id)].append(client_id)
        for part, ids in by_part.items():
            found |= self._of_part(part).read(ids, self.round_num)
        return found

    def _part_of(self, client_id):
        return part_of(client_id, self._num_parts)

    def _of_part(self, part) -> StateFiles:
        if part not in self._files:
            last = self._last.get(part, 0)
            self._files[part] = StateFiles(self._folder / f"{part:04d}", self.round_num, last)
        return self._files[part]


class RemoteStateStore(ClientStateStore):
    """The store of a run whose clients' states are with workers, which write them in parts.

    It has the attachments of the run.
    """

    def __init__(self, initialize_clients, state_type, path, *, num_parts: int):
        """Opens the store; see `ClientStateStore`.

        Raises:
            StateStoreError: The states of the run have another number of parts, or none.
        """
        super().__init__(initialize_clients, state_type, path)
        found = num_parts_of(self)
        if self._header.attachments and found != num_parts:
            self.close()
            raise StateStoreError(
                f"The run of {path} was trained "
                + ("without a cluster." if found is None else f"with parts={found}.")
                + " Continue it in the same way."
            )
        self._num_parts = num_parts

    def get(self, client_ids: Iterable[int]) -> list[Any]:
        """Returns nothing for each client: the workers have the states."""
        return [()] * len(list(client_ids))

    def put(self, client_ids: Iterable[int], states: Iterable[Any]) -> None:
        """Does nothing: the workers have the states."""

    def commit(self, attachments: Mapping[str, bytes] | None = None) -> None:
        """Stores attachments, and the number of parts."""
        super().commit({**(attachments or {}), PARTS: str(self._num_parts).encode()})


class PartedRunStore(ClientStateStore):
    """A store for reading a run whose clients' states are in parts."""

    def __init__(self, initialize_clients, state_type, path, *, round_num_of):
        """Opens the store; see `ClientStateStore`.

        Args:
            initialize_clients: See `ClientStateStore`.
            state_type: See `ClientStateStore`.
            path: The checkpoint of the run.
            round_num_of: Returns the number of rounds that a store has committed.
        """
        super().__init__(initialize_clients, state_type, path, read_only=True)
        self._parted = PartedStateStore(
            initialize_clients,
            state_type,
            path,
            num_parts=num_parts_of(self) or 1,
            round_num=round_num_of(self),
        )

    def _known(self, client_ids: Iterable[int]) -> dict[int, bytes]:
        return self._parted._known(client_ids)


def num_parts_of(store: ClientStateStore) -> int | None:
    """Returns the number of parts of the states of a run; `None` if it has no parts."""
    found = store.attachment(PARTS)
    return None if found is None else int(found)
