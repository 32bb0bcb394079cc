"""Damaged files of client states are noticed, and named; nothing is read of them."""

import os
import re

import lmdb
import numpy as np
import pytest

from tests.clients.stores import (
    FLOATS,
    MIB,
    filled,
    in_the_format_before,
    numbers,
    open_store,
    overwrite,
    small_first_map,  # noqa: F401
    state,
)
from tff_pfl.clients.errors import CorruptStateError, ForeignStateError
from tff_pfl.clients.records import mark_of


@pytest.mark.parametrize("size", [0, 100, 4096, 5000, 3 * MIB, 9 * MIB, 16 * MIB - 1])
def test_a_truncated_file_is_noticed_on_opening(tmp_path, size):
    os.truncate(filled(tmp_path), size)
    with pytest.raises(CorruptStateError, match=rf"data\.mdb is damaged: {size} bytes"):
        open_store(str(tmp_path))


def test_a_damaged_header_is_noticed_on_opening(tmp_path):
    with open(filled(tmp_path), "r+b") as file:
        file.write(b"\xff" * 8192)
    with pytest.raises(CorruptStateError, match="not an LMDB file"):
        open_store(str(tmp_path))


def test_a_damaged_state_names_its_client(tmp_path):
    data = filled(tmp_path)
    content = data.read_bytes()
    position = content.index(np.full([8], 17, np.float32).tobytes())
    overwrite(data, position + 999, b"!")
    with open_store(str(tmp_path)) as store:
        assert numbers(store, [16]) == [16]
        with pytest.raises(CorruptStateError, match=f"{data} is damaged: the state of client 17"):
            store.get([17])


def test_a_damaged_attachment_names_the_file(tmp_path):
    with open_store(str(tmp_path)) as store:
        store.commit({"progress": b"round 17 of 20", "iterator": b"sound"})
    data = tmp_path / "data.mdb"
    overwrite(data, data.read_bytes().index(b"17 of 20"), b"18")
    with open_store(str(tmp_path)) as store:
        assert store.attachment("iterator") == b"sound"
        with pytest.raises(CorruptStateError, match=f"{data} is damaged: its 'progress'"):
            store.attachment("progress")


@pytest.mark.parametrize(("client_id", "byte"), [(17, 6), (19, 7)])  # 19 stays the last
def test_a_client_whose_key_is_damaged_does_not_start_anew(tmp_path, client_id, byte):
    data = filled(tmp_path)
    content = data.read_bytes()[: MIB // 4]
    key = client_id.to_bytes(8, "big")
    positions = [i for i in range(len(content)) if content.startswith(key, i)]
    assert positions
    for position in positions:  # of old pages, too
        overwrite(data, position + byte, b"\x1f")
    message = f"{data} is damaged: it lacks records, .* such as the state of client {client_id}"
    for read_only in (True, False):
        with open_store(str(tmp_path), read_only=read_only) as store:
            assert numbers(store, [3, 25]) == [3, -26]
            with pytest.raises(CorruptStateError, match=message):
                store.get([client_id])


def test_marks_that_are_damaged_are_noticed_by_whom_they_are_of(tmp_path):
    data = filled(tmp_path)
    with open_store(str(tmp_path)) as store:
        store.put([256, 700], [state(1), state(2)])
        store.commit()
    content = data.read_bytes()
    page = b"".join(mark_of(record) for record in records_of(tmp_path, range(20)))
    for found in re.finditer(re.escape(page), content):  # of old pages, too
        overwrite(data, found.start() + 9, b"!!")
    with open_store(str(tmp_path)) as store:
        assert numbers(store, [256, 700, 5000]) == [1, 2, -5001]
        for use in (lambda: store.get([19]), lambda: store.get([100]), store.known_clients):
            with pytest.raises(CorruptStateError, match="such as the marks of some clients"):
                use()
        store.put([3], [state(3)])
        with pytest.raises(CorruptStateError, match="such as the marks of some clients"):
            store.commit()


def test_a_damaged_root_is_noticed_on_opening(tmp_path):
    data = filled(tmp_path)
    with (
        lmdb.open(str(tmp_path), map_size=0, max_dbs=4, lock=False) as env,
        env.begin(db=env.open_db(b"meta")) as txn,
    ):
        root = txn.get(b"root")
    content = data.read_bytes()
    for found in re.finditer(re.escape(root), content):
        overwrite(data, found.end() - 1, b"!")
    with pytest.raises(CorruptStateError, match="the root of its marks has a wrong checksum"):
        open_store(str(tmp_path))


def test_a_client_does_not_get_an_older_state_of_its_own(tmp_path):
    """Of its own, so that the checksum of the record is right."""
    data = filled(tmp_path)
    (older,) = records_of(tmp_path, [17])
    with open_store(str(tmp_path)) as store:
        store.put([17], [state(170, size=FLOATS)])
        store.commit()
    (newer,) = records_of(tmp_path, [17])
    assert len(older) == len(newer)
    overwrite(data, data.read_bytes().index(newer[:4096]), older)
    with open_store(str(tmp_path)) as store:
        assert numbers(store, [16, 18]) == [16, 18]
        with pytest.raises(CorruptStateError, match="such as the state of client 17"):
            store.get([17])


def records_of(path, client_ids):
    """The records of clients, as they are stored."""
    with (
        lmdb.open(str(path), map_size=0, max_dbs=4, lock=False) as env,
        env.begin(db=env.open_db(b"states")) as txn,
    ):
        return [txn.get(client_id.to_bytes(8, "big")) for client_id in client_ids]


def test_an_attachment_whose_name_is_damaged_is_missed(tmp_path):
    with open_store(str(tmp_path)) as store:
        store.commit({"progress": b"round 17 of 20", "server": b"sound"})
    data = tmp_path / "data.mdb"
    overwrite(data, data.read_bytes().index(b"server"), b"w")
    with pytest.raises(CorruptStateError, match=f"{data} is damaged: it lacks records"):
        open_store(str(tmp_path))


def test_a_client_does_not_get_the_state_of_another(tmp_path):
    data = filled(tmp_path)
    content = data.read_bytes()
    first, second = (content.index(np.full([8], n, np.float32).tobytes()) for n in (16, 17))
    start = second // 4096 * 4096  # of the pages of the record
    overwrite(data, first // 4096 * 4096, content[start : start + MIB // 2])
    message = f"{data} is damaged"
    with open_store(str(tmp_path)) as store, pytest.raises(CorruptStateError, match=message):
        store.get([16])


@pytest.mark.parametrize("read_only", [False, True])
def test_states_in_the_format_before_are_read_and_get_marks(tmp_path, read_only):
    filled(tmp_path)
    with open_store(str(tmp_path)) as store:
        store.put([256, 700], [state(1), state(2)])
        store.commit({"progress": b"round 17"})
    in_the_format_before(tmp_path)
    before = (tmp_path / "data.mdb").read_bytes()
    for _ in range(2):
        with open_store(str(tmp_path), read_only=read_only) as store:
            assert store.known_clients() == [*range(20), 256, 700]
            assert numbers(store, [3, 256, 700, 20, 5000]) == [3, 1, 2, -21, -5001]
            assert store.attachment("progress") == b"round 17"
    if read_only:
        assert (tmp_path / "data.mdb").read_bytes() == before
        return
    with open_store(str(tmp_path)) as store:
        store.put([20], [state(20)])
        store.commit({"progress": b"round 18"})
    with open_store(str(tmp_path), read_only=True) as store:
        assert numbers(store, [20, 700]) == [20, 2]
        assert store.attachment("progress") == b"round 18"


def test_a_client_that_is_missed_in_the_format_before_is_noticed_on_opening(tmp_path):
    filled(tmp_path)
    in_the_format_before(tmp_path)
    with (
        lmdb.open(str(tmp_path), map_size=0, max_dbs=4, lock=False) as env,
        env.begin(write=True, db=env.open_db(b"states")) as txn,
    ):
        txn.delete((17).to_bytes(8, "big"))
    with pytest.raises(CorruptStateError, match="is damaged: it lacks records"):
        open_store(str(tmp_path))


def test_states_of_an_older_version_are_refused_by_name(tmp_path):
    open_store(str(tmp_path)).close()
    with (
        lmdb.open(str(tmp_path), map_size=0, max_dbs=3, lock=False) as env,
        env.begin(write=True, db=env.open_db(b"meta")) as txn,
    ):
        txn.put(b"format", b"1")
    with pytest.raises(ForeignStateError, match=r"data\.mdb is of format 1, expected 3: another"):
        open_store(str(tmp_path))
