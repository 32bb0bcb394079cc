"""This library's algorithms on the model and data of a workload, and the runtimes they run on."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow_federated as tff

from benchmarks.workloads import SEED, Workload
from tff_pfl import algorithms, runtime
from tff_pfl.local import Examples, LocalTraining, examples_type
from tff_pfl.templates import Client, PersonalizedProcess

RUNTIMES: dict[str, Callable[[], tff.framework.SyncExecutionContext]] = {
    "cpp_runtime": runtime.create_cpp_context,
    "graph_loop": lambda: runtime.create_graph_context(vectorize="never"),
    "graph_vectorized": lambda: runtime.create_graph_context(vectorize="always"),
    "graph_xla": lambda: runtime.create_graph_context(vectorize="always", jit_compile=True),
}


def installed(context: tff.framework.SyncExecutionContext):
    """Makes a context the one that executes, as a context manager."""
    return tff.framework.get_context_stack().install(context)


def local_training(workload: Workload) -> LocalTraining:
    """Returns the workload's local training, by SGD."""
    optimizer = tff.learning.optimizers.build_sgdm(workload.learning_rate)
    return LocalTraining(optimizer, epochs=workload.epochs, batch_size=workload.batch_size)


def process_of(
    algorithm: str,
    workload: Workload,
    *,
    num_clients: int | None = None,
    clients_per_round: int | None = None,
    **options: Any,
) -> PersonalizedProcess:
    """Builds the process of an algorithm by its name, of the workload's clients by default."""
    return algorithms.build(
        algorithm,
        workload.model(),
        examples_type(workload.image_shape),
        local_training(workload),
        num_clients=num_clients or workload.clients,
        clients_per_round=clients_per_round or workload.clients,
        seed=SEED,
        **options,
    )


def cohort_of(
    process: PersonalizedProcess,
    images: Sequence[np.ndarray],
    labels: Sequence[np.ndarray],
) -> list[Client]:
    """Returns clients that have never taken part, with these examples."""
    return [
        Client(
            np.int32(i), process.initialize_client(np.int32(i)), Examples(x, y, np.int32(len(y)))
        )
        for i, (x, y) in enumerate(zip(images, labels, strict=True))
    ]
