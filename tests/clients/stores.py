"""Makes stores of small client states."""

import collections

import numpy as np
import tensorflow_federated as tff

from tff_pfl.clients import ClientStateStore

STATE_TYPE = tff.types.to_type(collections.OrderedDict(w=(np.float32, [None]), n=np.int32))
MIB = 1 << 20
FLOATS = MIB // 8  # half a MiB: 20 such states are more than the first map


def state(n, size=4):
    return collections.OrderedDict(w=np.full([size], n, np.float32), n=np.int32(n))


def initialize(client_ids):
    return [state(-1 - client_id) for client_id in client_ids]


def open_store(path=None, state_type=STATE_TYPE, **options):
    return ClientStateStore(initialize, state_type, path, **options)


def numbers(store, ids):
    return [int(s["n"]) for s in store.get(ids)]


def filled(path):
    with open_store(path) as store:
        store.put(range(20), [state(i, size=FLOATS) for i in range(20)])
        store.commit({"progress": b"round 17 of 20"})
    return path / "data.mdb"
