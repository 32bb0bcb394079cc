"""Takes snapshots: arrays for inspection, from the server's state and all clients' states."""

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
    client_ids: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Returns arrays by name; arrays of clients have a leading axis of `num_clients`.

    Args:
        process: The algorithm.
        server_state: The algorithm's `ServerState`.
        store: The clients' states.
        num_clients: The number of clients.
        clients_per_call: The number of client states read at a time, which bounds memory.
        client_ids: A sample of clients, or `None` for all. For a sample, arrays of clients have a
            leading axis of its size, and the array `client_id` has the ids.
    """
    arrays = {} if process.snapshot is None else dict(process.snapshot(server_state))
    if process.client_snapshot is None:
        return arrays
    if client_ids is not None:
        arrays["client_id"] = client_ids
    all_ids = range(num_clients) if client_ids is None else client_ids
    rows = collections.defaultdict(list)
    for start in range(0, len(all_ids), clients_per_call):
        ids = all_ids[start : start + clients_per_call]
        for row in process.client_snapshot(store.get(ids)):
            for name, value in row.items():
                rows[name].append(value)
    return arrays | {name: np.stack(values) for name, values in rows.items()}
