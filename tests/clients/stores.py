"""Stores of small client states, files of theirs that are damaged, and processes that open them."""

import collections
import contextlib
import itertools
import multiprocessing
import os
import signal
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import lmdb
import numpy as np
import pytest
import tensorflow_federated as tff

from tff_pfl.clients import disk
from tff_pfl.clients.state_store import ClientStateStore

STATE_TYPE = tff.types.to_type(collections.OrderedDict(w=(np.float32, [None]), n=np.int32))
MIB = 1 << 20
FLOATS = MIB // 8  # of a state, half a MiB, of which 20 are more than the first map


class Empty(NamedTuple):
    pass


def state(n, size=4):
    return collections.OrderedDict(w=np.full([size], n, np.float32), n=np.int32(n))


def initialize(client_ids):
    return [state(-1 - client_id) for client_id in client_ids]


def open_store(path=None, state_type=STATE_TYPE, **options):
    return ClientStateStore(initialize, state_type, path, **options)


def numbers(store, ids):
    return [int(s["n"]) for s in store.get(ids)]


@pytest.fixture(autouse=True)
def small_first_map(monkeypatch):
    """Of 8 MiB; it grows as a larger one does."""
    monkeypatch.setattr(disk, "_INITIAL_MAP_SIZE", 8 * MIB)


def filled(path):
    with open_store(str(path)) as store:
        store.put(range(20), [state(i, size=FLOATS) for i in range(20)])
        store.commit()
    return path / "data.mdb"


def in_the_format_before(path):
    """Makes a store in a directory one of earlier versions: a digest in the place of marks."""
    with lmdb.open(str(path), map_size=0, max_dbs=4, lock=False) as env:
        databases = [env.open_db(name) for name in (b"meta", b"states", b"attachments", b"marks")]
        meta, *with_records, marks = databases
        with env.begin(write=True) as txn:
            digest = 0
            for database in with_records:
                for key, record in txn.cursor(database):
                    digest += zlib.crc32(key, int.from_bytes(record[:4], "big"))
                    digest += len(record) << 32
            txn.put(b"digest", (digest % 2**64).to_bytes(8, "big"), db=meta)
            txn.put(b"format", b"2", db=meta)
            txn.delete(b"root", db=meta)
            txn.drop(marks)


def overwrite(path, position, content):
    with open(path, "r+b") as file:
        file.seek(position)
        file.write(content)


# All processes are forked from one that has imported this module, which takes seconds.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([__name__])


@contextlib.contextmanager
def process_of(function: Callable, *args) -> Iterator[tuple]:
    """`(process, connection)`: runs `function(*args, send)`; what it sends is received there."""
    receiver, sender = _FORKS.Pipe(duplex=False)
    process = _FORKS.Process(target=_run, args=(function, args, sender))
    process.start()
    sender.close()
    try:
        yield process, receiver
    finally:
        process.kill()
        process.join()


def _run(function, args, sender):
    function(*args, sender.send)


def hold_open(path, send):
    with open_store(path):
        send("open")
        signal.pause()


def commit_rounds(path, send):
    with open_store(path) as store:
        for n in itertools.count(int(store.attachment("round") or 0) + 1):
            ids = [0, 1 + n % 5, 6 + n % 7]
            store.put(ids, [state(n, 30_000)] * 3)
            store.commit({"round": str(n).encode(), "copy": str(n).encode() * 5000})
            send(n)


def be_killed_at(call, path, send):
    """In a function of `os`, or before a second commit."""

    def kill(*args):
        os.kill(os.getpid(), signal.SIGKILL)

    if call != "commit":
        setattr(os, call, kill)
    store = open_store(path)
    store.put([1], [state(1)])
    store.commit()
    store.put([1, 2], [state(5), state(6)])
    kill()
