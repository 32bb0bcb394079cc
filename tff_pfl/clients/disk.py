"""One generation of client states on disk, replaced as a whole."""

import contextlib
import fcntl
import os
import zlib
from collections.abc import Callable, Iterator, Mapping

import lmdb

from tff_pfl.clients.errors import CorruptStateError, ForeignStateError, StateStoreError

_DATA_FILE = "data.mdb"
_NEW_DATA_FILE = "data.mdb.new"
_LOCK_FILE = "client_states.lock"  # Present in every directory that is a store, and in no other.
_FORMAT = b"2"
_DATABASES = (b"meta", b"states", b"attachments")
_INITIAL_MAP_SIZE = 64 << 20
_CHECKSUM_BYTES = 4
_DAMAGE = (
    lmdb.BadValsizeError,
    lmdb.CorruptedError,
    lmdb.CursorFullError,
    lmdb.IncompatibleError,
    lmdb.InvalidError,
    lmdb.NotFoundError,
    lmdb.PageNotFoundError,
    lmdb.VersionMismatchError,
)


class DiskGeneration:
    """The generation in a directory: an LMDB environment with a database for each concern.

    `data.mdb` is created complete under another name and then renamed, and is extended, as a sparse
    file, before the map grows. So the file is never shorter than the map it was last committed
    with, and a shorter one was truncated; LMDB itself would open it, and reading it kills the
    process.

    LMDB has no checksums. Each record begins with one of its key and its value, checked when it is
    read; the sum of them all is the generation's digest, checked on opening. So a damaged page that
    hides a client, or shows an older state of it or another client's, is noticed as well.
    """

    def __init__(self, path: str, state_type: str, *, read_only: bool = False):
        self._path = path
        self._data_path = os.path.join(path, _DATA_FILE)
        self._read_only = read_only
        with contextlib.ExitStack() as resources:
            self._take_lock(resources)
            self._open(resources, state_type.encode())
            self._resources = resources.pop_all()

    def _take_lock(self, resources: contextlib.ExitStack) -> None:
        try:
            if not self._read_only:
                os.makedirs(self._path, exist_ok=True)
            names = os.listdir(self._path)
        except (FileExistsError, NotADirectoryError) as e:
            raise ForeignStateError(
                f"Expected a directory for the client states at {self._path}, found a file."
            ) from e
        if names and _LOCK_FILE not in names:
            raise ForeignStateError(
                f"{self._path} holds something else than a store of client states, such as "
                f"{min(names)!r}. Give a new or an empty directory."
            )
        flags = os.O_RDONLY if self._read_only else os.O_RDWR | os.O_CREAT
        lock = os.open(os.path.join(self._path, _LOCK_FILE), flags)
        resources.callback(os.close, lock)
        try:
            fcntl.flock(lock, (fcntl.LOCK_SH if self._read_only else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError as e:
            raise StateStoreError(
                f"The client states in {self._path} are open already, here or in another process. "
                "Close them there, or give another directory."
            ) from e

    def _open(self, resources: contextlib.ExitStack, state_type: bytes) -> None:
        try:
            if not os.path.exists(self._data_path):
                if self._read_only:
                    raise self._damaged("it is missing")
                self._create(state_type)
            # The header comes first: LMDB maps it, and the rest, on opening.
            size = os.path.getsize(self._data_path)
            if size < _INITIAL_MAP_SIZE:
                raise self._damaged(f"{size} bytes of at least {_INITIAL_MAP_SIZE} are left")
            # `_take_lock` has locked the directory: LMDB need not, which would write to it.
            self._env = resources.enter_context(
                lmdb.open(
                    self._path,
                    map_size=0,
                    max_dbs=3,
                    readonly=self._read_only,
                    create=False,
                    lock=False,
                )
            )
            if size < self._map_size():
                raise self._damaged(f"{size} bytes of {self._map_size()} are left")
            self._meta, self._states, self._attachments = (
                self._env.open_db(name, create=False) for name in _DATABASES
            )
            with self._env.begin(db=self._meta) as txn:
                found_format, found_type = txn.get(b"format"), txn.get(b"state_type")
        except _DAMAGE as e:
            raise self._damaged(e) from e
        except (lmdb.Error, OSError) as e:
            if self._read_only:
                raise StateStoreError(f"Cannot read {self._data_path} ({e}).") from e
            raise self._cannot_write(e) from e
        if found_format != _FORMAT:
            raise ForeignStateError(
                f"{self._data_path} is of format {_shown(found_format)}, expected "
                f"{_shown(_FORMAT)}: another version of this library wrote it, and can read it."
            )
        if found_type != state_type:
            raise ForeignStateError(
                f"{self._path} holds client states of another type.\n"
                f"Stored:   {_shown(found_type)}\n"
                f"Expected: {_shown(state_type)}\n"
                "Give the directory of a run with the same algorithm and model, or a new one."
            )
        self._check_digest()

    def _check_digest(self) -> None:
        """Looks up every record, by the key under which it is listed."""
        digest = 0
        with self._reading(None, buffers=True) as txn:
            expected = txn.get(b"digest", db=self._meta)
            for database in (self._states, self._attachments):
                entries = txn.stat(database)["entries"]
                for index, key in enumerate(txn.cursor(database).iternext(values=False)):
                    record = txn.get(key, db=database)
                    if record is None or index == entries:  # what is listed may go in a circle
                        raise self._damaged("its pages do not fit together")
                    digest += _mark(key, record)
            if expected is None or bytes(expected) != _digest_bytes(digest):
                raise self._damaged("it lacks records, or has others than were committed")

    def _create(self, state_type: bytes) -> None:
        new_path = os.path.join(self._path, _NEW_DATA_FILE)
        if os.path.exists(new_path):  # Of a process that was killed right here.
            os.remove(new_path)
        with lmdb.open(
            new_path, subdir=False, lock=False, map_size=_INITIAL_MAP_SIZE, max_dbs=3
        ) as env:
            meta, *_ = [env.open_db(name) for name in _DATABASES]
            with env.begin(write=True, db=meta) as txn:
                txn.put(b"format", _FORMAT)
                txn.put(b"state_type", state_type)
                txn.put(b"digest", _digest_bytes(0))
        os.truncate(new_path, _INITIAL_MAP_SIZE)
        os.rename(new_path, self._data_path)
        directory = os.open(self._path, os.O_RDONLY)
        os.fsync(directory)  # A power failure shall not undo the renaming.
        os.close(directory)

    @contextlib.contextmanager
    def _reading(self, database, **options):
        try:
            with self._env.begin(db=database, **options) as txn:
                yield txn
        except lmdb.Error as e:
            raise self._damaged(e) from e

    @contextlib.contextmanager
    def reading(self) -> Iterator[Callable[[int], bytes | None]]:
        """A function from a client's id to its state; all that it reads is one transaction."""
        with self._reading(self._states, buffers=True) as txn:
            yield lambda client_id: self._read(
                txn, _state_key(client_id), f"the state of client {client_id}"
            )

    def attachment(self, name: str) -> bytes | None:
        with self._reading(self._attachments, buffers=True) as txn:
            return self._read(txn, name.encode(), f"its {name!r}")

    def _read(self, txn, key: bytes, what: str) -> bytes | None:
        record = txn.get(key)
        if record is None:
            return None
        value = bytes(record[_CHECKSUM_BYTES:])
        if _checksum(key, value) != record[:_CHECKSUM_BYTES]:
            raise self._damaged(f"{what} has a wrong checksum")
        return value

    def client_ids(self) -> list[int]:
        with self._reading(self._states) as txn:
            return [int.from_bytes(key, "big") for key in txn.cursor().iternext(values=False)]

    def write(self, states: Mapping[int, bytes], attachments: Mapping[str, bytes]) -> None:
        if self._read_only:
            raise StateStoreError(f"The client states in {self._path} were opened to be read only.")
        try:
            while not self._try_write(states, attachments):
                self._grow()
        except _DAMAGE as e:
            raise self._damaged(e) from e
        except (lmdb.Error, OSError) as e:
            raise self._cannot_write(e) from e

    def _try_write(self, states, attachments) -> bool:
        """Writes one generation; returns whether the map had room for it."""
        records = [(self._states, _state_key(i), value) for i, value in states.items()]
        records += [(self._attachments, n.encode(), value) for n, value in attachments.items()]
        try:
            with self._env.begin(write=True, buffers=True) as txn:
                digest = int.from_bytes(txn.get(b"digest", db=self._meta), "big")
                for database, key, value in records:
                    old, new = txn.get(key, db=database), _record(key, value)
                    digest += _mark(key, new) - (0 if old is None else _mark(key, old))
                    txn.put(key, new, db=database)
                txn.put(b"digest", _digest_bytes(digest), db=self._meta)
        except lmdb.MapFullError:
            return False
        return True

    def _grow(self) -> None:
        map_size = 2 * self._map_size()
        os.truncate(self._data_path, map_size)
        self._env.set_mapsize(map_size)

    def _map_size(self) -> int:
        return self._env.info()["map_size"]

    def close(self) -> None:
        self._resources.close()

    def _damaged(self, cause) -> CorruptStateError:
        return CorruptStateError(
            f"{self._data_path} is damaged: {cause}. Restore the directory from a copy, or start "
            "the run in a new one."
        )

    def _cannot_write(self, cause: Exception) -> StateStoreError:
        stats = os.statvfs(self._path)
        return StateStoreError(
            f"Cannot write client states in {self._path} ({cause}). Its disk has "
            f"{stats.f_bavail * stats.f_frsize >> 20} MiB left; if that is too little, or a quota "
            "is used up, free space and commit again. The states committed before are intact."
        )


def _state_key(client_id: int) -> bytes:
    return client_id.to_bytes(8, "big")  # In LMDB's order, ids ascend.


def _record(key: bytes, value: bytes) -> bytes:
    """A value as it is stored under its key: after the checksum of both."""
    return _checksum(key, value) + value


def _checksum(key: bytes, value: bytes) -> bytes:
    return zlib.crc32(value, zlib.crc32(key)).to_bytes(_CHECKSUM_BYTES, "big")


def _mark(key: bytes, record: bytes | memoryview) -> int:
    """What a record adds to the digest: its key, checksum and length, without reading the rest."""
    checksum = int.from_bytes(record[:_CHECKSUM_BYTES], "big")
    return zlib.crc32(key, checksum) + (len(record) << 32)


def _digest_bytes(digest: int) -> bytes:
    return (digest % (1 << 64)).to_bytes(8, "big")


def _shown(stored: bytes | None) -> str:
    """Bytes that should be text, for a message."""
    return "unknown" if stored is None else stored.decode(errors="replace")
