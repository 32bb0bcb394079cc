"""Cohorts that are read while the one before is computed, and states that are read ahead."""

import copy

import numpy as np
import pytest

from tests.clients.cohorts import FakeDataset, client_type, make_source, make_store, train
from tests.clients.stores import (
    filled,
    numbers,
    open_store,
    overwrite,
    small_first_map,  # noqa: F401
    state,
)
from tff_pfl.clients import state_store
from tff_pfl.clients.cohort import CohortDataSource
from tff_pfl.clients.errors import CorruptStateError


class Counting(FakeDataset):
    """Counts whose examples are read."""

    def __init__(self):
        super().__init__()
        self.read = []

    def examples(self, client_id, split):
        self.read.append(client_id)
        return super().examples(client_id, split)


def rounds(prepare, *, k=3, count=12, **options):
    """What the clients of some rounds were, and what was read when they were selected."""
    dataset = Counting()
    iterator = CohortDataSource(dataset, make_store(), client_type(), seed=1, **options).iterator()
    seen, late = [], 0
    for _ in range(count):
        dataset.read.clear()
        clients = iterator.select(k)
        late += len(dataset.read)
        if prepare:
            iterator.prepare(k)
        seen += [
            (c.client_id, c.data.x.tolist(), c.data.size, c.state["w"].tolist(), c.state["n"])
            for c in clients
        ]
        iterator.update(train(clients))
        iterator._source.store.commit()
    return seen, late


@pytest.mark.parametrize("options", [{}, {"k": None}, {"k": 7, "capacity": "cohort"}], ids=str)
def test_a_prepared_cohort_is_the_same_and_reads_nothing(options):
    prepared, late = rounds(True, **options)
    expected, all_of_them = rounds(False, **options)
    assert prepared == expected
    first = options.get("k", 3) or FakeDataset.num_clients
    assert (late, all_of_them) == (first, 12 * first)


def test_states_are_those_of_the_time_of_selection():
    source = make_source()
    iterator, other = source.iterator(), source.iterator()
    for each in (iterator, other):
        each.update(train(each.select()))
    iterator.prepare(3)
    other.update(train(other.select()))
    clients = iterator.select(3)
    assert [client.state["n"] for client in clients] == [3, 3, 3]


def test_states_of_the_cohort_that_is_computed_are_not_read_ahead(monkeypatch):
    source = make_source()
    iterator, read = source.iterator(), []
    monkeypatch.setattr(source.store, "read_ahead", lambda ids: read.append(list(ids)))
    for _ in range(12):
        clients = iterator.select(5)
        iterator.prepare(5)
        here = {int(client.client_id) for client in clients}
        following = source.participants(iterator.round_num, 5).reported.tolist()
        assert read.pop() == [client_id for client_id in following if client_id not in here]
        iterator.update(train(clients))
    iterator.prepare(5)
    assert len(read.pop()) == 5


def test_what_was_prepared_is_of_its_round_and_size_alone():
    iterator = make_source().iterator()
    iterator.prepare(3)
    assert [c.client_id for c in iterator.select(4)] == sorted(
        c.client_id for c in make_source().iterator().select(4)
    )
    twin = copy.deepcopy(iterator)
    iterator.prepare(4)
    assert twin._prepared is None and iterator._prepared is not None
    assert copy.deepcopy(iterator)._prepared is None
    assert iterator == twin


def test_what_fails_is_left_to_select():
    iterator = make_source(capacity=3).iterator()
    iterator.prepare()
    with pytest.raises(ValueError, match="Client 3 has 4 train examples.*capacity of 3"):
        iterator.select()
    iterator.prepare(11)
    with pytest.raises(ValueError, match="11"):
        iterator.select(11)


def test_a_state_that_was_read_ahead_is_given_once_and_replaced_by_put(tmp_path):
    filled(tmp_path)
    with open_store(str(tmp_path)) as store:
        store.read_ahead([3, 4, 5])
        store.put([4], [state(40)])
        first, second = store.get([3])[0], store.get([3])[0]
        assert not any(map(np.shares_memory, first.values(), second.values()))
        assert numbers(store, [5, 4, 3, 6]) == [5, 40, 3, 6]


def test_first_states_are_not_read_ahead():
    calls = []

    def initialize(client_ids):
        calls.append(client_ids)
        return [state(-1) for _ in client_ids]

    store = state_store.ClientStateStore(initialize, open_store().state_type)
    store.put([1], [state(10)])
    store.read_ahead([1, 2])
    assert not calls
    assert numbers(store, [2, 1]) == [-1, 10]
    assert calls == [[2]]


def test_a_damaged_state_is_no_other_when_it_is_read_ahead(tmp_path):
    data = filled(tmp_path)
    position = data.read_bytes().index(np.full([8], 17, np.float32).tobytes())
    overwrite(data, position + 999, b"!")
    with open_store(str(tmp_path)) as store:
        store.read_ahead([16])
        for read in (store.read_ahead, store.get):
            with pytest.raises(CorruptStateError, match="the state of client 17"):
                read([16, 17])
        assert numbers(store, [16]) == [16]


def test_no_more_is_read_ahead_than_a_gibibyte(monkeypatch):
    store = make_store()
    store.put(range(5), store.get(range(5)))
    monkeypatch.setattr(state_store, "_AHEAD_BYTES", 2 * 12 + 1)  # a state has 12 bytes
    store.read_ahead([3, 4, 1])
    assert sorted(store._ahead) == [3, 4]


def test_a_store_that_was_restored_has_nothing_ahead():
    store = make_store()
    [before] = store.get([1])
    store.put([1], [before])
    snapshot = store.snapshot()
    store.put([1], [{**before, "n": np.int32(5)}])
    store.read_ahead([1])
    store.restore(snapshot)
    assert store.get([1])[0]["n"] == 0
