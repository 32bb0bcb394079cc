"""Tests the arrays that an evaluation takes from the states of the server and of clients."""

import collections
import functools
import types

import numpy as np
import pytest
import tensorflow as tf

from tests.federation import tiny_model
from tests.templates.mean_process import Visits, compose, mean_exchange
from tff_pfl.clients import ClientStateStore
from tff_pfl.data import FederatedDataset
from tff_pfl.evaluation import EvaluationOptions, Evaluator, sampled_clients

NUM_CLIENTS = 7
# The other clients were never seen.
SEEN = {5: 105, 0: 100, 2: 102}


def server_snapshot(server):
    return collections.OrderedDict(server=10 * server)


def client_snapshot(state):
    count = tf.cast(state.count, tf.float32)
    return collections.OrderedDict(pair=tf.stack([count, -count]), single=state.count)


@functools.cache
def process_of(**options):
    """Returns a process in which the count of a client that was never seen is its id."""
    return compose(
        mean_exchange(), client_init=lambda client_id, seed: Visits(client_id), **options
    )


class CountingStore(ClientStateStore):
    """A store that records the ids of each `get`."""

    def __init__(self, process):
        super().__init__(process.initialize_clients, process.client_state_type)
        self.requested = []

    def get(self, client_ids):
        client_ids = list(client_ids)
        self.requested.append(client_ids)
        return super().get(client_ids)


@pytest.fixture
def take():
    x, y = np.ones([1, 2], np.float32), np.zeros([1], np.int32)
    dataset = FederatedDataset.from_client_arrays([(x, y, x, y)] * NUM_CLIENTS, 2)

    def take(options=None, **snapshots):
        process = process_of(**snapshots)
        store = CountingStore(process)
        store.put(SEEN, [Visits(np.int32(count)) for count in SEEN.values()])
        store.commit()
        source = types.SimpleNamespace(store=store)  # nothing else is read
        evaluator = Evaluator(process, tiny_model(), dataset, EvaluationOptions(**options or {}))
        return evaluator.snapshot(process.initialize(), source), store

    return take


def assert_arrays(found, expected):
    assert set(found) == set(expected)
    for name, array in expected.items():
        assert isinstance(found[name], np.ndarray)
        np.testing.assert_array_equal(found[name], array)


COUNTS = np.array([SEEN.get(i, i) for i in range(NUM_CLIENTS)])


def test_snapshot_has_the_server_and_clients_in_order(take):
    arrays, _ = take(snapshot=server_snapshot, client_snapshot=client_snapshot)
    expected = {
        "server": [10.0, 20.0],
        "pair": np.stack([COUNTS, -COUNTS], axis=1),
        "single": COUNTS,
    }
    assert_arrays(arrays, expected)
    assert arrays["pair"].dtype == np.float32
    assert arrays["single"].dtype == np.int32


@pytest.mark.parametrize("clients_per_call", [3, 100])
def test_snapshot_reads_few_states_at_a_time(take, clients_per_call):
    arrays, store = take(
        client_snapshot=client_snapshot, options={"clients_per_call": clients_per_call}
    )
    assert_arrays(arrays, {"pair": np.stack([COUNTS, -COUNTS], axis=1), "single": COUNTS})
    assert max(map(len, store.requested)) == min(clients_per_call, NUM_CLIENTS)
    assert sum(store.requested, []) == list(range(NUM_CLIENTS))


def test_snapshot_of_the_server_reads_no_client_states(take):
    arrays, store = take(snapshot=server_snapshot)
    assert_arrays(arrays, {"server": [10.0, 20.0]})
    assert store.requested == []


def test_process_without_snapshots_gives_no_arrays(take):
    arrays, store = take()
    assert arrays == {}
    assert store.requested == []


def test_snapshot_can_be_of_a_sample_of_clients(take):
    sample = sampled_clients(1, NUM_CLIENTS, 3)
    options = {"clients": 3, "seed": 1, "clients_per_call": 2}
    arrays, store = take(options=options, snapshot=server_snapshot, client_snapshot=client_snapshot)
    expected = {"server": [10.0, 20.0], "client_id": sample, "single": COUNTS[sample]}
    assert_arrays(arrays, expected | {"pair": np.stack([COUNTS, -COUNTS], axis=1)[sample]})
    assert sum(map(len, store.requested)) == 3
