"""Records by key, in memory or on disk: what is written at once is written whole, or not at all."""

import contextlib
import fcntl
import os
import weakref
import zlib
from collections.abc import Iterable, Mapping

import lmdb

from tff_pfl.clients.errors import CorruptStateError, ForeignStateError, StateStoreError
from tff_pfl.files import sync_folder

_DATA_FILE = "data.mdb"
_LOCK_FILE = "client_states.lock"  # present in every directory of records, and in no other
_INITIAL_MAP_SIZE = 64 << 20
_LARGEST_RECORD = (1 << 32) - 1  # LMDB's limit
_CHECKSUM_BYTES = 4


class MemoryRecords(dict):
    """Records in memory."""

    def read(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """Returns the value of each key, `None` for a missing one."""
        return [self.get(key) for key in keys]

    def is_empty(self) -> bool:
        """Returns whether nothing was ever written."""
        return not self

    def write(self, records: Mapping[bytes, bytes]) -> None:
        """Sets the values of some keys."""
        self.update(records)

    def close(self) -> None:
        """Does nothing: there is nothing to release."""


class DiskRecords:
    """Records in an LMDB environment in a directory, for one that writes or several that read.

    LMDB makes a write all or nothing, whenever the process is killed, and reads only what is asked
    for. It has no checksums: each record begins with one of its key and value. LMDB also opens a
    truncated file, and then reading kills the process: so `data.mdb` is made under another name, is
    extended, as a sparse file, before the map grows, and counts as damaged if it is shorter.
    """

    def __init__(self, path: str, *, read_only: bool = False):
        """Opens the directory, and makes what is missing unless it is for reading.

        Raises:
            ForeignStateError: If the directory holds something else.
            CorruptStateError: If its file is damaged.
            StateStoreError: If it is locked, or cannot be opened.
        """
        self._path, self._read_only = path, read_only
        self._data_path = os.path.join(path, _DATA_FILE)
        # The lock ends with `close`, or when nobody has the object any more.
        self._unlock = weakref.finalize(self, os.close, _lock(path, read_only))
        try:
            self._env = self._open()
        except BaseException:
            self._unlock()
            raise

    def _open(self) -> lmdb.Environment:
        try:
            if not os.path.exists(self._data_path) and not self._read_only:
                self._create()
            size = os.path.getsize(self._data_path)
            if size < _INITIAL_MAP_SIZE:
                raise self._damaged(f"{size} bytes of {_INITIAL_MAP_SIZE} or more are left")
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
            os.remove(new_path)  # left by a process that was killed here
        with lmdb.open(new_path, subdir=False, lock=False, map_size=_INITIAL_MAP_SIZE) as env:
            env.sync(True)
        os.truncate(new_path, _INITIAL_MAP_SIZE)
        os.rename(new_path, self._data_path)
        sync_folder(self._path)

    def is_empty(self) -> bool:
        """Returns whether nothing was ever written."""
        return self._opened().stat()["entries"] == 0

    def read(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """Returns the value of each key, `None` for a missing one, all of one state of the file.

        Raises:
            CorruptStateError: If one of these records is damaged.
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

    def write(self, records: Mapping[bytes, bytes]) -> None:
        """Sets the values of some keys, all or none.

        Raises:
            StateStoreError: If the disk is full or fails, a value is too large, or the records are
                only to be read.
        """
        env = self._opened()
        if self._read_only:
            raise StateStoreError(f"The client states in {self._path} were opened to be read only.")
        for key, value in records.items():
            if len(value) + _CHECKSUM_BYTES > _LARGEST_RECORD:
                raise StateStoreError(
                    f"'{key.decode()}' takes {len(value) >> 20} MiB, but a checkpoint holds at "
                    f"most {_LARGEST_RECORD >> 20} MiB of it."
                )
        try:
            while not _try_write(env, records):
                map_size = 2 * env.info()["map_size"]
                os.truncate(self._data_path, map_size)
                env.set_mapsize(map_size)
        except (lmdb.Error, OSError) as error:
            raise StateStoreError(
                f"Cannot write client states in {self._path} ({error}). If its disk is full, free "
                "space and commit again. The states committed before are intact."
            ) from error

    def close(self) -> None:
        """Closes the file and releases the lock."""
        if self._env is not None:
            self._env.close()
        self._env = None
        self._unlock()

    def _opened(self) -> lmdb.Environment:
        if self._env is None:
            raise StateStoreError(f"The client states in {self._path} were closed. Open them anew.")
        return self._env

    def _damaged(self, cause) -> CorruptStateError:
        return CorruptStateError(
            f"{self._data_path} is damaged: {cause}. Restore the directory from a copy, or start "
            "the run in a new one."
        )


def _lock(path, read_only) -> int:
    """Locks a directory, which is made unless it is for reading; returns the open lock file."""
    lock_file = os.path.join(path, _LOCK_FILE)
    try:
        if not read_only:
            os.makedirs(path, exist_ok=True)
        names = os.listdir(path)
        if names and _LOCK_FILE not in names:
            raise ForeignStateError(
                f"{path} holds something else than a store of client states, such as "
                f"{min(names)!r}. Give a new or an empty directory."
            )
        lock = os.open(lock_file, os.O_RDONLY if read_only else os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise _cannot_open(path, error) from error
    try:
        fcntl.flock(lock, (fcntl.LOCK_SH if read_only else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise StateStoreError(
            f"The client states in {path} are open already, here or in another process. Close them "
            "there, or give another directory."
        ) from error
    return lock


def _try_write(env, records) -> bool:
    """Returns whether the map had room."""
    try:
        with env.begin(write=True) as txn:
            for key, value in records.items():
                txn.put(key, _checksum(key, value) + value)
    except lmdb.MapFullError:
        return False
    return True


def _checksum(key: bytes, value: bytes) -> bytes:
    return zlib.crc32(value, zlib.crc32(key)).to_bytes(_CHECKSUM_BYTES, "big")


def _cannot_open(path, error) -> StateStoreError:
    return StateStoreError(f"Cannot open the client states in {path} ({error}).")
