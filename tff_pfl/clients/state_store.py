"""The states that the clients of a federation keep between rounds."""

import collections
import copy
import json
import operator
import os
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow_federated as tff

from tff_pfl.clients.errors import CorruptStateError, ForeignStateError
from tff_pfl.clients.records import DiskRecords, MemoryRecords
from tff_pfl.clients.serialization import pack, unpack
from tff_pfl.runtime import materialized
from tff_pfl.templates.blocks import empty_value, is_empty

_FORMAT = 4
_HEADER = b"header"
_MAX_NAME_BYTES = 500  # LMDB allows keys of 511
_MAX_CLIENTS = 1 << 31  # ids are int32


class ClientStateStore:
    """The state of every client that took part, in memory or on disk.

    `put` keeps new states aside until `commit`, which makes them and the caller's attachments one
    generation: a process that is killed at any instruction leaves the old generation or the new
    one. A client that no `put` names keeps its state bit for bit.

    A returned state shares no memory with the store or with another one returned: the store has
    bytes. A state type without tensors stores nothing.

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
            read_only: For a store on disk: create and change nothing, and let others read it, too.

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
        self._path = None if path is None else os.fspath(path)
        self._pending: dict[int, bytes] = {}
        self._records = (
            MemoryRecords() if self._path is None else DiskRecords(self._path, read_only=read_only)
        )
        try:
            self._header = self._read_header()
        except BaseException:
            self._records.close()
            raise
        self._digest = self._header.digest

    @property
    def state_type(self) -> tff.types.Type:
        """TFF type of a client's state."""
        return self._state_type

    @property
    def path(self) -> str | None:
        """Directory of the store, `None` for one in memory."""
        return self._path

    @property
    def digest(self) -> int:
        """A checksum of all states in the order they were put, pending ones too; 0 without any."""
        return self._digest

    def get(self, client_ids: Iterable[int]) -> list[Any]:
        """Returns the state of each client: pending, else stored, else initial.

        Initial states are not stored. All have the containers of `state_type` and NumPy leaves.

        Raises:
            CorruptStateError: If a stored state is damaged.
            ValueError: If an id is not in 0 .. 2**31 - 1 or occurs twice, or there are more or
                fewer first states than new clients.
        """
        client_ids = _checked_ids(client_ids)
        if self._stateless:
            empty = empty_value(self._state_type)
            return [copy.deepcopy(empty) for _ in client_ids]
        found = self._known(client_ids)
        new = [client_id for client_id in client_ids if client_id not in found]
        first = iter(self._initial(new))
        return [
            unpack(found[i] if i in found else next(first), self._state_type) for i in client_ids
        ]

    def put(self, client_ids: Iterable[int], states: Iterable[Any]) -> None:
        """Sets the states of clients, pending until `commit`.

        Raises:
            ValueError: If an id occurs twice, or there are not as many states as ids.
            TypeError: If a state is not of `state_type`; nothing is put then.
        """
        client_ids, states = _checked_ids(client_ids), list(states)
        if len(client_ids) != len(states):
            raise ValueError(f"Got {len(client_ids)} client ids, but {len(states)} states.")
        if client_ids and not self._stateless:
            packed = [pack(state, self._state_type) for state in states]
            self._pending.update(zip(client_ids, packed, strict=True))
            for client_id, state in zip(client_ids, packed, strict=True):
                self._digest = zlib.crc32(state, zlib.crc32(_client_key(client_id), self._digest))

    def commit(self, attachments: Mapping[str, bytes] | None = None) -> None:
        """Stores all pending states and `attachments`, all or nothing.

        Args:
            attachments: Bytes by name; a name has at most 500 bytes of UTF-8. Attachments of
                earlier commits under other names stay.

        Raises:
            ValueError: If a name is too long.
            TypeError: If an attachment is not of bytes.
            StateStoreError: If the disk is full or fails. The previous generation is intact and the
                states are still pending: free space and commit again. Or if it is read-only.
        """
        attachments = {
            name: _checked_attachment(name, v) for name, v in (attachments or {}).items()
        }
        header = _Header(
            str(self._state_type),
            self._digest,
            tuple(dict.fromkeys((*self._header.attachments, *attachments))),
            _with(self._header.has_state, self._pending),
        )
        records = {_client_key(client_id): state for client_id, state in self._pending.items()}
        records |= {_attachment_key(name): value for name, value in attachments.items()}
        self._records.write(records | {_HEADER: header.to_bytes()})
        self._header, self._pending = header, {}

    def attachment(self, name: str) -> bytes | None:
        """Returns the bytes last committed under `name`, or `None`."""
        (value,) = self._records.read([_attachment_key(name)])
        if value is None and name in self._header.attachments:
            raise self._lacks(f"its {name!r}")
        return value

    def known_clients(self) -> list[int]:
        """Returns the ids of the clients with a stored or a pending state, in order."""
        return np.flatnonzero(_with(self._header.has_state, self._pending)).tolist()

    def snapshot(self) -> dict[int, bytes]:
        """Returns every state, stored or pending, as bytes by client id in order."""
        return self._known(self.known_clients())

    def restore(self, snapshot: Mapping[int, bytes], digest: int) -> None:
        """Replaces all states of a store in memory by those of a `snapshot` with its `digest`."""
        self._header = self._header._replace(has_state=np.zeros([0], np.bool_))
        self._pending, self._digest = dict(snapshot), digest
        self.commit()

    def close(self) -> None:
        """Closes the store; pending states are dropped."""
        self._records.close()
        self._pending = {}

    def __enter__(self) -> "ClientStateStore":
        return self

    def __exit__(self, *exc_info) -> None:
        self.close()

    def _read_header(self) -> "_Header":
        (buffer,) = self._records.read([_HEADER])
        expected = str(self._state_type)
        if buffer is None and self._records.is_empty():
            return _Header(expected, 0, (), np.zeros([0], np.bool_))
        header = None if buffer is None else _Header.from_bytes(buffer)
        if header is None:
            raise ForeignStateError(
                f"The client states in {self._path} are of another format: the version of this "
                "library that wrote them can read them."
            )
        if header.state_type != expected:
            raise ForeignStateError(
                f"{self._path} holds client states of another type.\n"
                f"Stored:   {header.state_type}\n"
                f"Expected: {expected}\n"
                "Give the directory of a run with the same algorithm and model, or a new one."
            )
        return header

    def _known(self, client_ids: Iterable[int]) -> dict[int, bytes]:
        """Returns the packed states of the clients that have one, by id."""
        found = {i: self._pending.get(i) for i in client_ids}
        has_state = self._header.has_state
        stored = [i for i in found if found[i] is None and i < len(has_state) and has_state[i]]
        for i, state in zip(stored, self._records.read(map(_client_key, stored)), strict=True):
            if state is None:
                raise self._lacks(f"the state of client {i}")
            found[i] = state
        return {i: state for i, state in found.items() if state is not None}

    def _lacks(self, what) -> CorruptStateError:
        return CorruptStateError(
            f"The client states in {self._path} are damaged: {what} is not there any more. Restore "
            "the directory from a copy, or start the run in a new one."
        )

    def _initial(self, client_ids: list[int]) -> list[bytes]:
        """Returns first states, packed."""
        if not client_ids:
            return []
        states = list(materialized(self._initialize_clients, client_ids))
        if len(states) != len(client_ids):
            raise ValueError(
                f"`initialize_clients` returned {len(states)} states for {len(client_ids)} "
                "clients; it returns one for each of the ids that it is given, in their order."
            )
        return [pack(state, self._state_type) for state in states]


class _Header(NamedTuple):
    """The contents of a store, by which a missing record is damage, and not a new client.

    Attributes:
        state_type: The type of a client's state, as text.
        digest: See `ClientStateStore.digest`.
        attachments: Their names.
        has_state: bool, for each client up to the last that has a state.
    """

    state_type: str
    digest: int
    attachments: tuple[str, ...]
    has_state: np.ndarray

    def to_bytes(self) -> bytes:
        """Returns a line of JSON, then a bit for each client."""
        content = {
            "format": _FORMAT,
            "state_type": self.state_type,
            "digest": self.digest,
            "attachments": self.attachments,
            "clients": len(self.has_state),
        }
        return json.dumps(content).encode() + b"\n" + np.packbits(self.has_state).tobytes()

    @classmethod
    def from_bytes(cls, buffer: bytes) -> "_Header | None":
        """Reads what `to_bytes` wrote; returns `None` if it is of another format."""
        line, _, bits = buffer.partition(b"\n")
        content = json.loads(line)
        if content["format"] != _FORMAT:
            return None
        has_state = np.unpackbits(np.frombuffer(bits, np.uint8), count=content["clients"])
        return cls(
            content["state_type"],
            content["digest"],
            tuple(content["attachments"]),
            has_state.astype(np.bool_),
        )


def _with(has_state: np.ndarray, client_ids: Iterable[int]) -> np.ndarray:
    """Returns `has_state`, also for these clients."""
    ids = np.fromiter(client_ids, np.int64)
    grown = np.zeros([max(len(has_state), ids.max(initial=-1) + 1)], np.bool_)
    grown[: len(has_state)] = has_state
    grown[ids] = True
    return grown


def _client_key(client_id: int) -> bytes:
    return f"client {client_id:010d}".encode()  # in the order of the ids


def _attachment_key(name: str) -> bytes:
    return f"attachment {name}".encode()


def _checked_attachment(name: str, value: Any) -> bytes:
    """Returns the bytes of an attachment, which nobody can change any more."""
    if len(name.encode()) > _MAX_NAME_BYTES:
        raise ValueError(
            f"The name of an attachment has at most {_MAX_NAME_BYTES} bytes, found {name!r}."
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
    twice = sorted(i for i, count in collections.Counter(ids).items() if count > 1)
    if twice:
        raise ValueError(f"A client is in a cohort once and has one state, found twice: {twice}.")
    return ids
