"""Tests stores of client states, in memory and on disk; `test_disk.py` tests failures of disks."""

import collections
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.clients.stores import STATE_TYPE, numbers, open_store, state
from tests.marks import together
from tff_pfl.clients import ClientStateStore, StateStoreError


class Empty(NamedTuple):
    pass


@pytest.fixture(params=["memory", "disk"])
def store(request, tmp_path):
    with open_store(tmp_path / "store" if request.param == "disk" else None) as store:
        yield store


def test_new_client_gets_an_initial_state_that_is_not_stored(store):
    assert numbers(store, [3, 0]) == [-4, -1]
    store.commit()
    assert store.known_clients() == []


def test_initial_states_are_made_in_one_call_for_new_clients():
    calls, shared = [], state(-1)

    def initialize(client_ids):
        calls.append(client_ids)
        return [shared] * len(client_ids)

    store = ClientStateStore(initialize, STATE_TYPE)
    store.put([5, 2], [state(50), state(20)])
    assert numbers(store, [7, 5, 0, 2]) == [-1, 50, -1, 20]
    assert numbers(store, [2, 5]) == [20, 50]
    assert calls == [[7, 0]]
    store.get([0])[0]["w"][:] = 9
    assert shared["w"].tolist() == store.get([1])[0]["w"].tolist() == [-1] * 4


def test_put_is_visible_at_once_and_leaves_other_states_unchanged(store):
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


def test_forgotten_client_starts_as_one_that_never_took_part(store):
    store.put([1, 2, 300], [state(1), state(2), state(30)])
    store.commit({"server": b"1"})
    store.put([2, 3], [state(20), state(3)])
    store.forget([300, 2, 3, 7])
    for commit in (False, True):
        if commit:
            store.commit()
        assert numbers(store, [1, 2, 3, 300, 7]) == [1, -3, -4, -301, -8]
        assert (store.known_clients(), list(store.snapshot())) == ([1], [1])
    # Nothing is left of them.
    assert store._records.read([b"client 0000000002", b"client 0000000300"]) == [None, None]
    assert store.attachment("server") == b"1"
    store.put([2], [state(5)])
    assert numbers(store, [2, 300]) == [5, -301]
    with pytest.raises(ValueError):
        store.forget([-1])


def test_states_share_no_memory_with_the_store(store):
    mine = state(1)
    store.put([0], [mine])
    mine["w"][:] = 99
    for commit in (False, True):
        if commit:
            store.commit()
        (first,), (second,) = store.get([0]), store.get([0])
        first["w"][:] = 98
        assert second["w"].tolist() == store.get([0])[0]["w"].tolist() == [1] * 4


@together(
    ("ids", "states", "error", "message"),
    [
        ([4, 5, 4], [state(0)] * 3, ValueError, r"twice: \[4\]"),
        ([4, 5], [state(0)], ValueError, "2 client ids, but 1 states"),
        ([4, 5], [state(0), {"w": np.zeros(1, np.float32), "n": 1.5}], TypeError, "at 'n'"),
        ([-1], [state(0)], ValueError, "found -1. Number clients from 0"),
        ([2**31], [state(0)], ValueError, f"found {2**31}. Number clients from 0"),
        ([1.9], [state(0)], TypeError, "'float' object cannot be interpreted as an integer"),
    ],
)
def test_refused_put_changes_nothing(ids, states, error, message):
    store = open_store()
    with pytest.raises(error, match=message):
        store.put(ids, states)
    assert (store.known_clients(), store.digest) == ([], 0)


@pytest.mark.parametrize("number", [0, 3])
def test_number_of_initial_states_must_fit_the_clients(number):
    store = ClientStateStore(lambda client_ids: [state(0)] * number, STATE_TYPE)
    message = f"`initialize_clients` returned {number} states for 2 clients. It must return one"
    with pytest.raises(ValueError, match=message):
        store.get([4, 5])


def test_attachments_are_copied_and_kept(store):
    assert store.attachment("server") is None
    mine = bytearray(b"1")
    store.commit({"server": mine, "iterator": memoryview(b"a")})
    mine[:] = b"x"
    assert (store.attachment("server"), store.attachment("iterator")) == (b"1", b"a")
    store.commit({"server": b"2"})
    assert (store.attachment("server"), store.attachment("iterator")) == (b"2", b"a")
    for name, value, error in (("x" * 501, b"", ValueError), ("a", "text", TypeError)):
        with pytest.raises(error, match="attachment"):
            store.commit({"server": b"3", name: value})
        assert store.attachment("server") == b"2"


def test_state_without_tensors_is_not_stored(tmp_path):
    state_type = tff.types.StructWithPythonType(
        [("a", tff.types.StructWithPythonType([], Empty))], collections.OrderedDict
    )
    with ClientStateStore(None, state_type, tmp_path) as store:
        expected = collections.OrderedDict(a=Empty())
        first, second = store.get([0, 1])
        assert first == second == expected
        assert first is not second
        store.put([0, 1], [expected] * 2)
        store.commit({"server": b"1"})
        assert (store.known_clients(), store.digest) == ([], 0)
        assert store.attachment("server") == b"1"


def test_reopened_store_has_only_committed_states(tmp_path):
    with open_store(tmp_path) as store:
        store.put([1, 2], [state(1), state(2)])
        store.commit({"round": b"1"})
        store.put([2, 3], [state(20), state(30)])
        store.forget([1])
    with open_store(tmp_path) as store:
        assert numbers(store, [1, 2, 3]) == [1, 2, -4]
        assert store.attachment("round") == b"1"
        assert store.path == str(tmp_path)
        same = open_store()
        same.put([1, 2], [state(1), state(2)])
        assert store.digest == same.digest


def test_digest_does_not_depend_on_the_times_of_commits(tmp_path):
    digests = []
    for path, commits in ((tmp_path / "one", (1, 2, 3)), (tmp_path / "other", (3,))):
        with open_store(path) as store:
            for number in range(1, 4):
                store.put([number], [state(number)])
                if number in commits:
                    store.commit({"round": b"1"})
                digests.append(store.digest)
            store.put([], [])
            store.commit()
        with open_store(path, read_only=True) as store:
            digests.append(store.digest)
    assert digests[4:] == digests[:4] and digests[3] == digests[2]
    assert len({0, *digests[:3]}) == 4


def test_digest_tells_who_was_forgotten(store):
    store.put([1, 2], [state(1), state(2)])
    before = store.digest
    store.forget([7])
    assert store.digest == before
    store.forget([2])
    other = open_store()
    other.put([1, 2], [state(1), state(2)])
    other.forget([1])
    assert len({0, before, store.digest, other.digest}) == 4
    store.forget([1])
    assert (store.known_clients(), store.digest) == ([], 0)


@together("other", [{1: 1, 2: 3}, {1: 1, 3: 2}, {1: 2, 2: 1}, {2: 2, 1: 1}])
def test_other_states_have_another_digest(other):
    digests = set()
    for states in ({1: 1, 2: 2}, other):
        store = open_store()
        store.put(states, map(state, states.values()))
        digests.add(store.digest)
    assert len(digests) == 2


def test_snapshot_restores_a_store_in_memory():
    store = open_store()
    store.put([1], [state(1)])
    store.commit()
    store.put([2], [state(2)])
    snapshot, digest = store.snapshot(), store.digest
    store.put([1, 2, 3], [state(9)] * 3)
    store.commit()
    store.forget([1])
    store.restore(snapshot, digest)
    assert (store.known_clients(), store.digest) == ([1, 2], digest)
    assert numbers(store, [1, 2, 3]) == [1, 2, -4]


def test_closed_store_raises_an_error(tmp_path):
    store = open_store(tmp_path)
    store.put([0], [state(0)])
    store.commit()
    store.close()
    for use in (lambda: store.get([0]), lambda: store.attachment("a"), store.commit):
        with pytest.raises(StateStoreError, match=f"{tmp_path} were closed. Open them again"):
            use()
