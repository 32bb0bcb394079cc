"""Processes of this library's algorithms on the model of a workload, trained as that says."""

from typing import Any

import tensorflow_federated as tff

from benchmarks.workloads import SEED, Workload
from tff_pfl.algorithms import ALGORITHMS as ALGORITHMS
from tff_pfl.algorithms import build
from tff_pfl.local import LocalTraining, examples_type
from tff_pfl.templates import PersonalizedProcess


def process_of(
    algorithm: str, workload: Workload, *, num_clients: int, clients_per_round: int, **options: Any
) -> PersonalizedProcess:
    """A process of an algorithm by its name; see `tff_pfl.algorithms.make`."""
    optimizer = tff.learning.optimizers.build_sgdm(workload.learning_rate)
    return build(
        algorithm,
        workload.model(),
        examples_type(workload.image_shape),
        LocalTraining(optimizer, epochs=workload.epochs, batch_size=workload.batch_size),
        num_clients=num_clients,
        clients_per_round=clients_per_round,
        seed=SEED,
        **options,
    )
