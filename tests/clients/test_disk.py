"""Stores on disk: full disks, directories that are taken or gone, processes that are killed."""

import collections
import contextlib
import fcntl
import os
import resource
import signal
import time

import lmdb
import numpy as np
import pytest
import tensorflow_federated as tff

from tests.clients.stores import (
    FLOATS,
    MIB,
    STATE_TYPE,
    be_killed_at,
    commit_rounds,
    hold_open,
    numbers,
    open_store,
    process_of,
    small_first_map,  # noqa: F401
    state,
)
from tests.permissions import permissions_hold, read_only
from tff_pfl.clients import disk
from tff_pfl.clients.errors import CorruptStateError, ForeignStateError, StateStoreError


def test_an_attachment_that_is_too_large(tmp_path, monkeypatch):
    """LMDB's own limit is 4 GiB."""
    monkeypatch.setattr(disk, "_LARGEST_RECORD", 2 << 20)
    with open_store(str(tmp_path)) as store:
        store.commit({"server": b"1"})
        with pytest.raises(StateStoreError, match="'server' takes 3 MiB; a .* at most 2 MiB of it"):
            store.commit({"server": bytes(3 << 20)})
        assert store.attachment("server") == b"1"
        store.commit({"server": b"2"})
    with open_store(str(tmp_path)) as store:
        assert store.attachment("server") == b"2"


def test_a_state_that_is_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "_LARGEST_RECORD", 100)
    with open_store(str(tmp_path)) as store:
        store.put([3], [state(3)])
        with pytest.raises(StateStoreError, match="The state of client 3 takes .* holds at most"):
            store.commit()


def test_the_map_grows_and_the_file_is_sparse(tmp_path):
    with open_store(str(tmp_path)) as store:
        store.put([0], [state(0)])
        store.commit()
        before = os.stat(tmp_path / "data.mdb")
        assert before.st_blocks * 512 < MIB < before.st_size
        for first in (1, 21):  # 20 MiB, more than twice the first map.
            ids = range(first, first + 20)
            store.put(ids, [state(i, size=FLOATS) for i in ids])
            store.commit()
    with open_store(str(tmp_path)) as store:
        assert numbers(store, range(41)) == list(range(41))
        assert store.known_clients() == list(range(41))


@contextlib.contextmanager
def files_end_at(num_bytes):
    """No file can be written past `num_bytes`, as on a full disk: a write comes back short."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("size", [MIB // 2, 2 * MIB])  # Fails in LMDB's write; in growing the map.
def test_a_full_disk_keeps_both_generations(tmp_path, size):
    with open_store(str(tmp_path)) as store:
        store.put([1], [state(1)])
        store.commit({"round": b"1"})
        store.put([1, 2], [state(10, size), state(20, size)])
        for _ in range(2):
            with files_end_at(MIB), pytest.raises(StateStoreError, match="free space") as error:
                store.commit({"round": b"2"})
            assert str(tmp_path) in str(error.value)
        assert store.attachment("round") == b"1"
        store.put([3], [state(30)])
        assert numbers(store, [1, 2, 3]) == [10, 20, 30]
        store.commit({"round": b"2"})
    with open_store(str(tmp_path)) as store:
        assert numbers(store, [1, 2, 3]) == [10, 20, 30]
        assert store.attachment("round") == b"2"


@pytest.mark.parametrize("cause", [lmdb.DiskError("No space left"), OSError(28, "No space left")])
def test_a_full_disk_then_a_crash_leaves_the_old_generation(tmp_path, monkeypatch, cause):
    with open_store(str(tmp_path)) as store:
        store.put([1], [state(1)])
        store.commit()
        store.put([1], [state(2)])

        def fail(*args):
            raise cause

        monkeypatch.setattr(store._generation, "_try_write", fail)
        with pytest.raises(StateStoreError, match="No space left"):
            store.commit()
    with open_store(str(tmp_path)) as store:
        assert numbers(store, [1]) == [1]


@pytest.mark.parametrize("change", ["deleted", "replaced", "file replaced"])
def test_a_directory_that_is_not_there_any_more_is_not_written_to(tmp_path, change):
    path, moved = tmp_path / "store", tmp_path / "moved"
    with open_store(str(path)) as store:
        store.put([1], [state(1)])
        store.commit()
        store.put([1], [state(2)])
        os.rename(path, moved)
        if change != "deleted":
            open_store(str(path)).close()
        if change == "file replaced":
            os.rename(moved / "client_states.lock", path / "client_states.lock")
        with pytest.raises(StateStoreError, match=f"{path} was deleted or replaced while"):
            store.commit()
        if change == "deleted":
            os.rename(moved, path)
            store.commit()
    if change == "deleted":
        with open_store(str(path)) as store:
            assert numbers(store, [1]) == [2]


def test_an_error_of_a_disk_that_says_nothing_of_its_space(tmp_path, monkeypatch):
    with open_store(str(tmp_path)) as store:

        def fail(*args):
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(store._generation, "_try_write", fail)
        monkeypatch.setattr(os, "statvfs", fail)
        with pytest.raises(StateStoreError, match="Cannot write client states .* an unknown"):
            store.commit()


def test_a_store_of_another_type_prints_both(tmp_path):
    open_store(str(tmp_path)).close()
    other = tff.types.to_type(collections.OrderedDict(w=np.float64))
    with pytest.raises(ForeignStateError) as error:
        open_store(str(tmp_path), other)
    assert str(STATE_TYPE) in str(error.value)
    assert str(other) in str(error.value)
    open_store(str(tmp_path)).close()


def test_a_directory_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "weights.h5").write_bytes(b"precious")
    with pytest.raises(ForeignStateError, match=r"weights\.h5"):
        open_store(str(tmp_path))
    assert os.listdir(tmp_path) == ["weights.h5"]
    with pytest.raises(ForeignStateError, match="found a file"):
        open_store(str(tmp_path / "weights.h5"))
    other = tmp_path / "other"
    lmdb.open(str(other)).close()
    with pytest.raises(ForeignStateError, match="something else"):
        open_store(str(other))


def test_a_store_that_is_only_read(tmp_path):
    """Where nothing can be written, by several at a time, and by none while it is written."""
    with open_store(str(tmp_path)) as store:
        store.put([1], [state(1)])
        store.commit({"round": b"1"})
        with pytest.raises(StateStoreError, match="open already"):
            open_store(str(tmp_path), read_only=True)
    before = sorted(os.listdir(tmp_path))
    with read_only(tmp_path), open(tmp_path / "client_states.lock") as another:
        fcntl.flock(another, fcntl.LOCK_SH)  # as another process that reads
        with open_store(str(tmp_path), read_only=True) as store:
            assert numbers(store, [1, 2]) == [1, -3]
            assert store.attachment("round") == b"1"
            store.put([1], [state(2)])
            with pytest.raises(StateStoreError, match="opened to be read only"):
                store.commit()
    assert sorted(os.listdir(tmp_path)) == before
    reader = open_store(str(tmp_path), read_only=True)
    with reader, pytest.raises(StateStoreError, match="open already"):
        open_store(str(tmp_path))
    (tmp_path / "data.mdb").unlink()
    with pytest.raises(CorruptStateError, match=r"data\.mdb is damaged: it is missing"):
        open_store(str(tmp_path), read_only=True)
    assert not (tmp_path / "data.mdb").exists()


def test_a_path_that_is_no_text(tmp_path):
    with open_store(tmp_path / "store") as store:
        store.put([1], [state(1)])
        store.commit()
        assert store.path == str(tmp_path / "store")
        assert (tmp_path / "store" / "data.mdb").exists()


def test_what_cannot_be_opened(tmp_path):
    for missing in (tmp_path, tmp_path / "missing"):
        with pytest.raises(StateStoreError, match=f"no client states to be read in {missing}"):
            open_store(str(missing), read_only=True)
    path = tmp_path / "store"
    open_store(str(path)).close()
    with read_only(path), pytest.raises(StateStoreError, match="Permission .* this user may write"):
        open_store(str(path))
    path.chmod(0)
    try:
        with permissions_hold(), pytest.raises(StateStoreError, match="this user may read"):
            open_store(str(path), read_only=True)
    finally:
        path.chmod(0o755)


@pytest.mark.slow
def test_while_another_process_has_it_open_it_is_refused(tmp_path):
    with process_of(hold_open, str(tmp_path)) as (_, connection):
        assert connection.recv() == "open"
        with pytest.raises(StateStoreError, match="open already"):
            open_store(str(tmp_path))
    open_store(str(tmp_path)).close()


def test_a_second_opener_is_refused(tmp_path):
    with open_store(str(tmp_path)), pytest.raises(StateStoreError, match="open already"):
        open_store(str(tmp_path))


def test_a_store_that_nobody_has_any_more_is_not_open(tmp_path):
    store = open_store(str(tmp_path))
    store.put([1], [state(1)])
    store.commit()
    del store
    with open_store(str(tmp_path)) as store:
        assert numbers(store, [1]) == [1]


def expected_number(client_id, n):
    """The round in which a client last took part in `commit_rounds`, up to round `n`."""
    last = {0: n, **{i: -1 - i for i in range(1, 13)}}
    for r in range(1, n + 1):
        last[1 + r % 5] = last[6 + r % 7] = r
    return last[client_id]


def received(connection):
    """All that is still there of a process that has ended."""
    with contextlib.suppress(EOFError):
        while True:
            yield connection.recv()


def test_killed_at_any_moment_the_generation_is_consistent(tmp_path):
    done = 0
    rng = np.random.default_rng(0)
    for _ in range(2):
        with process_of(commit_rounds, str(tmp_path)) as (process, connection):
            reported = [connection.recv() for _ in range(5)]
            time.sleep(rng.uniform(0.05, 0.25))
            process.kill()
            *_, reported = [*reported, *received(connection)]
        with open_store(str(tmp_path)) as store:
            n = int(store.attachment("round"))
            assert n in (reported, reported + 1)
            assert n >= done + 5
            assert store.attachment("copy") == str(n).encode() * 5000
            assert numbers(store, range(13)) == [expected_number(i, n) for i in range(13)]
            assert all((s["w"] == s["n"]).all() for s in store.get(store.known_clients()))
        done = n


def test_killed_while_creating_or_before_a_commit(tmp_path):
    expectations = {"truncate": -2, "rename": -2, "fsync": -2, "commit": 1}  # in their order
    for call in expectations:
        with process_of(be_killed_at, call, str(tmp_path / call)) as (process, _):
            process.join()
            assert process.exitcode == -signal.SIGKILL
    (tmp_path / "rename" / "data.mdb.new").write_bytes(b"torn")
    for call, expected in expectations.items():
        with open_store(str(tmp_path / call)) as store:
            assert numbers(store, [1, 2]) == [expected, -3]
            store.put([1], [state(7)])
            store.commit()
            assert numbers(store, [1]) == [7]
            assert not os.path.exists(tmp_path / call / "data.mdb.new")
