"""What a round costs as cohorts and federations grow: time and memory.

The algorithm is Ditto, whose clients keep a model; the states of all clients of the federation lie
on disk before the first round. A round is what it is in training: the cohort is selected with its
states and data and trained, and its new states are taken; meanwhile those of the last round are
committed.
"""

import concurrent.futures
import contextlib
import copy
import dataclasses
import multiprocessing
import os
import pathlib
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow_federated as tff
import tqdm

from benchmarks.figures import spread
from benchmarks.processes import process_of
from benchmarks.runtimes import RUNTIMES
from benchmarks.workloads import SEED, Workload
from tff_pfl.clients import ClientStateStore, CohortDataSource
from tff_pfl.experiment.meanwhile import Meanwhile, Stopwatch
from tff_pfl.local import Examples
from tff_pfl.runtime.startup import prepare_process

# Clients with examples of their own; others have the same. So data do not grow with a federation.
_DISTINCT_CLIENTS = 100
_COHORT_OF_POPULATIONS = 100
# Few, so that writing the first states takes less memory than a round.
_STATES_PER_COMMIT = 100


@dataclasses.dataclass(frozen=True)
class Point:
    """What is measured in one process.

    Attributes:
        runtime: A key of `RUNTIMES`.
        workload: Model, data and training of a client. Its numbers of clients and its contenders
            are not used.
        cohort_size: Clients a round.
        population: Clients of the federation.
        rounds: Rounds that count.
        warmup: Rounds before that.
    """

    runtime: str
    workload: Workload
    cohort_size: int
    population: int
    rounds: int
    warmup: int


def scaling_points(
    runtimes: Iterable[str],
    workload: Workload,
    *,
    cohort_sizes: Sequence[int],
    populations: Sequence[int],
    rounds: int,
    warmup: int,
) -> list[Point]:
    """Two series for each runtime; a point of both is there once.

    Args:
        runtimes: Keys of `RUNTIMES`.
        workload: See `Point`.
        cohort_sizes: The first series: cohorts of a federation as large as the largest of them.
        populations: The second: federations with a cohort of 100, or of all clients if these are
            fewer.
        rounds: See `Point`.
        warmup: See `Point`.
    """
    sizes = [(cohort_size, max(cohort_sizes)) for cohort_size in cohort_sizes]
    sizes += [(min(_COHORT_OF_POPULATIONS, population), population) for population in populations]
    return [
        Point(runtime, workload, *size, rounds, warmup)
        for runtime in runtimes
        for size in dict.fromkeys(sizes)
    ]


def measure_scaling(points: Sequence[Point]) -> Iterator[dict[str, Any]]:
    """Yields a record a point, each measured in a new process: the peak of its memory is its own.

    See `measure_point`.
    """
    return in_new_processes(measure_point, points, "scaling")


def in_new_processes(
    measure: Callable[[Any], dict[str, Any]], points: Sequence[Any], name: str
) -> Iterator[dict[str, Any]]:
    """Yields what is measured of each point, in a process of its own."""
    for point in tqdm.tqdm(points, desc=name, unit="point", disable=None):
        with concurrent.futures.ProcessPoolExecutor(
            1, mp_context=multiprocessing.get_context("spawn"), initializer=prepare_process
        ) as process:
            yield process.submit(measure, point).result()


def measure_point(point: Point) -> dict[str, Any]:
    """Measures rounds in this process.

    Returns:
        A record. `seconds_per_round`, and what follows from it, is of a whole round, `ms_of` has
        the medians of its parts: `select`, `compute`, `update`, and beside `compute` the `write` of
        the last round. `training` is what `compute` takes
        where nothing else is done, on the same clients in turn with the rounds;
        `round_over_training` is the ratio of the medians. `memory_mib` is what the process and its
        children (the stock runtime has a worker) have resident, without GPUs' memory: `start`
        before there are clients and data, `peak` the highest of all times. Of the latter, about
        `files` are pages of files, libraries and the store, which the kernel drops when others need
        the memory.
    """
    measured = []
    with contextlib.ExitStack() as resources:
        context = RUNTIMES[point.runtime]()
        resources.enter_context(tff.framework.get_context_stack().install(context))
        process = process_of(
            "ditto",
            point.workload,
            num_clients=point.population,
            clients_per_round=point.cohort_size,
        )
        server_state = process.initialize()
        first_state = process.initialize_client(np.int32(0))
        memory = {"start": memory_mib("VmRSS")}
        path = resources.enter_context(tempfile.TemporaryDirectory(prefix="benchmark_"))
        store = resources.enter_context(
            ClientStateStore(process.initialize_clients, process.client_state_type, path)
        )
        _store_states(store, point.population, first_state)
        dataset = _Federation(point.workload, point.population)
        iterator = CohortDataSource(dataset, store, process.client_type, seed=SEED).iterator()
        meanwhile = resources.enter_context(Meanwhile())
        for _ in range(point.warmup + point.rounds):
            server_state, seconds = _round(process, server_state, iterator, store, meanwhile, point)
            measured.append(seconds)
        memory |= {"peak": memory_mib("VmHWM"), "files": memory_mib("RssFile")}
        states_on_disk = size_mib(path)
    seconds = {part: [of[part] for of in measured[point.warmup :]] for part in measured[0]}
    medians = {part: statistics.median(values) for part, values in seconds.items()}
    rounds = spread(seconds.pop("round"))
    return {
        "scaling": "ditto",
        "runtime": point.runtime,
        "cohort_size": point.cohort_size,
        "population": point.population,
        "seconds_per_round": rounds,
        "rounds_per_second": round(1 / rounds["median"], 3),
        "ms_per_client": round(1000 * rounds["median"] / point.cohort_size, 4),
        "round_over_training": round(medians["round"] / medians["training"], 3),
        "ms_of": {part: round(1000 * medians[part], 3) for part in seconds},
        "memory_mib": memory,
        "states_on_disk_mib": states_on_disk,
        "rounds": point.rounds,
        "examples_per_client": point.workload.examples_per_client,
        "epochs": point.workload.epochs,
        "batch_size": point.workload.batch_size,
    }


def _round(process, server_state, iterator, store, meanwhile, point):
    """The next round, and the same training alone: the new server state, and seconds by part."""
    watch = Stopwatch()

    def write():
        with watch.measuring("write"):
            store.commit({"iterator": position.to_bytes()})

    with watch.measuring("round"):
        with watch.measuring("select"):
            position = copy.deepcopy(iterator)
            cohort = iterator.select(point.cohort_size)
        with meanwhile.running(write), watch.measuring("compute"):
            output = process.next(server_state, cohort)
        with watch.measuring("update"):
            iterator.update(output.clients)
    with watch.measuring("training"):
        process.next(server_state, cohort)
    return output.state, watch.seconds


def _store_states(store: ClientStateStore, num_clients: int, state: Any) -> None:
    for start in range(0, num_clients, _STATES_PER_COMMIT):
        client_ids = range(start, min(start + _STATES_PER_COMMIT, num_clients))
        store.put(client_ids, [state] * len(client_ids))
        store.commit()


class _Federation:
    """A data set for `CohortDataSource` whose clients share a few arrays."""

    def __init__(self, workload: Workload, num_clients: int):
        self.num_clients = num_clients
        self.fingerprint = f"benchmark {num_clients}"
        self._data = dataclasses.replace(workload, clients=_DISTINCT_CLIENTS).data()

    def examples(self, client_id: int, split: str) -> Examples:
        """A view of the arrays; all splits are the same."""
        del split
        x, y = (array[client_id % _DISTINCT_CLIENTS] for array in self._data)
        return Examples(x, y, np.int32(len(y)))


def memory_mib(field: str) -> float:
    """A field of `/proc/PID/status`, summed over this process and its children.

    `VmRSS` is the resident memory, `VmHWM` the highest since the process began: unlike
    `resource.getrusage`'s, not that of the process which started this one, where it was higher.
    """
    total = 0
    for path in pathlib.Path("/proc").glob("[0-9]*/status"):
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue  # it has ended
        status = dict(line.split(":", 1) for line in lines)
        if os.getpid() in (int(status["Pid"]), int(status["PPid"])):
            total += int(status.get(field, "0 kB").split()[0])
    return round(total / 1024, 1)


def size_mib(path: str | pathlib.Path) -> float:
    """What a file, or all files of a directory, occupy; those of a store have holes."""
    path = pathlib.Path(path)
    files = path.rglob("*") if path.is_dir() else [path]
    blocks = sum(file.stat().st_blocks for file in files)
    return round(blocks * 512 / 2**20, 1)
