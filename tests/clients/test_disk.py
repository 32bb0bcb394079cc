"""Tests stores on full disks, with damaged files, locked directories and killed processes."""

import collections
import contextlib
import fcntl
import os
import resource
import signal
import subprocess
import sys
import time

import lmdb
import numpy as np
import pytest
import tensorflow_federated as tff

from tests.clients.stores import FLOATS, MIB, STATE_TYPE, filled, numbers, open_store, state
from tests.permissions import permissions_hold, read_only
from tff_pfl.clients import CorruptStateError, ForeignStateError, StateStoreError, records
from tff_pfl.clients.records import DiskRecords


@pytest.fixture(autouse=True)
def small_first_map(monkeypatch):
    """Makes the first map 8 MiB large, so that small states make it grow."""
    monkeypatch.setattr(records, "_INITIAL_MAP_SIZE", 8 * MIB)


def test_commit_writes_only_changed_states(tmp_path):
    data = filled(tmp_path)
    before = data.stat().st_blocks * 512
    with open_store(tmp_path) as store:
        store.put([3], [state(3)])
        store.commit({"round": b"18"})
    assert before > 10 * MIB > MIB > data.stat().st_blocks * 512 - before


def test_map_grows_and_file_is_sparse(tmp_path):
    with open_store(tmp_path) as store:
        store.put([0], [state(0)])
        store.commit()
        before = os.stat(tmp_path / "data.mdb")
        assert before.st_blocks * 512 < MIB < before.st_size
        for first in (1, 21):  # 20 MiB, more than twice the first map
            ids = range(first, first + 20)
            store.put(ids, [state(i, size=FLOATS) for i in ids])
            store.commit()
    with open_store(tmp_path) as store:
        assert numbers(store, range(41)) == list(range(41))
        assert store.known_clients() == list(range(41))


class TestFailedCommits:
    def test_too_large_record_is_refused(self, tmp_path, monkeypatch):
        monkeypatch.setattr(records, "_LARGEST_RECORD", 2 * MIB)  # LMDB's own limit is 4 GiB
        with open_store(tmp_path) as store:
            store.commit({"server": b"1"})
            with pytest.raises(StateStoreError, match="server' takes 3 MiB, but .* at most 2 MiB"):
                store.commit({"server": bytes(3 * MIB)})
            store.commit({"other": b"2"})
            assert store.attachment("server") == b"1"

    @pytest.mark.parametrize("size", [MIB // 2, 2 * MIB])  # fails in a write; while the map grows
    def test_full_disk_keeps_both_generations(self, tmp_path, size):
        with open_store(tmp_path) as store:
            store.put([1], [state(1)])
            store.commit({"round": b"1"})
            store.put([1, 2], [state(10, size), state(20, size)])
            for _ in range(2):
                with (
                    files_end_at(MIB),
                    pytest.raises(StateStoreError, match=f"{tmp_path} .*, free space"),
                ):
                    store.commit({"round": b"2"})
            assert store.attachment("round") == b"1"
            store.put([3], [state(30)])
            assert numbers(store, [1, 2, 3]) == [10, 20, 30]
            store.commit({"round": b"2"})
        with open_store(tmp_path) as store:
            assert numbers(store, [1, 2, 3]) == [10, 20, 30]
            assert store.attachment("round") == b"2"

    def test_crash_after_a_full_disk_leaves_the_old_generation(self, tmp_path):
        with open_store(tmp_path) as store:
            store.put([1], [state(1)])
            store.commit()
            store.put([1], [state(2, MIB)])
            with files_end_at(MIB), pytest.raises(StateStoreError, match="Cannot write"):
                store.commit()
        with open_store(tmp_path) as store:
            assert numbers(store, [1]) == [1]

    @pytest.mark.parametrize("is_on_disk", [False, True])
    def test_interrupted_commit_may_be_repeated(self, tmp_path, monkeypatch, is_on_disk):
        """Interrupts a commit before its transaction, or right after it."""
        with open_store(tmp_path) as store:
            store.put([1], [state(1)])
            store.commit({"round": b"1"})
            write = records._try_write

            def interrupted(*args):
                if is_on_disk:
                    write(*args)
                raise KeyboardInterrupt

            store.put([1, 2], [state(10), state(20)])
            with monkeypatch.context() as patch:
                patch.setattr(records, "_try_write", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    store.commit({"round": b"2"})
            assert numbers(store, [1, 2]) == [10, 20]
            assert store.attachment("round") == (b"2" if is_on_disk else b"1")
            store.commit({"round": b"3"})
            digest = store.digest
        with open_store(tmp_path) as store:
            assert numbers(store, [1, 2]) == [10, 20]
            assert (store.attachment("round"), store.digest) == (b"3", digest)


@contextlib.contextmanager
def files_end_at(num_bytes):
    """Limits files to `num_bytes`; a longer write is cut short, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


class TestDamage:
    @pytest.mark.parametrize("size", [0, 5000, 9 * MIB, 16 * MIB - 1])
    def test_truncated_file_is_detected_on_opening(self, tmp_path, size):
        os.truncate(filled(tmp_path), size)
        with pytest.raises(CorruptStateError, match=rf"data\.mdb is damaged: {size} bytes"):
            open_store(tmp_path)

    def test_damaged_file_header_is_detected_on_opening(self, tmp_path):
        overwrite(filled(tmp_path), 0, b"\xff" * 8192)
        with pytest.raises(CorruptStateError, match="not an LMDB file"):
            open_store(tmp_path)

    def test_damaged_state_is_detected_on_reading(self, tmp_path):
        data = filled(tmp_path)
        position = data.read_bytes().index(np.full([8], 17, np.float32).tobytes())
        overwrite(data, position + 999, b"!")
        with open_store(tmp_path) as store:
            assert numbers(store, [16]) == [16]
            message = f"{data} is damaged: the checksum of 'client 0000000017' is wrong"
            with pytest.raises(CorruptStateError, match=message):
                store.get([17])

    def test_damaged_attachment_is_detected_on_reading(self, tmp_path):
        data = filled(tmp_path)
        overwrite(data, data.read_bytes().index(b"17 of 20"), b"18")
        with open_store(tmp_path) as store, pytest.raises(CorruptStateError, match="'attachment p"):
            store.attachment("progress")

    def test_client_never_gets_the_state_of_another(self, tmp_path):
        filled(tmp_path)
        with lmdb.open(str(tmp_path), map_size=0, lock=False) as env, env.begin(write=True) as txn:
            txn.put(b"client 0000000016", txn.get(b"client 0000000017"))
        message = "the checksum of 'client 0000000016' is wrong"
        with open_store(tmp_path) as store, pytest.raises(CorruptStateError, match=message):
            store.get([16])

    def test_missing_record_does_not_count_as_a_new_client(self, tmp_path):
        filled(tmp_path)
        with lmdb.open(str(tmp_path), map_size=0, lock=False) as env, env.begin(write=True) as txn:
            assert txn.delete(b"client 0000000017") and txn.delete(b"attachment progress")
        with open_store(tmp_path) as store:
            assert numbers(store, [3, 25]) == [3, -26]
            with pytest.raises(CorruptStateError, match=f"{tmp_path} .* state of client 17 is mis"):
                store.get([17])
            with pytest.raises(CorruptStateError, match=f"{tmp_path} .* attachment 'progress' is"):
                store.attachment("progress")


def overwrite(path, position, content):
    with open(path, "r+b") as file:
        file.seek(position)
        file.write(content)


class TestOpening:
    def test_error_for_another_type_prints_both_types(self, tmp_path):
        filled(tmp_path)
        other = tff.types.to_type(collections.OrderedDict(w=np.float64))
        with pytest.raises(ForeignStateError) as error:
            open_store(tmp_path, other)
        assert str(STATE_TYPE) in str(error.value)
        assert str(other) in str(error.value)
        open_store(tmp_path).close()

    @pytest.mark.parametrize("key", [b"meta", b"header"])
    def test_store_of_another_format_is_refused(self, tmp_path, key):
        open_store(tmp_path).close()
        record = b'{"format": 5}\n'
        with lmdb.open(str(tmp_path), map_size=0, lock=False) as env, env.begin(write=True) as txn:
            txn.put(key, records._checksum(key, record) + record)
        with pytest.raises(ForeignStateError, match=f"{tmp_path} have another format"):
            open_store(tmp_path)

    def test_directory_of_other_files_is_left_alone(self, tmp_path):
        (tmp_path / "weights.h5").write_bytes(b"precious")
        with pytest.raises(ForeignStateError, match=r"weights\.h5"):
            open_store(tmp_path)
        assert os.listdir(tmp_path) == ["weights.h5"]
        with pytest.raises(StateStoreError, match="Cannot open .*File exists"):
            open_store(tmp_path / "weights.h5")

    def test_read_only_store_is_shared_and_unchanged(self, tmp_path):
        """Reads from a read-only directory while another process reads too."""
        filled(tmp_path)
        before = sorted(os.listdir(tmp_path))
        with read_only(tmp_path), open(tmp_path / "client_states.lock") as another:
            fcntl.flock(another, fcntl.LOCK_SH)  # the lock of a second reader
            with open_store(tmp_path, read_only=True) as store:
                assert numbers(store, [1, 22]) == [1, -23]
                assert store.attachment("progress") == b"round 17 of 20"
                store.put([1], [state(2)])
                with pytest.raises(StateStoreError, match="opened read-only"):
                    store.commit()
        assert sorted(os.listdir(tmp_path)) == before

    @pytest.mark.parametrize(("first", "second"), [(False, False), (False, True), (True, False)])
    def test_writer_excludes_others(self, tmp_path, first, second):
        filled(tmp_path)
        with open_store(tmp_path, read_only=first), pytest.raises(StateStoreError, match="already"):
            open_store(tmp_path, read_only=second)

    def test_deleted_store_releases_its_lock(self, tmp_path):
        store = open_store(tmp_path)
        store.put([1], [state(1)])
        store.commit()
        del store
        with open_store(tmp_path) as store:
            assert numbers(store, [1]) == [1]

    def test_missing_and_forbidden_stores_are_reported(self, tmp_path):
        for missing in (tmp_path, tmp_path / "missing"):
            with pytest.raises(
                StateStoreError, match=f"Cannot open the client states in {missing}"
            ):
                open_store(missing, read_only=True)
        path = tmp_path / "store"
        open_store(path).close()
        with read_only(path), pytest.raises(StateStoreError, match=f"in {path} .*Permission"):
            open_store(path)
        path.chmod(0)
        try:
            with permissions_hold(), pytest.raises(StateStoreError, match=f"in {path} .*Permis"):
                open_store(path, read_only=True)
        finally:
            path.chmod(0o755)


COMMIT_ROUNDS = """
import itertools, os, signal, sys
from tff_pfl.clients.records import DiskRecords

path, call = sys.argv[1:]
if call:
    setattr(os, call, lambda *args: os.kill(os.getpid(), signal.SIGKILL))
records = DiskRecords(path)
(done,) = records.read([b"round"])
for n in itertools.count(int(done or 0) + 1):
    keys = [b"client %d" % i for i in (0, 1 + n % 5, 6 + n % 7)]
    records.write({key: b"%d " % n * 30_000 for key in keys} | {b"round": b"%d" % n})
    print(n, flush=True)
"""


def commit_rounds(path, call=""):
    """Starts a process that commits rounds until it is killed, or until it calls `os.<call>`."""
    command = [sys.executable, "-c", COMMIT_ROUNDS, str(path), call]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def last_round(client, n):
    """Returns the last round up to `n` in which a client took part in `COMMIT_ROUNDS`."""
    rounds = (r for r in range(n, 0, -1) if client in (0, 1 + r % 5, 6 + r % 7))
    return next(rounds, None)


class TestKills:
    @pytest.mark.thorough
    def test_kill_at_any_moment_leaves_a_consistent_generation(self, tmp_path):
        done, moments = 0, np.random.default_rng(0)
        for _ in range(5):
            with commit_rounds(tmp_path) as process:
                reported = int(process.stdout.readline())
                time.sleep(moments.uniform(0.01, 0.1))
                process.kill()
                *_, reported = [reported, *map(int, process.stdout)]
            store = DiskRecords(str(tmp_path))
            found, *clients = store.read([b"round", *(b"client %d" % i for i in range(13))])
            store.close()
            n = int(found)
            assert done < reported <= n <= reported + 1
            rounds = [last_round(client, n) for client in range(13)]
            assert clients == [r and b"%d " % r * 30_000 for r in rounds]
            done = n

    @pytest.mark.parametrize("call", ["truncate", "rename", "fsync"])
    def test_kill_during_creation_leaves_a_usable_directory(self, tmp_path, call):
        with commit_rounds(tmp_path, call) as process:
            assert process.wait() == -signal.SIGKILL
        if call == "rename":
            (tmp_path / "data.mdb.new").write_bytes(b"torn")
        with open_store(tmp_path) as store:
            store.put([1], [state(7)])
            store.commit()
            assert numbers(store, [1, 2]) == [7, -3]
        assert not (tmp_path / "data.mdb.new").exists()
