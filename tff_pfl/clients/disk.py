"""One generation of client states on disk, replaced as a whole."""

import contextlib
import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

import lmdb

from tff_pfl.clients.errors import CorruptStateError, ForeignStateError, StateStoreError
from tff_pfl.clients.folder_lock import FolderLock
from tff_pfl.clients.records import (
    NO_MARK,
    PAGE_CLIENTS,
    Marks,
    Root,
    digest_of,
    key_of,
    mark_of,
    mark_of_value,
    record_of,
    share_of,
    value_of,
)
from tff_pfl.files import sync_folder

_DATA_FILE = "data.mdb"
_NEW_DATA_FILE = "data.mdb.new"
_FORMAT = b"3"
_WITHOUT_MARKS = b"2"  # The format before it, of earlier versions.
_DATABASES = (b"meta", b"states", b"attachments", b"marks")
_INITIAL_MAP_SIZE = 64 << 20
_LARGEST_RECORD = (1 << 32) - 1  # of LMDB
_ROOT = b"root"
_LACKS = "it lacks records, or has others than were committed"
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
    read, and so is that it is the one which the marks say (`records.py`): a damaged page that hides
    a client, or shows an older state of it or another client's, is noticed as well. On opening, the
    root of the marks and the attachments are read, and no clients: that does not take longer where
    more of them have states.

    In the format of earlier versions, a digest of all records is in the place of marks. On opening,
    it is checked, by reading them all, and the marks are made.
    """

    def __init__(self, path: str, state_type: str, *, read_only: bool = False):
        self._path = path
        self._data_path = os.path.join(path, _DATA_FILE)
        self._read_only = read_only
        self._is_closed = False
        with contextlib.ExitStack() as resources:
            self._lock = FolderLock(path, read_only=read_only)
            resources.callback(self._lock.release)
            self._open(resources, state_type.encode())
            self._resources = resources.pop_all()

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
            # The directory is locked already: LMDB need not do so, which would write to it.
            self._env = resources.enter_context(
                lmdb.open(
                    self._path,
                    map_size=0,
                    max_dbs=len(_DATABASES),
                    readonly=self._read_only,
                    create=False,
                    lock=False,
                )
            )
            self._lock.watch(self._data_path)
            if size < self._map_size():
                raise self._damaged(f"{size} bytes of {self._map_size()} are left")
            self._meta, self._states, self._attachments = (
                self._env.open_db(name, create=False) for name in _DATABASES[:3]
            )
            with self._env.begin(db=self._meta) as txn:
                found_format, found_type = txn.get(b"format"), txn.get(b"state_type")
            if found_format == _FORMAT:
                self._marks = self._env.open_db(_DATABASES[3], create=False)
        except _DAMAGE as e:
            raise self._damaged(e) from e
        except (lmdb.Error, OSError) as e:
            if self._read_only:
                raise StateStoreError(f"Cannot read {self._data_path} ({e}).") from e
            raise self._cannot_write(e) from e
        if found_format not in (_FORMAT, _WITHOUT_MARKS):
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
        self._pages: Mapping[int, Marks] | None = None  # where the file has none
        if found_format == _FORMAT:
            self._read_root()
        else:
            self._add_marks()

    def _read_root(self) -> None:
        with self._reading(self._meta, buffers=True) as txn:
            value = self._read(txn, _ROOT, "the root of its marks")
            found = sum(share_of(*record) for record in self._records(txn, self._attachments))
        root = None if value is None else Root.of(value)
        if root is None or root.attachments != digest_of(found):
            raise self._damaged(_LACKS)
        self._root = root

    def _add_marks(self) -> None:
        """Makes those of all records; of a generation that is read only, they stay in memory."""
        pages = defaultdict(lambda: Marks(4 * PAGE_CLIENTS))
        with self._reading(self._meta, buffers=True) as txn:
            expected = txn.get(b"digest")
            of_clients = 0
            for key, record in self._records(txn, self._states):
                of_clients += share_of(key, record)
                page, place = divmod(int.from_bytes(key, "big"), PAGE_CLIENTS)
                pages[page].put(place, mark_of(record))
            found = sum(share_of(*record) for record in self._records(txn, self._attachments))
            if expected is None or expected != digest_of(found + of_clients):
                raise self._damaged(_LACKS)
        root = Root(digest_of(found), Marks())
        for page, marks in pages.items():
            root.pages.put(page, _mark_of_page(page, marks))
        if self._read_only:
            self._pages, self._root = pages, root
            return

        def put(txn) -> Root:
            for page, marks in pages.items():
                txn.put(key_of(page), record_of(key_of(page), marks), db=self._marks)
            txn.put(b"format", _FORMAT, db=self._meta)
            txn.delete(b"digest", db=self._meta)
            return root

        self._marks = self._env.open_db(_DATABASES[3])
        self._write(put)

    def _records(self, txn, database) -> Iterator[tuple[bytes, memoryview]]:
        """All records, looked up by the keys under which they are listed."""
        entries = txn.stat(database)["entries"]
        for index, key in enumerate(txn.cursor(database).iternext(values=False)):
            record = txn.get(key, db=database)
            if record is None or index == entries:  # what is listed may go in a circle
                raise self._damaged("its pages do not fit together")
            yield bytes(key), record

    def _create(self, state_type: bytes) -> None:
        new_path = os.path.join(self._path, _NEW_DATA_FILE)
        if os.path.exists(new_path):  # Of a process that was killed right here.
            os.remove(new_path)
        with lmdb.open(
            new_path,
            subdir=False,
            lock=False,
            map_size=_INITIAL_MAP_SIZE,
            max_dbs=len(_DATABASES),
        ) as env:
            meta, *_ = [env.open_db(name) for name in _DATABASES]
            with env.begin(write=True, db=meta) as txn:
                txn.put(b"format", _FORMAT)
                txn.put(b"state_type", state_type)
                txn.put(_ROOT, record_of(_ROOT, Root(digest_of(0), Marks()).value()))
        os.truncate(new_path, _INITIAL_MAP_SIZE)
        os.rename(new_path, self._data_path)
        sync_folder(self._path)

    @contextlib.contextmanager
    def _reading(self, database, **options):
        self._check_open()
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
                txn,
                key_of(client_id),
                f"the state of client {client_id}",
                self._mark_of(txn, client_id),
            )

    def attachment(self, name: str) -> bytes | None:
        with self._reading(self._attachments, buffers=True) as txn:
            return self._read(txn, name.encode(), f"its {name!r}")

    def _read(self, txn, key: bytes, what: str, mark: bytes | None = None) -> bytes | None:
        """The value under a key, if there is one; `mark`, where it is known, is its record's."""
        record = txn.get(key)
        if mark not in (None, mark_of(record)):
            raise self._damaged(f"{_LACKS}, such as {what}")
        if record is None:
            return None
        value = value_of(key, record)
        if value is None:
            raise self._damaged(f"{what} has a wrong checksum")
        return value

    def _mark_of(self, txn, client_id: int) -> bytes:
        page, place = divmod(client_id, PAGE_CLIENTS)
        return self._page(txn, page).at(place)

    def _page(self, txn, page: int) -> Marks:
        """A page of marks, as the root has it; one without any, if it has none."""
        expected = self._root.pages.at(page)
        if expected == NO_MARK or self._pages is not None:
            return (self._pages or {}).get(page, Marks(4 * PAGE_CLIENTS))
        record = txn.get(key_of(page), db=self._marks)
        marks = value_of(key_of(page), record) if mark_of(record) == expected else None
        if marks is None:
            raise self._damaged(f"{_LACKS}, such as the marks of some clients")
        return Marks(marks)

    def client_ids(self) -> list[int]:
        """Of all that have a state, in ascending order."""
        with self._reading(self._meta, buffers=True) as txn:
            return [
                page * PAGE_CLIENTS + place
                for page in self._root.pages.places()
                for place in self._page(txn, page).places()
            ]

    def digest(self, states: Mapping[int, bytes]) -> bytes:
        """8 bytes that tell the states of all clients from others, once `states` are written."""
        pages = Marks(self._root.pages)
        with self._reading(self._meta, buffers=True) as txn:
            for page, marks in self._changed_pages(
                txn, states, lambda i: mark_of_value(key_of(i), states[i])
            ):
                pages.put(page, _mark_of_page(page, marks))
        return hashlib.blake2b(pages, digest_size=8).digest()

    def write(self, states: Mapping[int, bytes], attachments: Mapping[str, bytes]) -> None:
        if self._read_only:
            raise StateStoreError(f"The client states in {self._path} were opened to be read only.")
        self._write(lambda txn: self._put(txn, states, attachments))

    def _write(self, put: Callable[[lmdb.Transaction], Root]) -> None:
        """Writes one generation: what `put` does, and the root that it returns."""
        self._check_open()
        if not self._lock.is_in_place():
            raise StateStoreError(
                f"{self._path} was deleted or replaced while its client states were open: there is "
                "nowhere to write new ones. Put the directory back where it was and commit again, "
                "or start the run in a new one."
            )
        try:
            with self._known_root():
                while not self._try_write(put):
                    self._grow()
        except _DAMAGE as e:
            raise self._damaged(e) from e
        except (lmdb.Error, OSError) as e:
            raise self._cannot_write(e) from e

    @contextlib.contextmanager
    def _known_root(self) -> Iterator[None]:
        """Reads the root after a write that anything ended early: it may be on the disk, or not."""
        try:
            yield
        except BaseException:
            with contextlib.suppress(CorruptStateError):  # the write's own error says more
                self._read_root()
            raise

    def _try_write(self, put) -> bool:
        """Returns whether the map had room for it."""
        try:
            with self._env.begin(write=True, buffers=True) as txn:
                root = put(txn)
                txn.put(_ROOT, record_of(_ROOT, root.value()), db=self._meta)
        except lmdb.MapFullError:
            return False
        self._root = root
        return True

    def _put(self, txn, states, attachments) -> Root:
        def put_state(client_id: int) -> bytes:
            record = _of_a_size(
                f"The state of client {client_id}",
                record_of(key_of(client_id), states[client_id]),
            )
            txn.put(key_of(client_id), record, db=self._states)
            return mark_of(record)

        pages = Marks(self._root.pages)
        for page, marks in self._changed_pages(txn, states, put_state):
            txn.put(key_of(page), record_of(key_of(page), marks), db=self._marks)
            pages.put(page, _mark_of_page(page, marks))
        shares = int.from_bytes(self._root.attachments, "big")
        for name, value in attachments.items():
            key = name.encode()
            old = txn.get(key, db=self._attachments)
            new = _of_a_size(repr(name), record_of(key, value))
            shares += share_of(key, new) - (0 if old is None else share_of(key, old))
            txn.put(key, new, db=self._attachments)
        return Root(digest_of(shares), pages)

    def _changed_pages(self, txn, client_ids, mark) -> Iterator[tuple[int, Marks]]:
        """Pages of marks, by number, where `mark(client_id)` is that of a client's new record."""
        clients_of = defaultdict(list)
        for client_id in client_ids:
            clients_of[client_id // PAGE_CLIENTS].append(client_id)
        for page, changed in clients_of.items():
            marks = self._page(txn, page)
            for client_id in changed:
                marks.put(client_id % PAGE_CLIENTS, mark(client_id))
            yield page, marks

    def _grow(self) -> None:
        map_size = 2 * self._map_size()
        os.truncate(self._data_path, map_size)
        self._env.set_mapsize(map_size)

    def _map_size(self) -> int:
        return self._env.info()["map_size"]

    def close(self) -> None:
        self._is_closed = True
        self._resources.close()

    def _check_open(self):
        if self._is_closed:
            raise StateStoreError(f"The client states in {self._path} were closed. Open them anew.")

    def _damaged(self, cause) -> CorruptStateError:
        return CorruptStateError(
            f"{self._data_path} is damaged: {cause}. Restore the directory from a copy, or start "
            "the run in a new one."
        )

    def _cannot_write(self, cause: Exception) -> StateStoreError:
        try:
            stats = os.statvfs(self._path)
            left = f"{stats.f_bavail * stats.f_frsize >> 20} MiB"
        except OSError as e:
            left = f"an unknown number of MiB ({e})"
        return StateStoreError(
            f"Cannot write client states in {self._path} ({cause}). Its disk has {left} left; if "
            "that is too little, or a quota is used up, free space and commit again. The states "
            "committed before are intact."
        )


def _of_a_size(what: str, record: bytes) -> bytes:
    """A record, if it can be stored."""
    if len(record) > _LARGEST_RECORD:
        raise StateStoreError(
            f"{what} takes {len(record) >> 20} MiB; a checkpoint holds at most "
            f"{_LARGEST_RECORD >> 20} MiB of it. The states committed before are intact."
        )
    return record


def _mark_of_page(page: int, marks: Marks) -> bytes:
    return mark_of(record_of(key_of(page), marks))


def _shown(stored: bytes | None) -> str:
    """Bytes that should be text, for a message."""
    return "unknown" if stored is None else stored.decode(errors="replace")
