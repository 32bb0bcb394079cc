"""Tests data sources without client ids and states."""

import copy

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.federation import assert_equal, random_examples, tiny_process
from tff_pfl.algorithms import build_ditto, build_fedavg
from tff_pfl.clients import ClientStateStore, CohortDataSource, CorruptStateError, ForeignStateError
from tff_pfl.data import FederatedDataset
from tff_pfl.drivers import ExamplesDataSource


def make_source(process, initialize_clients, **options):
    data = [random_examples(5 + i, seed=i) for i in range(4)]
    dataset = FederatedDataset.from_client_arrays([(d.x, d.y, d.x[:2], d.y[:2]) for d in data], 3)
    store = ClientStateStore(initialize_clients, process.client_state_type)
    return CohortDataSource(dataset, store, process.client_type, seed=5, **options)


@pytest.fixture(scope="module")
def source():
    process = tiny_process(build_fedavg)
    return make_source(process, process.initialize_clients)


def test_cohorts_equal_the_cohorts_of_the_source(source):
    iterator, expected = ExamplesDataSource(source).iterator(), source.iterator()
    for _ in range(2):
        assert_equal(iterator.select(2), [client.data for client in expected.select(2)])


def test_sequences_have_the_same_examples(source):
    sequence_source = ExamplesDataSource(source, as_sequences=True)
    examples = ExamplesDataSource(source).iterator().select(2)
    sequences = sequence_source.iterator().select(2)
    for sequence, data in zip(sequences, examples, strict=True):
        assert_equal([row["x"] for row in sequence], list(data.x))
        assert_equal([row["y"] for row in sequence], list(data.y))
    found = tff.types.SequenceType(tff.types.tensorflow_to_type(sequences[0].element_spec))
    assert sequence_source.federated_type.member.is_assignable_from(found)
    assert isinstance(sequences[0], tf.data.Dataset)


@pytest.mark.parametrize(
    "options",
    [{"split": "test"}, {"as_sequences": True}, {"with_ids": True, "test_split": "test"}],
)
def test_restored_and_copied_iterators_continue_independently(source, options):
    iterator = ExamplesDataSource(source, **options).iterator()
    iterator.select(2)
    restored, copied = type(iterator).from_bytes(iterator.to_bytes()), copy.deepcopy(iterator)
    assert iterator == restored == copied != ExamplesDataSource(source).iterator()
    assert iterator.federated_type == restored.federated_type
    expected = [list(rows) for rows in map(as_arrays, iterator.select(2))]
    assert copied.round_num == restored.round_num == 1
    for other in (restored, copied):
        assert_equal([list(rows) for rows in map(as_arrays, other.select(2))], expected)


def no_states(client_ids):
    raise AssertionError(f"The states of {client_ids} were read.")


@pytest.mark.parametrize("split", ["train", "test"])
def test_client_states_are_not_read(split):
    source = make_source(tiny_process(build_ditto), no_states)
    iterator = ExamplesDataSource(source, split).iterator()
    assert [len(iterator.select(2)) for _ in range(2)] == [2, 2]


def test_capacity_applies_to_the_selected_split():
    source = make_source(tiny_process(build_fedavg), no_states, capacity=2)
    assert [len(d.y) for d in ExamplesDataSource(source, "test").iterator().select()] == [2] * 4
    with pytest.raises(ValueError, match="more than the capacity of 2"):
        ExamplesDataSource(source).iterator().select()


def test_restored_iterator_does_not_change_client_states():
    process = tiny_process(build_ditto)
    source = make_source(process, process.initialize_clients)
    cohorts, buffer = source.iterator(), ExamplesDataSource(source).iterator().to_bytes()
    cohorts.update([client.state for client in cohorts.select(2)])
    known = source.store.known_clients()
    ExamplesDataSource(source).iterator().from_bytes(buffer)
    assert source.store.known_clients() == known != []


def test_damaged_and_foreign_bytes_are_refused(source):
    iterator = ExamplesDataSource(source, "test").iterator()
    buffer = iterator.to_bytes()
    damaged = (b"", buffer[:-1], buffer.replace(b"test", b"tset"), buffer[:-1] + b"!")
    for wrong in damaged:
        with pytest.raises(CorruptStateError):
            iterator.from_bytes(wrong)
    with pytest.raises(ForeignStateError):
        iterator.from_bytes(source.iterator().to_bytes())


def as_arrays(data):
    if isinstance(data, tf.data.Dataset):
        return np.array([row["x"] for row in data.as_numpy_iterator()])
    for field in ("test", "data"):  # of clients to evaluate, and of clients with ids
        data = getattr(data, field, data)
    return data.x
