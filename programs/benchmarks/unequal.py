"""Measures rounds of clients of unequal sizes, with their own rows and with padded rows."""

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow_federated as tff

from benchmarks.figures import spread
from benchmarks.processes import process_of
from benchmarks.workloads import SEED, Workload
from tff_pfl import runtime
from tff_pfl.clients.padding import pad_examples, shared_capacity
from tff_pfl.local import Examples
from tff_pfl.templates import Client

_NETWORKS = {"linear": (), "mlp 30": (30,), "mlp 200-200": (200, 200)}
_SPREADS = (0.25, 0.5, 1.0)


def measure_unequal(workload: Workload, *, rounds: int) -> Iterator[dict[str, Any]]:
    """Yields a record for each network and spread of sizes, of FedAvg in the graph runtime.

    Sizes are lognormal. Rounds with each client's own rows and with rows padded to the largest
    client's take turns, after one of each that is not counted.

    Args:
        workload: Data and training; `examples_per_client` is the mean.
        rounds: Measured rounds of each kind.
    """
    for network, hidden in _NETWORKS.items():
        of_network = dataclasses.replace(workload, options={"hidden": hidden})
        for sigma in _SPREADS:
            yield {"unequal": network, "sigma": sigma, **_measure(of_network, sigma, rounds)}


def _measure(workload, sigma, rounds):
    mean, number = workload.examples_per_client, workload.clients
    sizes = np.random.default_rng(SEED).lognormal(0, sigma, number)
    sizes = np.maximum(np.rint(sizes * mean / sizes.mean()), 1).astype(np.int32)
    capacity = shared_capacity(sizes)
    images, labels = dataclasses.replace(workload, examples_per_client=max(sizes)).data()
    with tff.framework.get_context_stack().install(runtime.create_graph_context()):
        process = process_of("fedavg", workload, num_clients=number, clients_per_round=number)
        state, client_state = process.initialize(), process.initialize_client(np.int32(0))
        own = [
            Client(np.int32(i), client_state, Examples(x[:size], y[:size], size))
            for i, (x, y, size) in enumerate(zip(images, labels, sizes, strict=True))
        ]
        padded = [c._replace(data=pad_examples(c.data, capacity)) for c in own]
        seconds = {"own": [], "padded": []}
        for turn in range(1 + rounds):
            for name, cohort in (("own", own), ("padded", padded)):
                start = time.perf_counter()
                process.next(state, cohort)
                if turn:
                    seconds[name].append(time.perf_counter() - start)
    measured = {f"seconds_{name}": spread(values) for name, values in seconds.items()}
    medians = [of_rows["median"] for of_rows in measured.values()]
    return {
        "clients": number,
        "examples": int(sizes.sum()),
        "rows_over_examples": round(capacity * number / int(sizes.sum()), 2),
        "batch_size": workload.batch_size,
        **measured,
        "padded_over_own": round(medians[1] / medians[0], 3),
    }
