"""What PGFed's server does in a round of a large federation, apart from what the clients do."""

import time
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from benchmarks.figures import spread
from benchmarks.processes import process_of
from benchmarks.workloads import SEED, Workload
from tff_pfl import runtime
from tff_pfl.aggregators import Stack
from tff_pfl.algorithms.pgfed.server import PGFedServer, Risk
from tff_pfl.local import Examples
from tff_pfl.templates import Client

_MU, _ALPHA_LEARNING_RATE = 0.1, 0.01


def measure_pgfed_server(workload: Workload, population: int, *, rounds: int) -> dict[str, Any]:
    """A record of the seconds of a round, and of all that the server does in it.

    Args:
        workload: Model and data; its clients are a cohort.
        population: Clients of the federation.
        rounds: Rounds that count, after one in which there is no last cohort.
    """
    cohort_size = workload.clients
    context = runtime.create_graph_context(vectorize="never")
    with tff.framework.get_context_stack().install(context):
        process = process_of(
            "pgfed",
            workload,
            num_clients=population,
            clients_per_round=cohort_size,
            mu=_MU,
            alpha_learning_rate=_ALPHA_LEARNING_RATE,
        )
        images, labels = workload.data()
        size = np.int32(workload.examples_per_client)
        state, client_state = process.initialize(), process.initialize_client(np.int32(0))
        rng = np.random.default_rng(SEED)
        seconds = []
        for _ in range(1 + rounds):
            ids = np.sort(rng.choice(population, cohort_size, replace=False)).astype(np.int32)
            cohort = [
                Client(i, client_state, Examples(x, y, size))
                for i, x, y in zip(ids, images, labels, strict=True)
            ]
            start = time.perf_counter()
            state = process.next(state, cohort).state
            seconds.append(time.perf_counter() - start)
    of_round = spread(seconds[1:])
    of_server = spread(_server_seconds(state.algorithm, population, cohort_size, max(rounds, 5)))
    return {
        "pgfed_server": f"{population} clients",
        "clients_online": cohort_size,
        "num_weights": workload.model().num_weights,
        "seconds_per_round": of_round,
        "seconds_of_server": of_server,
        "share_of_round": round(of_server["median"] / of_round["median"], 4),
    }


def _server_seconds(state, population, cohort_size, repetitions):
    server = PGFedServer(population, cohort_size, cohort_size, _MU, _ALPHA_LEARNING_RATE)
    state = tf.nest.map_structure(tf.constant, state)
    last = state.last
    risk = Risk(
        last.client_ids, last.gradients, last.intercepts, tf.ones([cohort_size, cohort_size])
    )
    uploads = {"change": state.weights, "risk": Stack(risk, tf.ones([cohort_size]))}

    @tf.function
    def work(state, uploads):
        shared = server.shared(state)
        own = [server.own(state, client_id) for client_id in tf.unstack(last.client_ids)]
        return shared, own, server.finalize(state, uploads, tf.constant(1))

    work(state, uploads)
    seconds = []
    for _ in range(repetitions):
        start = time.perf_counter()
        work(state, uploads)
        seconds.append(time.perf_counter() - start)
    return seconds
