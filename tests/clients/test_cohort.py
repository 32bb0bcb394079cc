"""Tests of `tff_pfl.clients.cohort`."""

import collections
import copy
import gc
import re

import numpy as np
import pytest
import tensorflow_federated as tff

from tff_pfl.clients.cohort import (
    CohortDataSource,
    CohortIterator,
    UnknownCohortSourceError,
)
from tff_pfl.clients.errors import CorruptStateError, ForeignStateError
from tff_pfl.clients.participation import EVERYBODY_REPORTS, Participation
from tff_pfl.clients.position import POSITION_TYPE
from tff_pfl.clients.serialization import deserialize, serialize
from tff_pfl.clients.state_store import ClientStateStore
from tff_pfl.local.examples import Examples, examples_type
from tff_pfl.templates.process import Client

STATE_TYPE = tff.types.to_type(collections.OrderedDict(w=(np.float32, [2]), n=np.int32))
PINNED = [1, 2, 9]


def client_type(state_type=STATE_TYPE, capacity=None):
    return tff.types.StructWithPythonType(
        [
            ("client_id", tff.types.TensorType(np.int32)),
            ("state", state_type),
            ("data", examples_type([2, 2], capacity=capacity)),
        ],
        Client,
    )


class FakeDataset:
    """Client `i` has `i % 4 + 1` train and `i % 4` test examples, each pixel `10 * i + row`."""

    num_clients = 10

    def __init__(self, fingerprint="fake"):
        self.fingerprint = fingerprint

    def examples(self, client_id, split):
        size = client_id % 4 + (split == "train")
        rows = 10 * client_id + np.arange(size)
        x = np.broadcast_to(rows[:, None, None], [size, 2, 2]).astype(np.uint8)
        return Examples(x, rows.astype(np.int32), np.int32(size))


def make_store(path=None, **options):
    def initialize(client_ids):
        zeros = collections.OrderedDict(w=np.zeros([2], np.float32), n=np.int32(0))
        return [zeros] * len(client_ids)

    return ClientStateStore(initialize, STATE_TYPE, path, **options)


def make_source(store=None, seed=1, **kwargs):
    store = make_store() if store is None else store
    return CohortDataSource(FakeDataset(), store, client_type(), seed=seed, **kwargs)


def train(clients):
    """A round's new states: counts participations, and keeps the id and the data's sum."""
    return [
        collections.OrderedDict(
            w=np.array([c.client_id, c.data.x.sum()], np.float32), n=np.int32(c.state["n"] + 1)
        )
        for c in clients
    ]


def run_rounds(iterator, count):
    """Runs rounds; returns what they saw."""
    seen = []
    for _ in range(count):
        clients = iterator.select(3)
        seen.append([(int(c.client_id), int(c.state["n"])) for c in clients])
        iterator.update(train(clients))
    return seen


class TestSource:
    def test_is_a_tff_data_source(self):
        source = make_source()
        iterator = source.iterator()
        assert isinstance(source, tff.program.FederatedDataSource)
        assert isinstance(iterator, tff.program.FederatedDataSourceIterator)
        expected = tff.types.FederatedType(client_type(), tff.CLIENTS)
        assert source.federated_type == iterator.federated_type == expected

    @pytest.mark.parametrize(
        ("capacity", "rows"), [(None, [1, 3, 2]), ("cohort", [3, 3, 3]), (4, [4, 4, 4])]
    )
    def test_capacity(self, capacity, rows):
        clients = make_source(capacity=capacity).select_clients([4, 2, 9])
        assert [len(c.data.x) for c in clients] == rows
        assert [len(c.data.y) for c in clients] == rows
        assert [c.data.size for c in clients] == [1, 3, 2]
        assert [c.client_id for c in clients] == [4, 2, 9]
        assert clients[1].data.y[:3].tolist() == [20, 21, 22]

    def test_a_client_is_selected_once(self):
        with pytest.raises(ValueError, match=r"more than once in a cohort: \[2, 4\]"):
            make_source().select_clients([4, 2, 4, 9, 2])
        assert len(make_source().select_examples([4, 2, 4], "train")) == 3

    def test_a_client_over_the_capacity_is_named(self):
        with pytest.raises(ValueError, match="Client 7 has 4 train examples.*capacity of 3"):
            make_source(capacity=3).select_clients([4, 7])

    def test_splits_and_clients_without_examples(self):
        [client] = make_source(capacity="cohort").select_clients([4], "test")
        assert client.data.x.shape == (0, 2, 2)
        assert make_source().select_clients([]) == []

    def test_selected_clients_have_their_type(self):
        @tff.tensorflow.computation(client_type())
        def first_pixels(client):
            return client.client_id, client.data.x[:, 0, 0], client.state["n"]

        @tff.federated_computation(tff.types.FederatedType(client_type(), tff.CLIENTS))
        def first_pixels_of_all(clients):
            return tff.federated_map(first_pixels, clients)

        result = first_pixels_of_all(make_source().iterator().select(3))
        assert [int(r[0]) for r in result] == PINNED
        assert [r[1].tolist() for r in result] == [
            [10 * i + j for j in range(i % 4 + 1)] for i in PINNED
        ]

    def test_refuses_types_that_do_not_fit(self):
        with pytest.raises(TypeError, match="Expected a client type"):
            CohortDataSource(FakeDataset(), make_store(), STATE_TYPE, seed=0)
        sequences = tff.types.StructType(
            [("client_id", np.int32), ("state", STATE_TYPE), ("data", tff.SequenceType(np.int32))]
        )
        with pytest.raises(TypeError, match="Expected a client type"):
            CohortDataSource(FakeDataset(), make_store(), sequences, seed=0)
        other = client_type(tff.types.to_type(collections.OrderedDict(w=np.float64)))
        with pytest.raises(TypeError, match=r"<w=float64>\s*Store: *<w=float32"):
            CohortDataSource(FakeDataset(), make_store(), other, seed=0)
        with pytest.raises(ValueError, match="have 4 rows, the capacity is 'cohort'"):
            CohortDataSource(
                FakeDataset(), make_store(), client_type(capacity=4), seed=0, capacity="cohort"
            )
        with pytest.raises(ValueError, match="found -1"):
            make_source(seed=-1)

    @pytest.mark.parametrize(
        ("shape", "dtype", "expected"),
        [
            ([2, 2], np.float32, "float32[2,2]"),
            ([2, 3], np.uint8, "uint8[2,3]"),
            ([2], np.uint8, "uint8[2]"),
        ],
    )
    def test_refuses_data_that_do_not_fit(self, shape, dtype, expected):
        fields = [
            ("client_id", np.int32),
            ("state", STATE_TYPE),
            ("data", examples_type(shape, dtype)),
        ]
        type_ = tff.types.StructWithPythonType(fields, Client)
        message = f"takes inputs of {expected}, but those of the data are uint8[2,2]. Compose it "
        with pytest.raises(
            TypeError, match=re.escape(f"{message}with examples_type((2, 2), np.uint8)")
        ):
            CohortDataSource(FakeDataset(), make_store(), type_, seed=0)


class TestIterator:
    def test_a_deep_copy_goes_on_by_itself(self):
        """As `tff.learning.programs` make one of the source of each round."""
        iterator = make_source().iterator()
        run_rounds(iterator, 1)
        copied = copy.deepcopy(iterator)
        assert copied == iterator
        ids = [int(client.client_id) for client in iterator.select(3)]
        assert copied.round_num == 1 < iterator.round_num
        assert [int(client.client_id) for client in copied.select(3)] == ids

    def test_participation_tells_sources_apart(self):
        """All but the default, which earlier versions had."""
        plain, by_default, poisson = (
            make_source(participation=participation).fingerprint
            for participation in (
                EVERYBODY_REPORTS,
                Participation(),
                Participation(sampling="poisson"),
            )
        )
        assert plain == by_default != poisson

    def test_a_cohort_says_how_it_came_about(self):
        iterator = make_source(participation=Participation(dropout=(0.5,))).iterator()
        assert iterator.participants is None
        clients = iterator.select(5)
        found = iterator.participants
        assert [client.client_id for client in clients] == found.reported.tolist()
        assert len(clients) == 5 - len(found.dropped) < 5

    def test_who_does_not_report_keeps_its_state(self):
        source = make_source(participation=Participation(dropout=(0.5,)))
        iterator, taken = source.iterator(), collections.Counter()
        for round_num, clients in enumerate(run_rounds(iterator, 9)):
            found = source.participation.participants(1, round_num, 10, 3)
            assert clients == [(i, taken[i]) for i in found.reported.tolist()]
            taken.update(found.reported.tolist())
        assert iterator.cohort.tolist() == found.reported.tolist()
        assert source.store.known_clients() == sorted(taken)

    def test_rounds_sample_and_carry_states(self):
        source = make_source()
        iterator = source.iterator()
        assert iterator.cohort.tolist() == []
        seen = run_rounds(iterator, 6)
        taken = collections.Counter()
        for round_num, clients in enumerate(seen):
            ids = EVERYBODY_REPORTS.participants(1, round_num, 10, 3).reported.tolist()
            assert clients == [(i, taken[i]) for i in ids]
            taken.update(ids)
        assert iterator.round_num == 6
        assert iterator.cohort.tolist() == ids
        assert source.store.known_clients() == sorted(taken)

    def test_none_selects_all_clients(self):
        clients = make_source().iterator().select()
        assert [c.client_id for c in clients] == list(range(10))

    def test_update_wants_one_state_for_each_client_once(self):
        iterator = make_source().iterator()
        with pytest.raises(RuntimeError, match="select"):
            iterator.update([])
        states = train(iterator.select(3))
        with pytest.raises(ValueError, match="each of the 3 clients .* found 2"):
            iterator.update(states[:2])
        with pytest.raises(TypeError, match="at 'n'"):
            iterator.update([*states[:2], {"w": np.zeros([2], np.float32), "n": 0.5}])
        iterator.update(states)
        with pytest.raises(RuntimeError, match="select"):
            iterator.update(states)

    def test_states_that_were_not_taken_are_not_given_to_the_next_cohort(self):
        iterator = make_source().iterator()
        states = train(iterator.select(3))
        with pytest.raises(RuntimeError, match="`update` takes them, before `select` gives"):
            iterator.select(3)
        assert iterator.round_num == 1
        iterator.update(states)
        assert iterator.select(3)

    def test_a_failed_select_stays_at_its_round(self):
        iterator = make_source(capacity=3).iterator()
        for k in (11, 0, 10):
            with pytest.raises(ValueError):
                iterator.select(k)
        assert iterator.round_num == 0
        with pytest.raises(RuntimeError):
            iterator.update([])

    @pytest.mark.parametrize("outstanding", [False, True])
    def test_bytes_in_memory_go_on_identically_in_a_new_process(self, outstanding):
        reference = run_rounds(make_source().iterator(), 9)

        source = make_source()
        iterator = source.iterator()
        run_rounds(iterator, 4)
        clients = iterator.select(3) if outstanding else None
        buffer = iterator.to_bytes()
        assert buffer == iterator.to_bytes()
        del source, iterator
        gc.collect(1)  # of the young
        with pytest.raises(UnknownCohortSourceError, match="construct the CohortDataSource"):
            CohortIterator.from_bytes(buffer)

        source = make_source()  # As in the process that resumes: its store is empty.
        assert source.store.known_clients() == []
        iterator = CohortIterator.from_bytes(buffer)
        assert iterator.to_bytes() == buffer
        if outstanding:
            assert iterator.round_num == 5
            iterator.update(train(clients))
        rest = run_rounds(iterator, 4 if outstanding else 5)
        assert rest == reference[-len(rest) :]

    def test_bytes_and_a_store_on_disk_are_one_generation(self, tmp_path):
        reference = run_rounds(make_source().iterator(), 9)

        with make_store(str(tmp_path)) as store:
            source = make_source(store)
            iterator = source.iterator()
            run_rounds(iterator, 4)
            store.commit({"iterator": iterator.to_bytes()})
            run_rounds(iterator, 2)  # Killed before its commit.
        with make_store(str(tmp_path)) as store:
            source = make_source(store)
            iterator = CohortIterator.from_bytes(store.attachment("iterator"))
            assert run_rounds(iterator, 5) == reference[4:]

    def test_bytes_are_refused_by_a_store_on_disk_that_was_not_committed_with_them(self, tmp_path):
        """Of a program that saved its state itself, and ended before the commit, or after it."""
        with make_store(str(tmp_path)) as store:
            source = make_source(store)
            iterator = source.iterator()
            saved = [iterator.to_bytes()]
            for _ in range(2):
                run_rounds(iterator, 1)
                saved.append(iterator.to_bytes())
                assert CohortIterator.from_bytes(saved[-1]) == iterator
                store.commit()
                assert iterator.to_bytes() == saved[-1]
            run_rounds(iterator, 1)
            saved.append(iterator.to_bytes())
        with make_store(str(tmp_path)) as store:
            source = make_source(store)
            for round_num in (0, 1, 3):
                with pytest.raises(ForeignStateError, match="other client states than those in"):
                    CohortIterator.from_bytes(saved[round_num])
            assert CohortIterator.from_bytes(saved[2]).round_num == 2
        with make_store(str(tmp_path), read_only=True) as store:
            source = make_source(store)
            assert CohortIterator.from_bytes(saved[2]).to_bytes() == saved[2]

    def test_bytes_of_earlier_versions_say_nothing_of_a_store_on_disk(self, tmp_path):
        with make_store(str(tmp_path)) as store:
            source = make_source(store)
            iterator = source.iterator()
            run_rounds(iterator, 1)
            position = deserialize(iterator.to_bytes(), POSITION_TYPE)
            store.commit()
            run_rounds(iterator, 1)
            position = position._replace(states=np.zeros([0], np.uint8))
            restored = CohortIterator.from_bytes(serialize(position, POSITION_TYPE))
            assert restored.round_num == 1
            assert restored._source is source

    def test_bytes_are_refused_by_a_store_of_the_other_kind(self, tmp_path):
        with make_store(str(tmp_path)) as store:
            on_disk = make_source(store)
            iterator = on_disk.iterator()
            run_rounds(iterator, 1)
            from_disk = iterator.to_bytes()
            in_memory = make_source()
            iterator = in_memory.iterator()
            run_rounds(iterator, 1)
            with pytest.raises(ForeignStateError, match="with a store on disk, .* in memory"):
                CohortIterator.from_bytes(from_disk)
            from_memory = iterator.to_bytes()
            on_disk = make_source(store)
            with pytest.raises(ForeignStateError, match="with a store in memory, .* on disk"):
                CohortIterator.from_bytes(from_memory)
            assert on_disk.store.known_clients() == in_memory.store.known_clients()

    def test_bytes_of_a_disk_iterator_do_not_grow_with_the_states(self, tmp_path):
        with make_store(str(tmp_path)) as store:
            source = make_source(store)
            iterator = source.iterator()
            run_rounds(iterator, 1)
            length = len(iterator.to_bytes())
            run_rounds(iterator, 5)
            assert abs(len(iterator.to_bytes()) - length) <= 8

    @pytest.mark.parametrize("change", ["dataset", "type", "seed", "participation"])
    def test_bytes_of_another_run_are_refused(self, change):
        source = make_source()
        buffer = source.iterator().to_bytes()
        del source
        gc.collect(1)  # of the young
        dataset = FakeDataset("other" if change == "dataset" else "fake")
        capacity = 4 if change == "type" else None
        source = CohortDataSource(
            dataset,
            make_store(),
            client_type(capacity=capacity),
            seed=2 if change == "seed" else 1,
            capacity=capacity,
            participation=Participation(dropout=(0.5 if change == "participation" else 0.0,)),
        )
        with pytest.raises(UnknownCohortSourceError):
            CohortIterator.from_bytes(buffer)
        assert source.iterator().federated_type == source.federated_type

    def test_damaged_bytes_are_refused(self):
        source = make_source()
        buffer = source.iterator().to_bytes()
        with pytest.raises(CorruptStateError):
            CohortIterator.from_bytes(buffer[:-1])

    def test_equality(self):
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
