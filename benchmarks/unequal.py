"""Measures rounds of clients of unequal sizes: compiled, in a loop, in groups, side by side."""

import dataclasses
import functools
import time
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.contenders import Round, bare_tensorflow, check_same_work
from benchmarks.contestants.common import lognormal_sizes
from benchmarks.timing import in_turns, ratio, spread
from benchmarks.workloads import RUNTIMES, Workload, cohort_of, installed
from tff_pfl.clients import Ladder, pad_examples
from tff_pfl.clients.padding import capacities_of
from tff_pfl.runtime import create_graph_context
from tff_pfl.runtime.graph.clients.mapping import ClientMap

BARE, LOOP, GROUPS = "bare_tensorflow", "loop", "groups"
# How each contender of this library makes its context, and its `CohortDataSource.capacity`.
_OURS = {
    "compiled": (RUNTIMES["graph_compiled"], lambda workload: None),
    LOOP: (create_graph_context, lambda workload: None),
    GROUPS: (RUNTIMES["graph_vectorized"], lambda workload: Ladder(workload.batch_size)),
    "side_by_side": (RUNTIMES["graph_vectorized"], lambda workload: None),
    "side_by_side_compiled": (RUNTIMES["graph_xla"], lambda workload: None),
}


def measure(
    name: str, workload: Workload, cohort_sizes: Sequence[int], rounds: int
) -> Iterator[dict[str, Any]]:
    """Yields a record of a round of FedAvg for each size of cohort and each contender.

    Args:
        name: The name of the workload.
        workload: The model and the training; `examples_per_client` is the mean size.
        cohort_sizes: The numbers of clients.
        rounds: The number of measured rounds of each contender.

    Raises:
        ValueError: The losses of the first round differ, so that the contenders' work differs.
    """
    for number in cohort_sizes:
        yield from _cohort(name, dataclasses.replace(workload, clients=number), rounds)


def _cohort(name, workload, rounds):
    data = unequal_data(workload)
    sizes = np.array(list(map(len, data[1])))
    losses, processor = {}, {}

    def timed(contender, run):
        start = time.process_time()
        losses.setdefault(contender, run())
        processor.setdefault(contender, []).append(time.process_time() - start)

    runs = {BARE: bare_tensorflow(workload, *data)}
    for contender in _OURS if workload.can_be_vectorized() else ("compiled", LOOP):
        make_context, capacity = _OURS[contender]
        runs[contender] = fedavg(workload, data, make_context(), capacity(workload))
        if contender == GROUPS:
            runs[contender] = _in_groups(runs[contender])
    runs = {contender: functools.partial(timed, contender, run) for contender, run in runs.items()}
    check = functools.partial(check_same_work, losses)
    seconds = in_turns(f"unequal {name}", runs, rounds=rounds, after_first=check)
    wall = {contender: spread(values) for contender, values in seconds.items()}
    cpu = {contender: spread(values[-rounds:]) for contender, values in processor.items()}
    for contender in runs:
        yield {
            "unequal": name,
            "clients": len(sizes),
            "examples": int(sizes.sum()),
            "largest": int(sizes.max()),
            "batch_size": workload.batch_size,
            "contender": contender,
            "seconds_per_round": wall[contender],
            "cpu_seconds_per_round": cpu[contender],
            "times_bare": ratio(wall[contender], wall[BARE]),
            "cpu_times_bare": ratio(cpu[contender], cpu[BARE]),
        }


def _in_groups(run: Round) -> Round:
    def run_in_groups():
        with mock.patch.object(ClientMap, "takes_lanes", return_value=False):
            return run()

    return run_in_groups


def unequal_data(workload: Workload) -> list[list[np.ndarray]]:
    """Returns the inputs and the labels of clients whose mean size is `examples_per_client`."""
    return data_of(workload, lognormal_sizes(workload.clients, workload.examples_per_client))


def data_of(workload: Workload, sizes: np.ndarray) -> list[list[np.ndarray]]:
    """Returns the inputs and the labels of clients of these sizes."""
    together = dataclasses.replace(workload, clients=1, examples_per_client=int(sizes.sum()))
    return [np.split(array[0], np.cumsum(sizes)[:-1]) for array in together.data()]


def fedavg(workload: Workload, data, context, capacity) -> Round:
    """Builds rounds of this library's FedAvg.

    Args:
        workload: The model and the training.
        data: The inputs and the labels of each client.
        context: The execution context.
        capacity: See `CohortDataSource`.
    """
    with installed(context):
        process = workload.process("fedavg", len(data[0]), len(data[0]))
        state, cohort = process.initialize(), cohort_of(process, *data)
    rows = capacities_of([int(client.data.size) for client in cohort], capacity)
    cohort = [
        client._replace(data=pad_examples(client.data, number))
        for client, number in zip(cohort, rows, strict=True)
    ]

    def run() -> float:
        nonlocal state
        with installed(context):
            output = process.next(state, cohort)
        state = output.state
        return float(output.metrics["train"]["loss"])

    return run
