"""Damaged files of client states are noticed, and named; nothing is read of them."""

import os

import lmdb
import numpy as np
import pytest

from tests.clients.stores import (
    MIB,
    filled,
    numbers,
    open_store,
    overwrite,
    small_first_map,  # noqa: F401
)
from tff_pfl.clients.errors import CorruptStateError, ForeignStateError


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
    with pytest.raises(CorruptStateError, match=f"{data} is damaged: it"):
        open_store(str(tmp_path))


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
    with pytest.raises(CorruptStateError, match=f"{data} is damaged"):
        open_store(str(tmp_path))


def test_states_of_an_older_version_are_refused_by_name(tmp_path):
    open_store(str(tmp_path)).close()
    with (
        lmdb.open(str(tmp_path), map_size=0, max_dbs=3, lock=False) as env,
        env.begin(write=True, db=env.open_db(b"meta")) as txn,
    ):
        txn.put(b"format", b"1")
    with pytest.raises(ForeignStateError, match=r"data\.mdb is of format 1, expected 2: another"):
        open_store(str(tmp_path))
