"""Tests of `tff_pfl.clients.state_store`; those of the disk below it are in `test_disk.py`."""

import collections

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.clients.stores import (
    STATE_TYPE,
    Empty,
    numbers,
    open_store,
    small_first_map,  # noqa: F401
    state,
)
from tff_pfl.clients.errors import StateStoreError
from tff_pfl.clients.state_store import ClientStateStore


@pytest.fixture(params=["memory", "disk"])
def store(request, tmp_path):
    with open_store(str(tmp_path / "store") if request.param == "disk" else None) as store:
        yield store


def test_a_client_never_seen_gets_its_initial_state_which_is_not_stored(store):
    assert numbers(store, [3, 0, 3]) == [-4, -1, -4]
    store.commit()
    assert store.known_clients() == []


def test_first_states_are_made_in_one_call_of_those_who_have_none():
    asked = []

    def initialize(client_ids):
        asked.append(client_ids)
        return [state(-1 - client_id) for client_id in client_ids]

    store = ClientStateStore(initialize, STATE_TYPE)
    store.put([5, 2], [state(50), state(20)])
    assert numbers(store, [7, 5, 0, 2, 7]) == [-8, 50, -1, 20, -8]
    assert numbers(store, [2, 5]) == [20, 50]
    assert asked == [[7, 0, 7]]


@pytest.mark.parametrize("number", [0, 1, 3])
def test_first_states_are_one_for_each_client(number):
    store = ClientStateStore(lambda client_ids: [state(0)] * number, STATE_TYPE)
    message = f"`initialize_clients` returned {number} states for 2 clients; it returns one for"
    with pytest.raises(ValueError, match=message):
        store.get([4, 5])


def test_put_is_seen_at_once_and_others_keep_their_state_bit_for_bit(store):
    odd = collections.OrderedDict(w=np.array([np.nan, -0.0, 1e-45], np.float32), n=np.int32(7))
    store.put([300, 2], [odd, state(2)])
    assert numbers(store, [2, 300, 1]) == [2, 7, -2]
    store.commit()
    store.put(np.array([2], np.int32), [state(5)])
    store.commit()
    assert numbers(store, [np.int32(2)]) == [5]
    [kept] = store.get([300])
    assert kept["w"].tobytes() == odd["w"].tobytes()
    assert store.known_clients() == [2, 300]


def test_states_share_no_memory_with_the_store(store):
    mine = state(1)
    store.put([0], [mine])
    mine["w"][:] = 99
    for commit in (False, True):
        if commit:
            store.commit()
        [first] = store.get([0])
        first["w"][:] = 98
        assert store.get([0])[0]["w"].tolist() == [1] * 4


def test_an_initial_state_shares_no_memory_with_the_callers():
    shared = state(0)
    store = ClientStateStore(lambda client_ids: [shared] * len(client_ids), STATE_TYPE)
    store.get([0])[0]["w"][:] = 9
    assert store.get([1])[0]["w"].tolist() == [0] * 4


def test_put_refuses_and_then_holds_nothing(store):
    with pytest.raises(ValueError, match=r"twice: \[4\]"):
        store.put([4, 5, 4], [state(0)] * 3)
    with pytest.raises(ValueError, match="2 client ids, but 1 states"):
        store.put([4, 5], [state(0)])
    with pytest.raises(TypeError, match="at 'n'"):
        store.put([4, 5], [state(0), {"w": np.zeros(1, np.float32), "n": 1.5}])
    with pytest.raises(ValueError, match="found -1"):
        store.get([-1])
    assert store.known_clients() == []


@pytest.mark.parametrize("client_id", [-1, 2**31, 2**63])
def test_ids_are_numbers_of_clients(store, client_id):
    for use in (store.get, lambda ids: store.put(ids, [state(0)])):
        with pytest.raises(ValueError, match=f"found {client_id}. Number the clients from 0"):
            use([client_id])
    store.put([2**31 - 1], [state(7)])
    assert store.known_clients() == [2**31 - 1]


def test_attachments_of_earlier_commits_stay(store):
    assert store.attachment("server") is None
    store.commit({"server": b"1", "iterator": b"a"})
    store.commit({"server": b"2"})
    assert (store.attachment("server"), store.attachment("iterator")) == (b"2", b"a")
    for name in ("", "x" * 512):
        store.put([1], [state(1)])
        with pytest.raises(ValueError, match="1 to 511 bytes"):
            store.commit({"server": b"3", name: b""})
        assert store.attachment("server") == b"2"


def test_attachments_are_copies_of_bytes(store):
    mine = bytearray(b"abc")
    store.commit({"a": mine, "b": memoryview(b"view")})
    mine[:] = b"xyz"
    assert (store.attachment("a"), store.attachment("b")) == (b"abc", b"view")
    for wrong in ("text", 3, None):
        with pytest.raises(TypeError, match="The attachment 'a' must be bytes, found <class"):
            store.commit({"a": wrong})
    assert store.attachment("a") == b"abc"


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_state_without_tensors_stores_nothing(tmp_path, on_disk):
    state_type = tff.types.StructWithPythonType(
        [("a", tff.types.StructWithPythonType([], Empty))], collections.OrderedDict
    )
    with ClientStateStore(None, state_type, str(tmp_path) if on_disk else None) as store:
        expected = collections.OrderedDict(a=Empty())
        first, second = store.get([0, 1])
        assert first == second == expected
        assert first is not second
        store.put([0, 1], [expected] * 2)
        store.commit({"server": b"1"})
        assert store.known_clients() == []
        assert store.attachment("server") == b"1"


def test_only_commits_survive_reopening(tmp_path):
    with open_store(str(tmp_path)) as store:
        store.put([1, 2], [state(1), state(2)])
        store.commit({"round": b"1"})
        store.put([2, 3], [state(20), state(30)])
    store.close()
    with open_store(str(tmp_path)) as store:
        assert numbers(store, [1, 2, 3]) == [1, 2, -4]
        assert store.attachment("round") == b"1"


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, TimeoutError])
@pytest.mark.parametrize("is_on_disk", [False, True])
def test_a_commit_that_is_interrupted_may_be_done_again(
    tmp_path, monkeypatch, is_on_disk, interruption
):
    """By Ctrl-C, or what handles another signal, before the transaction or right after it."""
    with open_store(str(tmp_path)) as store:
        store.put([1], [state(1)])
        store.commit({"round": b"1"})
        original = type(store._generation)._try_write

        def interrupted(generation, put):
            root = generation._root
            if is_on_disk:
                original(generation, put)
            generation._root = root
            raise interruption

        store.put([1, 2], [state(10), state(20)])
        with monkeypatch.context() as patch:
            patch.setattr(type(store._generation), "_try_write", interrupted)
            with pytest.raises((interruption, StateStoreError)):
                store.commit({"round": b"2"})
        assert numbers(store, [1, 2]) == [10, 20]
        assert store.attachment("round") == (b"2" if is_on_disk else b"1")
        store.commit({"round": b"3"})
    with open_store(str(tmp_path)) as store:
        assert numbers(store, [1, 2]) == [10, 20]
        assert store.attachment("round") == b"3"


def test_a_closed_store_says_so(tmp_path):
    store = open_store(str(tmp_path))
    store.close()
    for use in (lambda: store.get([0]), store.known_clients, lambda: store.attachment("a")):
        with pytest.raises(StateStoreError, match=f"{tmp_path} were closed. Open them anew"):
            use()
    store.put([0], [state(0)])
    with pytest.raises(StateStoreError, match="were closed"):
        store.commit()


def test_a_digest_is_of_the_states_whenever_they_were_committed(tmp_path):
    def digests(path, commits):
        with open_store(str(path)) as store:
            found = [store.digest()]
            for ids in commits:
                store.put(ids, [state(i) for i in ids])
                found.append(store.digest())
                store.commit({"round": b"1"})
                assert store.digest() == found[-1]
        with open_store(str(path), read_only=True) as store:
            assert store.digest() == found[-1]
        return found

    one = digests(tmp_path / "one", [[0, 3, 700], [4]])
    other = digests(tmp_path / "other", [[700], [4, 3], [0]])
    assert one[0] == other[0] and one[-1] == other[-1]
    assert len({*one, *other}) == 5
    with open_store(str(tmp_path / "other")) as store:
        store.put([3], [state(30)])
        assert store.digest() not in one
        store.put([3], [state(3)])
        assert store.digest() == one[-1]


def test_a_snapshot_restores_a_store_in_memory(tmp_path):
    store = open_store()
    store.put([1], [state(1)])
    store.commit()
    store.put([2], [state(2)])
    snapshot = store.snapshot()
    store.put([1, 2, 3], [state(9)] * 3)
    store.restore(snapshot)
    assert store.known_clients() == [1, 2]
    assert numbers(store, [1, 2, 3]) == [1, 2, -4]
    with open_store(str(tmp_path)) as on_disk, pytest.raises(StateStoreError, match="on disk"):
        on_disk.restore(snapshot)
