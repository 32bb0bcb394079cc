"""What a round of FedPG costs as cohorts grow, and what of it is the quadratic program."""

import dataclasses
import functools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from benchmarks.figures import spread
from benchmarks.scaling import in_new_processes
from benchmarks.workloads import SEED, Workload
from tff_pfl import runtime
from tff_pfl.algorithms import build_fedpg
from tff_pfl.local import Examples, LocalTraining, examples_type
from tff_pfl.numerics.min_norm import min_norm_weights
from tff_pfl.templates import Client

# All clients take part in turn, as many rounds as this: so many columns there are a client online.
_TURNS = 7


def measure_descent(
    name: str, workload: Workload, cohort_sizes: Sequence[int], *, rounds: int
) -> Iterator[dict[str, Any]]:
    """Yields a record for each size of cohorts, each measured in a new process.

    Args:
        name: Of the workload.
        workload: Model and data; how many clients it has does not matter.
        cohort_sizes: Clients online. Of seven times as many the server remembers gradients.
        rounds: Rounds that count, after those in which all gradients come in.
    """
    measure = functools.partial(_measure, workload, rounds=rounds)
    for record in in_new_processes(measure, cohort_sizes, f"fedpg {name}"):
        yield {"fedpg": name, **record}


def _measure(workload: Workload, cohort_size: int, rounds: int) -> dict[str, Any]:
    context = runtime.create_graph_context(vectorize="never")
    with tff.framework.get_context_stack().install(context):
        population = _TURNS * cohort_size
        process = build_fedpg(
            workload.model(),
            examples_type(workload.image_shape),
            LocalTraining(tff.learning.optimizers.build_sgdm(workload.learning_rate)),
            memory_size=population,
            seed=SEED,
        )
        images, labels = dataclasses.replace(workload, clients=population).data()
        size = np.int32(workload.examples_per_client)
        state, client_state = process.initialize(), process.initialize_client(np.int32(0))
        seconds = []
        for round_num in range(_TURNS + 1 + rounds):
            first = round_num % _TURNS * cohort_size
            cohort = [
                Client(np.int32(i), client_state, Examples(images[i], labels[i], size))
                for i in range(first, first + cohort_size)
            ]
            start = time.perf_counter()
            state = process.next(state, cohort).state
            seconds.append(time.perf_counter() - start)
        gram = np.asarray(state.algorithm.memory.gram)
        norms = np.sqrt(np.diag(gram))
        gram = tf.constant(gram / np.outer(norms, norms))
        solve = tf.function(min_norm_weights)
        solve(gram)
        solver_seconds = []
        for _ in range(max(rounds, 5)):
            start = time.perf_counter()
            weights = solve(gram).numpy()
            solver_seconds.append(time.perf_counter() - start)
    of_round, of_solver = spread(seconds[-rounds:]), spread(solver_seconds)
    return {
        "clients_online": cohort_size,
        "columns": population,
        "columns_used": int(np.sum(weights > 0)),
        "examples_per_client": int(size),
        "seconds_per_round": of_round,
        "seconds_of_quadratic_program": of_solver,
        "share_of_round": round(of_solver["median"] / of_round["median"], 5),
    }
