"""The bytes of iterators of cohorts, and the states that belong to them."""

import gc

import numpy as np
import pytest

from tests.clients.cohorts import (
    FakeDataset,
    client_type,
    make_source,
    make_store,
    run_rounds,
    train,
)
from tff_pfl.clients.cohort import CohortDataSource, CohortIterator, UnknownCohortSourceError
from tff_pfl.clients.errors import CorruptStateError, ForeignStateError
from tff_pfl.clients.participation import Participation
from tff_pfl.clients.position import POSITION_TYPE
from tff_pfl.clients.serialization import deserialize, serialize


@pytest.mark.parametrize("outstanding", [False, True])
def test_bytes_in_memory_go_on_identically_in_a_new_process(outstanding):
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


def test_bytes_and_a_store_on_disk_are_one_generation(tmp_path):
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


def test_bytes_are_refused_by_a_store_on_disk_that_was_not_committed_with_them(tmp_path):
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


def test_bytes_of_earlier_versions_say_nothing_of_a_store_on_disk(tmp_path):
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


def test_bytes_are_refused_by_a_store_of_the_other_kind(tmp_path):
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


def test_bytes_of_a_disk_iterator_do_not_grow_with_the_states(tmp_path):
    with make_store(str(tmp_path)) as store:
        source = make_source(store)
        iterator = source.iterator()
        run_rounds(iterator, 1)
        length = len(iterator.to_bytes())
        run_rounds(iterator, 5)
        assert abs(len(iterator.to_bytes()) - length) <= 8


@pytest.mark.parametrize("change", ["dataset", "type", "seed", "participation"])
def test_bytes_of_another_run_are_refused(change):
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


def test_damaged_bytes_are_refused():
    source = make_source()
    buffer = source.iterator().to_bytes()
    with pytest.raises(CorruptStateError):
        CohortIterator.from_bytes(buffer[:-1])
