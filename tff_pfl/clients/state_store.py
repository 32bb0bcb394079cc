"""A store of the states that clients keep between rounds."""

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
from tff_pfl.tracing.structures import empty_value, is_empty

_FORMAT = 4
_HEADER = b"header"
_MAX_NAME_BYTES = 500  # LMDB allows keys of 511
_MAX_CLIENTS = 1 << 31  # ids are int32


class ClientStateStore:
    """A store of the state of every client that took part, in memory or on disk.

    Changes by `put` and `forget` are pending until `commit`, which stores them together with the
    caller's attachments as one generation. A process that is killed, at any instruction, leaves
    either the old or the new generation. All other clients keep their states bit for bit.

    States are stored as bytes, so that returned states share no memory with the store or with each
    other. Nothing is stored for a state type without tensors.

    A store on disk keeps only pending states in memory. Its directory holds an LMDB environment, of
    which `data.mdb` is a sparse file: it occupies less space than its size. Only one thread of one
    process may use a store at a time.
    """

    def __init__(
        self,
        initialize_clients: Callable[[list[int]], Sequence[Any]],
        state_type: tff.types.Type,
        path: str | os.PathLike[str] | None = None,
        *,
        read_only: bool = False,
    ):
        """Opens the store, and creates it if it does not exist.

        Args:
            initialize_clients: A function from the ids of new clients to their initial states, in
                the same order. It may be a computation, such as `initialize_clients` of a process,
                also inside a federated program.
            state_type: The TFF type of a client's state, a structure of tensors.
            path: The directory of the store, or `None` to keep the states in memory.
            read_only: Whether to open a store on disk without changing it; then several processes
                may read it at once.

        Raises:
            ForeignStateError: The directory holds something else, or states of another type or of
                another version of this library.
            CorruptStateError: Its data file is damaged.
            StateStoreError: The store is already open, in this process or another, or the disk is
                full, or access is denied, or `read_only` is set and there is no store.
        """
        self._initialize_clients = initialize_clients
        self._state_type = state_type
        self._stateless = is_empty(state_type)
        self._path = None if path is None else os.path.expanduser(path)
        self._pending: dict[int, bytes | None] = {}  # `None`: the client is forgotten
        self._records: MemoryRecords | DiskRecords = (
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
        """The TFF type of a client's state."""
        return self._state_type

    @property
    def path(self) -> str | None:
        """The directory of the store, `None` for a store in memory."""
        return self._path

    @property
    def digest(self) -> int:
        """A checksum of all changes, pending ones included; 0 while no client has a state."""
        return self._digest

    def get(self, client_ids: Iterable[int]) -> list[Any]:
        """Returns the pending state of each client, else its stored state, else its initial state.

        Initial states are not stored. States have the containers of `state_type` and NumPy leaves.

        Raises:
            CorruptStateError: A stored state is damaged.
            ValueError: An id is not in 0..2**31-1 or occurs twice, or `initialize_clients` returned
                the wrong number of states.
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
        """Sets the states of clients, which are pending until `commit`.

        Raises:
            ValueError: An id occurs twice, or the numbers of ids and states differ.
            TypeError: A state is not of `state_type`; then no state is set.
        """
        client_ids, states = _checked_ids(client_ids), list(states)
        if len(client_ids) != len(states):
            raise ValueError(f"Got {len(client_ids)} client ids, but {len(states)} states.")
        if client_ids and not self._stateless:
            packed = [pack(state, self._state_type) for state in states]
            self._pending.update(zip(client_ids, packed, strict=True))
            for client_id, state in zip(client_ids, packed, strict=True):
                self._digest = zlib.crc32(state, zlib.crc32(_client_key(client_id), self._digest))

    def forget(self, client_ids: Iterable[int]) -> None:
        """Deletes the states of clients that leave, which is pending until `commit`.

        They start again as clients that never took part: `get` returns their initial states. The
        server keeps what it learned from them, and an iterator its counts of their rounds. The
        file of a store on disk may have deleted bytes until later commits overwrite them.

        Args:
            client_ids: The ids of the clients; those without a state are ignored.

        Raises:
            ValueError: An id is not in 0..2**31-1 or occurs twice.
        """
        known = self._with_pending()
        leaving = [i for i in _checked_ids(client_ids) if i < len(known) and known[i]]
        for client_id in leaving:
            self._pending[client_id] = None
            self._digest = zlib.crc32(_client_key(client_id), self._digest)
        if not self.known_clients():
            self._digest = 0

    def commit(self, attachments: Mapping[str, bytes] | None = None) -> None:
        """Stores all pending changes and `attachments` atomically.

        Args:
            attachments: Bytes by name; a name has at most 500 bytes of UTF-8. Earlier attachments
                with other names are kept.

        Raises:
            ValueError: A name is too long.
            TypeError: An attachment is not bytes.
            StateStoreError: The disk is full or fails, or the store is read-only. The previous
                generation is intact and the changes are still pending, so that you can free space
                and commit again.
        """
        attachments = {
            name: _checked_attachment(name, v) for name, v in (attachments or {}).items()
        }
        header = _Header(
            str(self._state_type),
            self._digest,
            tuple(dict.fromkeys((*self._header.attachments, *attachments))),
            self._with_pending(),
        )
        records: dict[bytes, bytes | None] = {_client_key(i): v for i, v in self._pending.items()}
        records |= {_attachment_key(name): value for name, value in attachments.items()}
        self._records.write(records | {_HEADER: header.to_bytes()})
        self._header, self._pending = header, {}

    def attachment(self, name: str) -> bytes | None:
        """Returns the bytes last committed under `name`, or `None`."""
        (value,) = self._records.read([_attachment_key(name)])
        if value is None and name in self._header.attachments:
            raise self._damaged_without(f"the attachment {name!r}")
        return value

    def known_clients(self) -> list[int]:
        """Returns the ids of the clients with a stored or pending state, in ascending order."""
        return np.flatnonzero(self._with_pending()).tolist()

    def snapshot(self) -> dict[int, bytes]:
        """Returns all stored and pending states, as bytes by client id in ascending order."""
        return self._known(self.known_clients())

    def restore(self, snapshot: Mapping[int, bytes], digest: int) -> None:
        """Replaces all states of a store in memory by a `snapshot` and its `digest`."""
        self._pending |= dict.fromkeys(self.known_clients()) | dict(snapshot)
        self._digest = digest
        self.commit()

    def close(self) -> None:
        """Closes the store, and drops pending changes."""
        self._records.close()
        self._pending = {}

    def __enter__(self) -> "ClientStateStore":
        """Returns the store."""
        return self

    def __exit__(self, *exc_info) -> None:
        """Closes the store."""
        self.close()

    def _read_header(self) -> "_Header":
        (buffer,) = self._records.read([_HEADER])
        expected = str(self._state_type)
        if buffer is None and self._records.is_empty():
            return _Header(expected, 0, (), np.zeros([0], np.bool_))
        header = None if buffer is None else _Header.from_bytes(buffer)
        if header is None:
            raise ForeignStateError(
                f"The client states in {self._path} have another format. Read them with the "
                "version of this library that wrote them."
            )
        if header.state_type != expected:
            raise ForeignStateError(
                f"{self._path} holds client states of another type.\n"
                f"Stored:   {header.state_type}\n"
                f"Expected: {expected}\n"
                "Give the directory of a run with the same algorithm and model, or a new directory."
            )
        return header

    def _known(self, client_ids: Iterable[int]) -> dict[int, bytes]:
        """Returns the packed stored or pending states by id, without clients that have none."""
        found = {i: self._pending.get(i) for i in client_ids}
        has_state = self._header.has_state
        unchanged = [i for i in found if i not in self._pending]
        stored = [i for i in unchanged if i < len(has_state) and has_state[i]]
        for i, state in zip(stored, self._records.read(map(_client_key, stored)), strict=True):
            if state is None:
                raise self._damaged_without(f"the state of client {i}")
            found[i] = state
        return {i: state for i, state in found.items() if state is not None}

    def _with_pending(self) -> np.ndarray:
        """Returns bool `[n]`: whether each client has a state after the pending changes."""
        ids, stored = np.fromiter(self._pending, np.int64), self._header.has_state
        has_state = np.zeros([max(len(stored), ids.max(initial=-1) + 1)], np.bool_)
        has_state[: len(stored)] = stored
        has_state[ids] = [state is not None for state in self._pending.values()]
        return has_state

    def _damaged_without(self, record) -> CorruptStateError:
        return CorruptStateError(
            f"The client states in {self._path} are damaged: {record} is missing. Restore the "
            "directory from a copy, or start the run in a new directory."
        )

    def _initial(self, client_ids: list[int]) -> list[bytes]:
        """Returns the packed initial states of clients."""
        if not client_ids:
            return []
        states = list(materialized(self._initialize_clients, client_ids))
        if len(states) != len(client_ids):
            raise ValueError(
                f"`initialize_clients` returned {len(states)} states for {len(client_ids)} "
                "clients. It must return one state for each id, in the order of the ids."
            )
        return [pack(state, self._state_type) for state in states]


class _Header(NamedTuple):
    """The contents of a store, which tell a missing record from a new client.

    Attributes:
        state_type: The type of a client's state, as text.
        digest: See `ClientStateStore.digest`.
        attachments: The names of the attachments.
        has_state: bool `[n]`, whether each client has a state, up to the last that ever had one.
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
        """Restores a header that `to_bytes` wrote; returns `None` for another format."""
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


def _client_key(client_id: int) -> bytes:
    return f"client {client_id:010d}".encode()  # sorted as the ids are


def _attachment_key(name: str) -> bytes:
    return f"attachment {name}".encode()


def _checked_attachment(name: str, value: Any) -> bytes:
    """Returns an immutable copy of the bytes of an attachment."""
    if len(name.encode()) > _MAX_NAME_BYTES:
        raise ValueError(
            f"The name of an attachment must have at most {_MAX_NAME_BYTES} bytes, found {name!r}."
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
            f"Client ids must be 0, 1, 2, ... below 2**31, found {wrong}. Number clients from 0."
        )
    twice = sorted(i for i, count in collections.Counter(ids).items() if count > 1)
    if twice:
        raise ValueError(f"A client id must not occur twice in a cohort; found twice: {twice}.")
    return ids
