"""What it costs to evaluate every client's own model on the pool of all test examples."""

import statistics
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from benchmarks.figures import spread
from benchmarks.workloads import SEED, Workload
from tff_pfl import algorithms, runtime
from tff_pfl.clients import ClientStateStore, CohortDataSource
from tff_pfl.data import FederatedDataset
from tff_pfl.evaluation import PooledEvaluation
from tff_pfl.local import LocalTraining, examples_type

_NUM_CLASSES = 10
_BATCH_SIZE = 1000  # of the bare passes, as of the evaluation


def measure_pooled(workload: Workload, clients_per_call: int) -> dict[str, Any]:
    """A record of the seconds of the evaluation, and of the bare forward passes it is made of.

    Both take turns, some clients' models each: first the passes of these models over all images,
    a plain `tf.function`, then all that `PooledEvaluation` does with them. The first turn, in which
    graphs are made, does not count.

    Args:
        workload: Model and data; `examples_per_client` test examples of each client are the pool.
        clients_per_call: Clients of a turn; at least two turns.

    Raises:
        ValueError: If there are fewer.
    """
    if workload.clients < 2 * clients_per_call:
        raise ValueError(
            f"{workload.clients} clients make no two turns of {clients_per_call}: the first does "
            f"not count. Take {2 * clients_per_call} or more."
        )
    model = workload.model()
    images, labels = workload.data()
    dataset = FederatedDataset.from_client_arrays(
        [(x[:1], y[:1], x, y) for x, y in zip(images, labels, strict=True)], _NUM_CLASSES
    )
    with tff.framework.get_context_stack().install(runtime.create_graph_context()):
        process = algorithms.build_local(
            model,
            examples_type(workload.image_shape),
            LocalTraining(tff.learning.optimizers.build_sgdm(workload.learning_rate)),
            seed=SEED,
        )
        state = process.initialize_client(np.int32(0))
        store = ClientStateStore(process.initialize_clients, process.client_state_type)
        store.put(range(workload.clients), [state] * workload.clients)
        source = CohortDataSource(dataset, store, process.client_type, seed=SEED)
        bare = _bare_passes(model, images.reshape(-1, *workload.image_shape))
        turns = _InTurns(source, lambda ids: bare([state.model] * len(ids)))
        evaluation = PooledEvaluation(process, model, dataset, batch_size=_BATCH_SIZE)
        evaluation(process.initialize(), turns, clients_per_call=clients_per_call)
        bare_seconds, seconds = turns.end()
    return {
        "pooled": workload.network,
        "clients": workload.clients,
        "images": workload.clients * workload.examples_per_client,
        "clients_per_turn": clients_per_call,
        "seconds_of_bare_passes": spread(bare_seconds[1:]),
        "seconds_of_evaluation": spread(seconds[1:]),
        "median_of_ratios": round(
            statistics.median(np.divide(seconds[1:], bare_seconds[1:]).tolist()), 3
        ),
    }


def _bare_passes(model, images):
    """`(models) -> None`: what they make of all images, a batch at a time."""
    batches = [
        tf.constant(images[start : start + _BATCH_SIZE])
        for start in range(0, len(images), _BATCH_SIZE)
    ]

    @tf.function
    def forward(weights, x):
        return model.apply(weights, x, training=False)

    def run(models):
        for weights in models:
            weights = tf.nest.map_structure(tf.constant, weights)
            for x in batches:
                forward(weights, x).numpy()

    return run


class _InTurns:
    """A source of clients that, before it gives some, does and times something else for them."""

    def __init__(self, source: CohortDataSource, other_work):
        self._source = source
        self._other_work = other_work
        self._of_other, self._starts, self._ends = [], [], []

    def select_clients(self, client_ids: Iterable[int]):
        start = time.perf_counter()
        self._ends += [start] * bool(self._starts)
        self._other_work(client_ids)
        self._starts.append(time.perf_counter())
        self._of_other.append(self._starts[-1] - start)
        return self._source.select_clients(client_ids)

    def end(self) -> tuple[list[float], list[float]]:
        """Seconds of the other work and of what was done with the clients, for each turn."""
        ends = [*self._ends, time.perf_counter()]
        return self._of_other, np.subtract(ends, self._starts).tolist()
