import copy

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.federation import assert_equal, random_examples, tiny_process
from tff_pfl.algorithms import build_fedavg
from tff_pfl.clients import (
    ClientStateStore,
    CohortDataSource,
    ExamplesDataSource,
)
from tff_pfl.data import FederatedDataset


@pytest.fixture(scope="module")
def source():
    data = [random_examples(5 + i, seed=i) for i in range(4)]
    dataset = FederatedDataset.from_client_arrays([(d.x, d.y, d.x[:2], d.y[:2]) for d in data], 3)
    process = tiny_process(build_fedavg)
    store = ClientStateStore(process.initialize_clients, process.client_state_type)
    return CohortDataSource(dataset, store, process.client_type, seed=5)


def test_cohorts_are_those_of_the_source(source):
    iterator, expected = ExamplesDataSource(source).iterator(), source.iterator()
    for _ in range(2):
        assert_equal(iterator.select(2), [client.data for client in expected.select(2)])


def test_another_split(source):
    assert [len(d.y) for d in ExamplesDataSource(source, "test").iterator().select(3)] == [2] * 3


def test_sequences(source):
    of_sequences = ExamplesDataSource(source, as_sequences=True)
    examples = ExamplesDataSource(source).iterator().select(2)
    sequences = of_sequences.iterator().select(2)
    for sequence, data in zip(sequences, examples, strict=True):
        assert_equal([row["x"] for row in sequence], list(data.x))
        assert_equal([row["y"] for row in sequence], list(data.y))
    found = tff.types.SequenceType(tff.types.tensorflow_to_type(sequences[0].element_spec))
    assert of_sequences.federated_type.member.is_assignable_from(found)
    assert isinstance(sequences[0], tf.data.Dataset)


@pytest.mark.parametrize("options", [{"split": "test"}, {"as_sequences": True}])
def test_restored_and_copied_iterators_go_on_alone(source, options):
    iterator = ExamplesDataSource(source, **options).iterator()
    iterator.select(2)
    restored, copied = type(iterator).from_bytes(iterator.to_bytes()), copy.deepcopy(iterator)
    assert iterator == restored == copied != ExamplesDataSource(source).iterator()
    assert iterator.federated_type == restored.federated_type
    expected = [list(rows) for rows in map(as_arrays, iterator.select(2))]
    assert copied.round_num == restored.round_num == 1
    for other in (restored, copied):
        assert_equal([list(rows) for rows in map(as_arrays, other.select(2))], expected)


def as_arrays(data):
    if isinstance(data, tf.data.Dataset):
        return np.array([row["x"] for row in data.as_numpy_iterator()])
    return data.x
