"""Key-value records in memory or on disk; each write is atomic."""

import contextlib
import os
import weakref
import zlib
from collections.abc import Iterable, Mapping

import lmdb

from tff_pfl.clients.errors import CorruptStateError, ForeignStateError, StateStoreError
from tff_pfl.output import locks
from tff_pfl.output.files import sync_folder

_DATA_FILE = "data.mdb"
_LOCK_FILE = "client_states.lock"  # identifies a directory of records
_INITIAL_MAP_SIZE = 64 << 20
_LARGEST_RECORD = (1 << 32) - 1  # LMDB's limit
_CHECKSUM_BYTES = 4


class MemoryRecords(dict):
    """Records in memory; see `DiskRecords`."""

    def read(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """Returns the value of each key, `None` for a missing key."""
        return [self.get(key) for key in keys]

    def is_empty(self) -> bool:
        """Returns whether nothing was ever written."""
        return not self

    def write(self, records: Mapping[bytes, bytes | None]) -> None:
        """Sets the values of some keys; deletes those with `None`."""
        for key, value in records.items():
            if value is None:
                self.pop(key, None)
            else:
                self[key] = value

    def close(self) -> None:
        """Does nothing, since there is nothing to release."""


class DiskRecords:
    """Records in an LMDB environment in a directory, for one writer or several readers.

    LMDB makes writes atomic even if the process is killed, and reads only the requested records. It
    has no checksums, so each record begins with a checksum of its key and value. LMDB also opens
    truncated files, and reading them kills the process. Therefore `data.mdb` is created under
    another name, is extended as a sparse file before the map grows, and is refused as damaged if it
    is shorter than the map.
    """

    def __init__(self, path: str, *, read_only: bool = False):
        """Opens the directory; creates it and its files if missing, unless `read_only`.

        Raises:
            ForeignStateError: The directory holds something else.
            CorruptStateError: Its data file is damaged.
            StateStoreError: The directory is locked or cannot be opened.
        """
        self._path, self._read_only = path, read_only
        self._data_path = os.path.join(path, _DATA_FILE)
        # `close` releases the lock, and so does the end of the object.
        self._unlock = weakref.finalize(self, os.close, _lock(path, read_only))
        try:
            self._env: lmdb.Environment | None = self._open()
        except BaseException:
            self._unlock()
            raise

    def _open(self) -> lmdb.Environment:
        try:
            if not os.path.exists(self._data_path) and not self._read_only:
                self._create()
            size = os.path.getsize(self._data_path)
            if size < _INITIAL_MAP_SIZE:
                raise self._damaged(f"{size} bytes of at least {_INITIAL_MAP_SIZE} are left")
            env = lmdb.open(
                self._path, map_size=0, readonly=self._read_only, create=False, lock=False
            )
        except (lmdb.DiskError, lmdb.ReadonlyError, lmdb.MemoryError, OSError) as error:
            raise _cannot_open(self._path, error) from error
        except lmdb.Error as error:
            raise self._damaged(error) from error
        map_size = env.info()["map_size"]
        if size < map_size:
            env.close()
            raise self._damaged(f"{size} bytes of {map_size} are left")
        return env

    def _create(self) -> None:
        new_path = f"{self._data_path}.new"
        with contextlib.suppress(FileNotFoundError):
            os.remove(new_path)  # left by a process killed before the rename
        with lmdb.open(new_path, subdir=False, lock=False, map_size=_INITIAL_MAP_SIZE) as env:
            env.sync(True)
        os.truncate(new_path, _INITIAL_MAP_SIZE)
        os.rename(new_path, self._data_path)
        sync_folder(self._path)

    def is_empty(self) -> bool:
        """Returns whether nothing was ever written."""
        return self._opened().stat()["entries"] == 0

    def read(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """Returns the value of each key, `None` for a missing key, in one transaction.

        Raises:
            CorruptStateError: One of these records is damaged.
        """
        try:
            with self._opened().begin(buffers=True) as txn:
                return [self._value(key, txn.get(key)) for key in keys]
        except lmdb.Error as error:
            raise self._damaged(error) from error

    def _value(self, key, record) -> bytes | None:
        if record is None:
            return None
        value = bytes(record[_CHECKSUM_BYTES:])
        if _checksum(key, value) != record[:_CHECKSUM_BYTES]:
            raise self._damaged(f"the checksum of '{key.decode()}' is wrong")
        return value

    def write(self, records: Mapping[bytes, bytes | None]) -> None:
        """Sets the values of some keys, and deletes those with `None`; all or none.

        Raises:
            StateStoreError: The disk is full or fails, a value is too large, or the records were
                opened read-only.
        """
        env = self._opened()
        if self._read_only:
            raise StateStoreError(f"The client states in {self._path} were opened read-only.")
        for key, value in records.items():
            if value is not None and len(value) + _CHECKSUM_BYTES > _LARGEST_RECORD:
                raise StateStoreError(
                    f"'{key.decode()}' takes {len(value) >> 20} MiB, but a record of a checkpoint "
                    f"has at most {_LARGEST_RECORD >> 20} MiB."
                )
        try:
            while not _try_write(env, records):
                map_size = 2 * env.info()["map_size"]
                os.truncate(self._data_path, map_size)
                env.set_mapsize(map_size)
        except (lmdb.Error, OSError) as error:
            raise StateStoreError(
                f"Cannot write client states in {self._path} ({error}). If the disk is full, free "
                "space and commit again; all states committed before are intact."
            ) from error

    def close(self) -> None:
        """Closes the file and releases the lock."""
        if self._env is not None:
            self._env.close()
        self._env = None
        self._unlock()

    def _opened(self) -> lmdb.Environment:
        if self._env is None:
            raise StateStoreError(
                f"The client states in {self._path} were closed. Open them again."
            )
        return self._env

    def _damaged(self, cause) -> CorruptStateError:
        return CorruptStateError(
            f"{self._data_path} is damaged: {cause}. Restore the directory from a copy, or start "
            "the run in a new directory."
        )


def _lock(path, read_only) -> int:
    """Locks a directory, created unless `read_only`; returns the open lock file."""
    lock_file = os.path.join(path, _LOCK_FILE)
    try:
        if not read_only:
            os.makedirs(path, exist_ok=True)
        names = os.listdir(path)
        if names and _LOCK_FILE not in names:
            raise ForeignStateError(
                f"{path} is not a store of client states: it holds {min(names)!r}. Give a new or "
                "an empty directory."
            )
        lock = os.open(lock_file, os.O_RDONLY if read_only else os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise _cannot_open(path, error) from error
    try:
        locks.lock(lock, path, shared=read_only)
    except BlockingIOError as error:
        os.close(lock)
        raise StateStoreError(
            f"The client states in {path} are already open, in this process or another. Close them "
            "there, or give another directory."
        ) from error
    return lock


def _try_write(env, records) -> bool:
    """Writes records, and returns whether the map was large enough."""
    try:
        with env.begin(write=True) as txn:
            for key, value in records.items():
                if value is None:
                    txn.delete(key)
                else:
                    txn.put(key, _checksum(key, value) + value)
    except lmdb.MapFullError:
        return False
    return True


def _checksum(key: bytes, value: bytes) -> bytes:
    return zlib.crc32(value, zlib.crc32(key)).to_bytes(_CHECKSUM_BYTES, "big")


def _cannot_open(path, error) -> StateStoreError:
    return StateStoreError(f"Cannot open the client states in {path} ({error}).")
