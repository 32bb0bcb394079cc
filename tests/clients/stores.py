"""Stores of small client states, and files of theirs that are damaged."""

import collections
from typing import NamedTuple

import numpy as np
import tensorflow_federated as tff

from tff_pfl.clients.state_store import ClientStateStore

STATE_TYPE = tff.types.to_type(collections.OrderedDict(w=(np.float32, [None]), n=np.int32))
MIB = 1 << 20


class Empty(NamedTuple):
    pass


def state(n, size=4):
    return collections.OrderedDict(w=np.full([size], n, np.float32), n=np.int32(n))


def initialize(client_id):
    return state(-1 - client_id)


def open_store(path=None, state_type=STATE_TYPE, **options):
    return ClientStateStore(initialize, state_type, path, **options)


def numbers(store, ids):
    return [int(s["n"]) for s in store.get(ids)]


def filled(path):
    with open_store(str(path)) as store:
        store.put(range(20), [state(i, size=MIB) for i in range(20)])
        store.commit()
    return path / "data.mdb"


def overwrite(path, position, content):
    with open(path, "r+b") as file:
        file.seek(position)
        file.write(content)
