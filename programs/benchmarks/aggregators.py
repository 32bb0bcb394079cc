"""What a round takes with each aggregator, and with compressed uploads, beside the plain mean."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from benchmarks.figures import spread
from benchmarks.workloads import SEED, Workload
from tff_pfl import algorithms, runtime
from tff_pfl.compression import COMPRESSORS, compressed
from tff_pfl.local import Examples, LocalTraining, examples_type
from tff_pfl.templates import AGGREGATORS, Algorithm, Client, compose, with_aggregator


def measure_aggregators(workload: Workload, *, rounds: int) -> Iterator[dict[str, Any]]:
    """A record for each aggregator and compressor, of FedAvg's rounds in the graph runtime.

    They take turns, a round each, after one that is not counted; every round starts from the same
    state. That they are made and traced is not in it.

    Args:
        workload: Model and data. Aggregators with noise need more than 10 clients.
        rounds: Of each that count.
    """
    local = LocalTraining(
        tff.learning.optimizers.build_sgdm(workload.learning_rate),
        epochs=workload.epochs,
        batch_size=workload.batch_size,
    )
    fedavg = algorithms.make("fedavg", workload.model(), local)
    with tff.framework.get_context_stack().install(runtime.create_graph_context()):
        runs = {
            name: _rounds_of(algorithm, workload)
            for name, algorithm in _changed(fedavg, workload.clients).items()
        }
        seconds, sent = {name: [] for name in runs}, {}
        for turn in range(1 + rounds):
            for name, run in runs.items():
                start = time.perf_counter()
                sent[name] = int(run()["bytes_up_per_client"])
                if turn:
                    seconds[name].append(time.perf_counter() - start)
    measured = {name: spread(values) for name, values in seconds.items()}
    for name, of_round in measured.items():
        yield {
            "aggregator": name,
            "network": workload.network,
            "clients": workload.clients,
            "bytes_up_per_client": sent[name],
            "seconds_per_round": of_round,
            "times_mean": round(of_round["median"] / measured["mean"]["median"], 3),
        }


def _changed(fedavg: Algorithm, clients: int) -> Mapping[str, Algorithm]:
    """FedAvg with each aggregator and with each compressor."""
    changed = {"mean": fedavg}
    for name in AGGREGATORS:
        options = {"clients_per_round": clients, "noise_multiplier": 0.5}
        known = AGGREGATORS.parameters(name)
        options = {key: value for key, value in options.items() if key in known}
        changed[name] = with_aggregator(fedavg, AGGREGATORS[name](**options))
    for name in COMPRESSORS:
        for suffix, feedback in (("", False), (", fed back", True)):
            compressor = COMPRESSORS[name]()
            changed[name + suffix] = compressed(fedavg, compressor, error_feedback=feedback)
    return changed


def _rounds_of(algorithm: Algorithm, workload: Workload) -> Callable[[], Mapping[str, Any]]:
    """`() -> metrics` of a first round."""
    process = compose(algorithm, examples_type(workload.image_shape), SEED)
    images, labels = workload.data()
    size = np.int32(workload.examples_per_client)
    client_state = process.initialize_client(np.int32(0))
    cohort = [
        Client(np.int32(i), client_state, Examples(x, y, size))
        for i, (x, y) in enumerate(zip(images, labels, strict=True))
    ]
    state = process.initialize()

    def run():
        output = process.next(state, cohort)
        tf.nest.map_structure(np.asarray, output.state)
        return output.metrics

    return run
