"""Tests of `tff_pfl.clients.cohort`."""

import collections
import copy
import re

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
from tff_pfl.clients.cohort import CohortDataSource, CohortIterator
from tff_pfl.clients.participation import EVERYBODY_REPORTS, Participation
from tff_pfl.local.examples import examples_type
from tff_pfl.templates.process import Client

PINNED = [1, 2, 9]


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

    @pytest.mark.parametrize("capacity", ["cohrt", 0, -1, 2.5, True, np.nan, [3]])
    def test_a_capacity_that_is_none_is_refused_at_once(self, capacity):
        message = f"must be None, 'cohort' or a whole number of at least 1, got {capacity!r}."
        with pytest.raises(ValueError, match=re.escape(message)):
            make_source(capacity=capacity)

    def test_an_id_is_not_rounded(self):
        for select in (
            make_source().select_clients,
            lambda ids: make_source().select_examples(ids, "train"),
        ):
            with pytest.raises(TypeError, match="'float' object cannot be interpreted as an int"):
                select([1.9])
        [client] = make_source().select_clients(np.array([4], np.int64))
        assert client.client_id == 4

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

    @pytest.mark.parametrize("k", [2.5, "3", True])
    def test_a_size_of_a_cohort_that_is_none_is_refused(self, k):
        iterator = make_source().iterator()
        with pytest.raises(ValueError, match=f"whole number of clients, got {k!r}"):
            iterator.select(k)
        assert iterator.round_num == 0

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
