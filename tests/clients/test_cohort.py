"""Tests `tff_pfl.clients.cohort`."""

import collections
import copy
import gc

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.clients.cohorts import (
    STATE_TYPE,
    FakeDataset,
    client_type,
    make_source,
    make_store,
    run_rounds,
    train,
)
from tests.marks import together
from tff_pfl.clients.cohort import CohortDataSource, CohortIterator, UnknownCohortSourceError
from tff_pfl.clients.errors import ForeignStateError
from tff_pfl.clients.padding import Ladder
from tff_pfl.clients.participation import Participation
from tff_pfl.local.examples import examples_type
from tff_pfl.templates.values import Client

PINNED = [1, 2, 9]
OTHER_STATES = tff.types.to_type(collections.OrderedDict(w=np.float64))
SEQUENCES = Client(client_id=np.int32, state=STATE_TYPE, data=tff.SequenceType(np.int32))
OTHER_INPUTS = Client(client_id=np.int32, state=STATE_TYPE, data=examples_type([2]))


class TestSource:
    def test_source_and_iterator_have_the_type_of_clients(self):
        source = make_source()
        expected = tff.types.FederatedType(client_type(), tff.CLIENTS)
        assert source.federated_type == source.iterator().federated_type == expected

    @together(
        ("capacity", "rows"),
        [
            (None, [1, 3, 2]),
            (Ladder(2, group_cost=0), [2, 4, 2]),
            (Ladder(2), [4, 4, 4]),
            ("cohort", [3, 3, 3]),
            (4, [4, 4, 4]),
        ],
    )
    def test_capacity_sets_the_number_of_rows(self, capacity, rows):
        clients = make_source(capacity=capacity).select_clients([4, 2, 9])
        assert [len(c.data.x) for c in clients] == rows
        assert [len(c.data.y) for c in clients] == rows
        assert [c.data.size for c in clients] == [1, 3, 2]
        assert [c.client_id for c in clients] == [4, 2, 9]
        assert clients[1].data.y[:3].tolist() == [20, 21, 22]

    def test_only_examples_are_selected_twice(self):
        with pytest.raises(ValueError, match="twice"):
            make_source().select_clients([4, 2, 4])
        assert len(make_source().select_examples([4, 2, 4], "train")) == 3

    def test_error_names_the_client_over_the_capacity(self):
        with pytest.raises(ValueError, match="Client 7 has 4 train examples.*capacity of 3"):
            make_source(capacity=3).select_clients([4, 7])

    def test_numpy_integers_are_accepted(self):
        source = make_source(seed=np.int64(1), capacity=np.int32(4))
        assert source.fingerprint == make_source(seed=1).fingerprint
        clients = source.iterator().select(np.int64(3))
        assert [c.client_id for c in clients] == PINNED
        assert [len(c.data.x) for c in clients] == [4] * 3

    @together(
        ("type_", "options", "error", "message"),
        [
            (STATE_TYPE, {}, TypeError, "Expected a client type"),
            (SEQUENCES, {}, TypeError, "Expected a client type"),
            (client_type(OTHER_STATES), {}, TypeError, r"<w=float64>\s*Store: *<w=float32"),
            (OTHER_INPUTS, {}, TypeError, r"inputs of uint8\[2\], but .* of uint8\[2,2\]"),
            (client_type(capacity=4), {"capacity": 5}, ValueError, "4 rows, but capacity is 5"),
            (client_type(), {"seed": -1}, ValueError, "found -1"),
            (client_type(), {"capacity": "cohrt"}, ValueError, "'cohort' or a whole number of at"),
        ],
    )
    def test_source_refuses_wrong_arguments(self, type_, options, error, message):
        type_, options = tff.types.to_type(type_), {"seed": 0} | options
        with pytest.raises(error, match=message):
            CohortDataSource(FakeDataset(), make_store(), type_, **options)


class TestIterator:
    def test_deep_copy_continues_independently(self):
        """Copies an iterator as `tff.learning.programs` do in each round."""
        iterator = make_source().iterator()
        run_rounds(iterator, 1)
        copied = copy.deepcopy(iterator)
        iterator.select(3)
        assert copied.round_num == 1 < iterator.round_num
        copied.select(3)
        assert copied == iterator

    def test_client_that_does_not_report_keeps_its_state(self):
        source = make_source(participation=Participation(dropout=(0.5,)))
        iterator, taken = source.iterator(), collections.Counter()
        for round_num, clients in enumerate(run_rounds(iterator, 9)):
            found = source.participation.participants(1, round_num, 10, 3)
            assert clients == [(i, taken[i]) for i in found.reported.tolist()]
            taken.update(found.reported.tolist())
        np.testing.assert_equal(iterator.participants, found)
        assert iterator.cohort.tolist() == found.reported.tolist()
        assert source.store.known_clients() == sorted(taken)

    def test_update_takes_one_state_for_each_client_once(self):
        iterator = make_source().iterator()
        with pytest.raises(RuntimeError, match="select"):
            iterator.update([])
        states = train(iterator.select(3))
        with pytest.raises(ValueError, match="each of the 3 clients .* found 2"):
            iterator.update(states[:2])
        with pytest.raises(TypeError):
            iterator.update([*states[:2], {"w": np.zeros([2], np.float32), "n": 0.5}])
        iterator.update(states)
        with pytest.raises(RuntimeError, match="select"):
            iterator.update(states)

    def test_select_refuses_to_skip_an_update(self):
        iterator = make_source().iterator()
        states = train(iterator.select(3))
        with pytest.raises(RuntimeError, match="Call `update` with them before the next `select`"):
            iterator.select(3)
        assert iterator.round_num == 1
        iterator.update(states)
        assert [client.client_id for client in iterator.select()] == list(range(10))

    def test_failed_select_stays_at_its_round(self):
        iterator = make_source(capacity=3).iterator()
        for k in (11, 0, 10, 2.5, True):
            with pytest.raises(ValueError):
                iterator.select(k)
        assert iterator.round_num == 0
        with pytest.raises(RuntimeError):
            iterator.update([])

    def test_iterators_with_equal_positions_are_equal(self):
        source = make_source()
        a, b = source.iterator(), source.iterator()
        assert a == b
        a.select(3)
        assert a != b
        b.select(3)
        assert a == b
        assert CohortIterator.from_bytes(a.to_bytes()) == a
        a.update(train(source.select_clients(a.cohort)))
        assert a != b
        assert a != make_source(seed=2).iterator()
        assert a != "iterator"


class TestBytes:
    @pytest.mark.parametrize("outstanding", [False, True])
    def test_iterator_and_states_in_memory_continue_identically(self, outstanding):
        reference = run_rounds(make_source().iterator(), 9)

        source = make_source()
        iterator = source.iterator()
        run_rounds(iterator, 4)
        clients = iterator.select(3) if outstanding else None
        buffer, digest = iterator.to_bytes(), source.store.digest
        assert buffer == iterator.to_bytes()
        del source, iterator
        gc.collect(1)  # collects young objects only, to be fast
        with pytest.raises(UnknownCohortSourceError, match="construct the CohortDataSource"):
            CohortIterator.from_bytes(buffer)

        resumed = make_source()  # a resumed process starts with an empty store
        iterator = CohortIterator.from_bytes(buffer)
        assert resumed.store.digest == digest and iterator.to_bytes() == buffer
        if outstanding:
            assert iterator.round_num == 5
            iterator.update(train(clients))
        rest = run_rounds(iterator, 4 if outstanding else 5)
        assert rest == reference[-len(rest) :]

    @pytest.mark.parametrize("is_on_disk", [False, True])
    @together("leaving", [[], [PINNED[0]], range(10)])
    def test_program_resumes_after_clients_were_forgotten(self, tmp_path, is_on_disk, leaving):
        """Ends the program some rounds after the last commit, also when nobody was forgotten."""

        def open_store():
            return make_store(tmp_path / str(len(leaving)) if is_on_disk else None)

        with open_store() as store:
            iterator = make_source(store).iterator()
            run_rounds(iterator, 4)
            store.forget(leaving)
            buffer, remaining = iterator.to_bytes(), store.known_clients()
            assert not set(remaining) & set(leaving)
            store.commit()
            reference = run_rounds(iterator, 5)
        with open_store() as store:
            source = make_source(store)
            iterator = CohortIterator.from_bytes(buffer)
            assert source.store.known_clients() == remaining
            assert run_rounds(iterator, 5) == reference

    def test_store_with_other_states_refuses_the_iterator(self, tmp_path):
        """Saves iterators before and after commits, as a program that is killed may leave them."""
        iterator = make_source().iterator()
        run_rounds(iterator, 2)
        in_memory = iterator.to_bytes()
        with make_store(tmp_path) as store:
            source = make_source(store)
            iterator = source.iterator()
            saved = [iterator.to_bytes()]
            for round_num in range(3):
                run_rounds(iterator, 1)
                saved.append(iterator.to_bytes())
                assert CohortIterator.from_bytes(saved[-1]) == iterator
                if round_num < 2:
                    store.commit()
                    assert iterator.to_bytes() == saved[-1]
        with make_store(tmp_path, read_only=True) as store:
            source = make_source(store)
            assert CohortIterator.from_bytes(saved[2]).to_bytes() == saved[2]
            message = f"of digest .*, but the states in {tmp_path} have digest {store.digest:08x}"
            for other in (saved[0], saved[1], saved[3], in_memory):
                with pytest.raises(ForeignStateError, match=message):
                    CohortIterator.from_bytes(other)
        source = make_source()
        with pytest.raises(ForeignStateError, match="states in memory have digest 00000000"):
            CohortIterator.from_bytes(saved[2])
        assert source.store.known_clients() == []

    @together(
        "change",
        [
            {"dataset": FakeDataset("other")},
            {"type_": client_type(capacity=4), "capacity": 4},
            {"seed": 2},
            {"participation": Participation(dropout=(0.5,))},
        ],
    )
    def test_iterator_of_another_run_is_refused(self, change):
        source = make_source()
        buffer = source.iterator().to_bytes()
        del source
        gc.collect(1)  # collects young objects only, to be fast
        source = make_source(**change)
        with pytest.raises(UnknownCohortSourceError):
            CohortIterator.from_bytes(buffer)
        assert source.iterator().to_bytes() != buffer
