"""What an algorithm has for people to look at, of the server's state and of all clients'."""

import collections
from typing import Any

import numpy as np

from tff_pfl.clients import ClientStateStore
from tff_pfl.templates import PersonalizedProcess


def take_snapshot(
    process: PersonalizedProcess,
    server_state: Any,
    store: ClientStateStore,
    num_clients: int,
    *,
    clients_per_call: int = 25,
) -> dict[str, np.ndarray]:
    """Arrays by name, those of clients with a leading axis of `num_clients`; maybe none.

    Args:
        process: The algorithm.
        server_state: Its `ServerState`.
        store: Of the clients' states.
        num_clients: How many clients there are.
        clients_per_call: Clients whose states are read at a time; bounds memory.
    """
    arrays = {} if process.snapshot is None else dict(process.snapshot(server_state))
    if process.client_snapshot is None:
        return arrays
    rows = collections.defaultdict(list)
    for start in range(0, num_clients, clients_per_call):
        ids = range(start, min(start + clients_per_call, num_clients))
        for row in process.client_snapshot(store.get(ids)):
            for name, value in row.items():
                rows[name].append(value)
    return arrays | {name: np.stack(values) for name, values in rows.items()}
