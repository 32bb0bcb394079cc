"""Makes cohorts of small clients, and runs rounds that count how often each takes part."""

import collections

import numpy as np
import tensorflow_federated as tff

from tff_pfl.clients.cohort import CohortDataSource
from tff_pfl.clients.state_store import ClientStateStore
from tff_pfl.local.examples import Examples, examples_type
from tff_pfl.templates.values import Client

STATE_TYPE = tff.types.to_type(collections.OrderedDict(w=(np.float32, [2]), n=np.int32))


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
    """A data set in which client `i` has `i % 4 + 1` train and `i % 4` test examples.

    All pixels of a row are `10 * i + row`.
    """

    num_clients = 10

    def __init__(self, fingerprint="fake"):
        self.fingerprint = fingerprint

    def sizes(self):
        return np.arange(10) % 4 + 1

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


def make_source(store=None, *, dataset=None, type_=None, seed=1, **options):
    dataset, store = dataset or FakeDataset(), store or make_store()
    return CohortDataSource(dataset, store, type_ or client_type(), seed=seed, **options)


def train(clients):
    """Returns new states, with the client's participations so far, id and sum of data."""
    return [
        collections.OrderedDict(
            w=np.array([c.client_id, c.data.x.sum()], np.float32), n=np.int32(c.state["n"] + 1)
        )
        for c in clients
    ]


def run_rounds(iterator, count):
    """Runs rounds; returns the ids and participation counts of each cohort."""
    seen = []
    for _ in range(count):
        clients = iterator.select(3)
        seen.append([(int(c.client_id), int(c.state["n"])) for c in clients])
        assert all(c.state["w"][0] == c.client_id for c in clients if c.state["n"])
        iterator.update(train(clients))
    return seen
