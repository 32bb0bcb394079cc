"""Tests `tff_pfl.evaluation.snapshots`."""

import collections
import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.templates.mean_process import Visits, compose, mean_exchange
from tff_pfl.clients import ClientStateStore
from tff_pfl.evaluation import take_snapshot

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
    def take(num_clients=NUM_CLIENTS, options=None, **snapshots):
        process = process_of(**snapshots)
        store = CountingStore(process)
        store.put(SEEN, [Visits(np.int32(count)) for count in SEEN.values()])
        store.commit()
        arrays = take_snapshot(process, process.initialize(), store, num_clients, **options or {})
        return arrays, store

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
    sample = np.array([0, 3, 5])
    options = {"client_ids": sample, "clients_per_call": 2}
    arrays, store = take(options=options, snapshot=server_snapshot, client_snapshot=client_snapshot)
    expected = {"server": [10.0, 20.0], "client_id": sample, "single": COUNTS[sample]}
    assert_arrays(arrays, expected | {"pair": np.stack([COUNTS, -COUNTS], axis=1)[sample]})
    assert sum(map(len, store.requested)) == 3
