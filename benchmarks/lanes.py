"""Counts the steps and shapes of unequal clients that are computed side by side, or in groups."""

import collections
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf

from benchmarks.contestants.common import lognormal_sizes
from benchmarks.unequal import data_of
from benchmarks.workloads import Workload, cohort_of, installed
from tff_pfl import runtime
from tff_pfl.clients import Ladder
from tff_pfl.data import partition
from tff_pfl.runtime.graph.clients import cohorts, pfor_loops
from tff_pfl.runtime.graph.clients.groups import rounded_up

_POPULATION, ROUNDS = 1_000, 20
# As in Fashion-MNIST.
_LABELS = np.repeat(np.arange(10), 6_000)


def sizes_of_clients(mean: int) -> dict[str, np.ndarray]:
    """Returns the number of examples of each client, for each kind of federation."""
    parts = partition.dirichlet(_LABELS, 100, np.random.default_rng(0), alpha=0.1)
    return {
        "lognormal": lognormal_sizes(_POPULATION, mean),
        "dirichlet": np.array(list(map(len, parts))),
        "equal": np.full(_POPULATION, mean),
    }


def measure(workload: Workload, cohort_sizes: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yields a record of 20 rounds of FedAvg for each kind of federation and size of cohort.

    Args:
        workload: The model and the training; `examples_per_client` is the mean size.
        cohort_sizes: The numbers of clients.

    Yields:
        Records. `shapes` is how often XLA would compile; `sequential_steps` is the mean number of
        steps that follow one another in a round, and `lane_steps` is the number of steps of lanes
        over that of clients. Steps of lanes are counted while the rounds run, steps of groups are
        computed from their sizes.
    """
    for kind, sizes in sizes_of_clients(workload.examples_per_client).items():
        for number in cohort_sizes:
            rng = np.random.default_rng(0)
            drawn = [rng.choice(sizes, number, replace=False) for _ in range(ROUNDS)]
            yield {
                "federation": kind,
                "clients": number,
                "lanes": _of_lanes(workload, sizes, drawn),
                "groups": _of_groups(workload, drawn),
            }


def _of_lanes(workload, sizes, drawn) -> dict[str, float]:
    context = runtime.create_graph_context(vectorize="always", jit_compile=False)
    known, number = runtime.Cohorts.of(len(drawn[0]), sizes), len(drawn[0])
    with installed(context), counting() as counts, runtime.compiling(False, known):
        process = workload.process("fedavg", number, number)
        state = process.initialize()
        for cohort in drawn:
            clients = cohort_of(process, *data_of(workload, cohort))
            state = process.next(state, clients).state
    return _summary(len(counts.shapes), counts.sequential, counts.lanes, counts.clients)


def _of_groups(workload, drawn) -> dict[str, float]:
    ladder, counts, shapes = Ladder(workload.batch_size), collections.Counter(), set()
    for cohort in drawn:
        counts["clients"] += _steps(workload, cohort).sum()
        members = collections.Counter(ladder.capacities(cohort.tolist()))
        for rows, number in members.items():
            # XLA compiles groups of 1, 2, 3, 4, 6, 8, ... clients; for one, more numbers.
            places = rounded_up(number, 2 if len(members) > 1 else 8)
            steps = _steps(workload, rows)
            counts["sequential"] += steps
            counts["lanes"] += places * steps
            shapes.add((rows, places))
    return _summary(len(shapes), counts["sequential"], counts["lanes"], counts["clients"])


def _steps(workload, size):
    return workload.epochs * -(-size // workload.batch_size)


def _summary(shapes, sequential, lanes, clients) -> dict[str, float]:
    return {
        "shapes": shapes,
        "sequential_steps": round(float(sequential) / ROUNDS, 1),
        "lane_steps": round(float(lanes / clients), 3),
    }


class Counts:
    """The steps of loops in lanes.

    Attributes:
        sequential: The number of steps.
        lanes: The number of lanes in all steps.
        clients: The number of clients in the loop in all steps.
        shapes: The shapes of cohorts.
    """

    def __init__(self):
        """Begins with none."""
        self.sequential = self.lanes = self.clients = 0
        self.shapes: set[tuple] = set()


@contextlib.contextmanager
def counting() -> Iterator[Counts]:
    """Counts the steps of loops in lanes, in rounds whose graphs are made in this context."""
    counts, step, in_lanes = Counts(), pfor_loops.Phase.step, cohorts.in_lanes

    def add(active):
        counts.sequential += 1
        counts.lanes += active.size
        counts.clients += active.sum()
        return active

    def counted(phase, active, *others):
        same = tf.ensure_shape(tf.numpy_function(add, [active], tf.bool), active.shape)
        return step(phase, same, *others)

    def noted(*args):
        shard = in_lanes(*args)
        buffers = [(tuple(buffer.capacities), buffer.length) for buffer in shard.parts.buffers]
        counts.shapes.add((shard.parts.prefixes, *buffers))
        return shard

    with (
        mock.patch.object(pfor_loops.Phase, "step", counted),
        mock.patch.object(cohorts, "in_lanes", noted),
    ):
        yield counts
