"""What the clients of a federation keep between rounds."""

import contextlib
import copy
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow_federated as tff

from tff_pfl.clients.disk import DiskGeneration
from tff_pfl.clients.errors import CorruptStateError, StateStoreError
from tff_pfl.clients.serialization import Leaves, deserialize
from tff_pfl.runtime import materialized
from tff_pfl.structures import tensor_sizes
from tff_pfl.templates.blocks import empty_value, is_empty

_MAX_NAME_BYTES = 511  # LMDB's limit on a key.
_MAX_CLIENTS = 1 << 31  # ids are int32
_AHEAD_BYTES = 1 << 30  # of states whose type says how large they are


class ClientStateStore:
    """The state of every client that took part, in memory or on disk.

    `put` keeps new states aside until `commit`, which makes them and the caller's attachments one
    generation: a process that is killed at any instruction leaves the old generation or the new
    one. A client that no `put` names keeps its state bit for bit.

    A returned state shares no memory with the store or with another one returned: stored states
    are bytes, pending ones arrays of the store's own. A state type without tensors stores nothing.

    On disk only the pending states are in memory, whatever the number of clients. The directory
    holds an LMDB environment; `data.mdb` is a sparse file that looks larger than what it occupies.
    A store is for one thread at a time, of one process.
    """

    def __init__(
        self,
        initialize_clients: Callable[[list[int]], Sequence[Any]],
        state_type: tff.types.Type,
        path: str | os.PathLike[str] | None = None,
        *,
        read_only: bool = False,
    ):
        """Opens the store, creating what is missing.

        Args:
            initialize_clients: The states of clients never seen, by their ids, in their order; a
                computation, such as that of a process, inside a federated program as well.
            state_type: TFF type of a client's state, a structure of tensors.
            path: Directory of the store, or `None` to keep the states in memory.
            read_only: Of a store on disk: create and change nothing, and let others read it, too.

        Raises:
            ForeignStateError: If the directory holds something else, or states of another type or
                of another version of this library.
            CorruptStateError: If its file is damaged.
            StateStoreError: If it is open already, here or in another process, or the disk is full,
                or it is to be read only and is not there, or this user may not open it.
        """
        self._initialize_clients = initialize_clients
        self._state_type = state_type
        self._stateless = is_empty(state_type)
        self._pending: dict[int, Leaves] = {}
        self._pending_bytes: dict[int, bytes] | None = None  # not made yet
        self._ahead: dict[int, Any] = {}
        self._state_bytes = sum(tensor_sizes(state_type).values())
        self._path = None if path is None else os.fspath(path)
        self._generation = (
            _Memory()
            if self._path is None
            else DiskGeneration(self._path, str(state_type), read_only=read_only)
        )

    @property
    def state_type(self) -> tff.types.Type:
        """TFF type of a client's state."""
        return self._state_type

    @property
    def path(self) -> str | None:
        """Directory of the store, `None` for one in memory."""
        return self._path

    def get(self, client_ids: Iterable[int]) -> list[Any]:
        """Returns the state of each client: pending, else stored, else initial.

        Initial states are not stored. All have the containers of `state_type` and NumPy leaves.

        Raises:
            CorruptStateError: If a stored state is damaged.
            ValueError: If an id is not in 0 .. 2**31 - 1, or there are more or fewer first states
                than new clients.
        """
        client_ids = _checked_ids(client_ids)
        if self._stateless:
            empty = empty_value(self._state_type)
            return [copy.deepcopy(empty) for _ in client_ids]
        with self._generation.reading() as read:
            states = [self._known(client_id, read) for client_id in client_ids]
        new = [place for place, state in enumerate(states) if state is None]
        for place, state in zip(new, self._initial([client_ids[i] for i in new]), strict=True):
            states[place] = state
        return states

    def read_ahead(self, client_ids: Iterable[int]) -> None:
        """Reads states into memory, where the next `get` of each finds its own.

        First states, which are computed, are left to `get`, and so is what is beyond a gibibyte.
        What was read ahead before and nobody has asked for is dropped.

        Raises:
            CorruptStateError: If a stored state is damaged.
            ValueError: If an id is not in 0 .. 2**31 - 1.
        """
        self._ahead = {}
        if not self._stateless:
            with self._generation.reading() as read:
                some = _checked_ids(client_ids)[: _AHEAD_BYTES // max(1, self._state_bytes)]
                self._ahead = {i: self._known(i, read) for i in some}

    def put(self, client_ids: Iterable[int], states: Iterable[Any]) -> None:
        """Sets the states of clients, pending until `commit`.

        Raises:
            ValueError: If an id occurs twice, or there are not as many states as ids.
            TypeError: If a state is not of `state_type`; nothing is put then.
        """
        client_ids, states = _checked_ids(client_ids), list(states)
        if len(client_ids) != len(states):
            raise ValueError(f"Got {len(client_ids)} client ids, but {len(states)} states.")
        if len(set(client_ids)) != len(client_ids):
            twice = sorted({i for i in client_ids if client_ids.count(i) > 1})
            raise ValueError(f"A client has one state, but these ids were put twice: {twice}.")
        if not self._stateless:
            leaves = [Leaves(state, self._state_type, copy=True) for state in states]
            self._pending.update(zip(client_ids, leaves, strict=True))
            self._pending_bytes = None
            for client_id in client_ids:
                self._ahead.pop(client_id, None)

    def commit(self, attachments: Mapping[str, bytes] | None = None) -> None:
        """Stores all pending states and `attachments`, all or nothing.

        Args:
            attachments: Bytes by name, 1 to 511 bytes of UTF-8 each. Those of earlier commits
                under other names stay.

        Raises:
            ValueError: If a name is not of that length.
            TypeError: If an attachment is not of bytes.
            StateStoreError: If the disk is full or fails. The previous generation is intact and the
                states are still pending: free space and commit again. Or if it is read-only.
        """
        checked = {name: _checked_attachment(name, v) for name, v in (attachments or {}).items()}
        self._generation.write(self._serialized(), checked)
        self._forget_pending()

    def attachment(self, name: str) -> bytes | None:
        """Returns the bytes last committed under `name`, or `None`."""
        return self._generation.attachment(name)

    def known_clients(self) -> list[int]:
        """Returns the ids of the clients with a stored or a pending state, in order."""
        return sorted({*self._generation.client_ids(), *self._pending})

    def digest(self) -> bytes:
        """Returns 8 bytes that tell the states of a store on disk, pending ones too, from others.

        `commit` does not change them, other states do. There are none where nothing is on disk: of
        a store in memory, or of states without tensors.
        """
        if self._path is None or self._stateless:
            return b""
        return self._generation.digest(self._serialized())

    def snapshot(self) -> dict[int, bytes]:
        """Returns every state, stored or pending, serialized, by client id in order."""
        with self._generation.reading() as read:
            return {
                i: self._pending[i].serialize() if i in self._pending else read(i)
                for i in self.known_clients()
            }

    def restore(self, snapshot: Mapping[int, bytes]) -> None:
        """Replaces all states of a store in memory by those of a `snapshot`, and commits.

        Raises:
            StateStoreError: If the store is on disk, where the states of a run are already.
        """
        if self._path is not None:
            raise StateStoreError(
                f"The store in {self._path} holds its states on disk; a snapshot is for a store in "
                "memory. Open the store without a path, or copy its directory."
            )
        self._generation.states = dict(snapshot)
        self._ahead = {}
        self._forget_pending()

    def close(self) -> None:
        """Closes the store; pending states are dropped."""
        self._generation.close()
        self._ahead = {}
        self._forget_pending()

    def __enter__(self) -> "ClientStateStore":
        return self

    def __exit__(self, *exc_info) -> None:
        self.close()

    def _serialized(self) -> dict[int, bytes]:
        """The pending states, by client id; made once for a digest and the commit after it."""
        if self._pending_bytes is None:
            self._pending_bytes = {i: leaves.serialize() for i, leaves in self._pending.items()}
        return self._pending_bytes

    def _forget_pending(self) -> None:
        self._pending, self._pending_bytes = {}, None

    def _known(self, client_id: int, read: Callable[[int], bytes | None]) -> Any:
        """The state of a client, read ahead, pending or stored; `None` if there is none."""
        if client_id in self._ahead:
            return self._ahead.pop(client_id)  # to one alone, who may change it
        if client_id in self._pending:
            return self._pending[client_id].value()
        buffer = read(client_id)
        if buffer is None:
            return None
        try:
            return deserialize(buffer, self._state_type)
        except CorruptStateError as e:
            raise CorruptStateError(
                f"The state of client {client_id} in {self._path or 'memory'} is damaged. Restore "
                f"the directory from a copy, or start the run in a new one. {e}"
            ) from e

    def _initial(self, client_ids: list[int]) -> list[Any]:
        """First states, with the containers and data types of later ones.

        They share no memory with what `initialize_clients` keeps.
        """
        if not client_ids:
            return []
        states = list(materialized(self._initialize_clients, client_ids))
        if len(states) != len(client_ids):
            raise ValueError(
                f"`initialize_clients` returned {len(states)} states for {len(client_ids)} "
                "clients; it returns one for each of the ids that it is given, in their order."
            )
        return [Leaves(state, self._state_type).value() for state in states]


class _Memory:
    """A generation in memory."""

    def __init__(self):
        self.states: dict[int, bytes] = {}
        self._attachments: dict[str, bytes] = {}

    def reading(self):
        return contextlib.nullcontext(self.states.get)

    def attachment(self, name: str) -> bytes | None:
        return self._attachments.get(name)

    def client_ids(self) -> list[int]:
        return list(self.states)

    def write(self, states: Mapping[int, bytes], attachments: Mapping[str, bytes]) -> None:
        self.states.update(states)
        self._attachments.update(attachments)

    def close(self) -> None:
        """Nothing to release."""


def _checked_attachment(name: str, value: Any) -> bytes:
    """The bytes of an attachment, which nobody can change any more."""
    if not 0 < len(name.encode()) <= _MAX_NAME_BYTES:
        raise ValueError(
            f"The name of an attachment has 1 to {_MAX_NAME_BYTES} bytes, found {name!r}."
        )
    if isinstance(value, bytes):
        return value
    try:
        return bytes(memoryview(value))
    except TypeError as e:
        raise TypeError(f"The attachment {name!r} must be bytes, found {type(value)}.") from e


def _checked_ids(client_ids: Iterable[int]) -> list[int]:
    ids = [operator.index(client_id) for client_id in client_ids]
    wrong = next((client_id for client_id in ids if not 0 <= client_id < _MAX_CLIENTS), None)
    if wrong is not None:
        raise ValueError(
            f"Client ids are 0, 1, 2, ... below 2**31; found {wrong}. Number the clients from 0."
        )
    return ids
