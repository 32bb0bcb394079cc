"""Measures rounds and whole runs as cohorts and federations grow: time, memory and disk.

`rounds_at` measures rounds of an algorithm whose clients keep a model: the states of all clients
of the federation lie on disk before the first round. `run_at` measures a run of training as
`programs/train.py` makes it, once the data are there: only clients that took part have a state.
The data lie in memory-mapped files. Labels are random, and inputs are zeros, stored as holes of the
file, so that a round does not include the time to read inputs from a disk.
"""

import contextlib
import copy
import dataclasses
import io
import pathlib
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.processes import RUNTIMES, installed, process_of
from benchmarks.timing import in_new_processes, memory_mib, size_mib, spread
from benchmarks.workloads import SEED, Workload
from tff_pfl import experiment
from tff_pfl.clients import ClientStateStore, CohortDataSource
from tff_pfl.data import ClientRows, FederatedDataset, Partition
from tff_pfl.evaluation import EvaluationOptions
from tff_pfl.experiment.background import Background, Stopwatch
from tff_pfl.experiment.metrics_log import TIMINGS

_COHORT_SIZE = 100  # or all clients of the federation, if they are fewer
# Few, so that writing the first states takes less memory than a round.
_STATES_PER_COMMIT = 100
_EVALUATED_CLIENTS = 1000
_TEST_EXAMPLES = 4  # of each client
_NUM_CLASSES = 10
_WRITTEN_AT_A_TIME = 1 << 20  # numbers; bounds memory


@dataclasses.dataclass(frozen=True)
class Point:
    """A measurement, which has a process of its own.

    Attributes:
        workload: Model, data and training of a client. Its number of clients is not used.
        population: The number of clients in the federation.
        rounds: The number of rounds that count.
        warmup: The number of rounds before these.
        cohort_size: The number of clients in a round.
        algorithm: The name of the algorithm.
    """

    workload: Workload
    population: int
    rounds: int
    warmup: int
    cohort_size: int
    algorithm: str


def measure_scaling(
    *, cohort_sizes: Sequence[int], populations: Sequence[int], **of_points: Any
) -> Iterator[dict[str, Any]]:
    """Yields a record for each size of cohorts and of federations, measured in a new process.

    Args:
        cohort_sizes: The first series: cohorts of a federation as large as the largest of them.
        populations: The second series: federations with a cohort of 100, or of all clients if they
            are fewer. A point of both series is measured once.
        **of_points: Other attributes of `Point`.
    """
    sizes = [(size, max(cohort_sizes)) for size in cohort_sizes]
    sizes += [(min(_COHORT_SIZE, population), population) for population in populations]
    points = [
        Point(cohort_size=cohort_size, population=population, **of_points)
        for cohort_size, population in dict.fromkeys(sizes)
    ]
    return in_new_processes(rounds_at, points, "scaling")


def measure_runs(*, populations: Sequence[int], **of_points: Any) -> Iterator[dict[str, Any]]:
    """Yields a record of a whole run for each federation, measured in a new process.

    Args:
        populations: Sizes of the federations, with cohorts as those of `measure_scaling`.
        **of_points: Other attributes of `Point`.
    """
    points = [
        Point(cohort_size=min(_COHORT_SIZE, population), population=population, **of_points)
        for population in populations
    ]
    return in_new_processes(run_at, points, "runs")


def rounds_at(point: Point) -> dict[str, Any]:
    """Measures rounds in this process.

    Returns:
        A record. `seconds_per_round`, and what follows from it, describes whole rounds. `ms_of` has
        the medians of their parts: `select`, `compute`, `update`, and, beside `compute`, the
        `write` of the last round. `training` is what `compute` takes when nothing else is done, on
        the same clients, in turn with the rounds; `round_over_training` is the ratio of the
        medians. `memory_mib` is the resident memory of the process, without GPUs' memory: `start`
        before there are clients and data, `peak` the highest of all times. Of the peak, about
        `files` are pages of files, libraries and the store, which the kernel drops when others
        need the memory.
    """
    with contextlib.ExitStack() as resources:
        resources.enter_context(installed(RUNTIMES["graph_vectorized"]()))
        process = _process_of(point)
        memory = {"start": memory_mib("VmRSS")}
        folder = resources.enter_context(tempfile.TemporaryDirectory(prefix="benchmark_"))
        path = pathlib.Path(folder) / "states"
        store = resources.enter_context(
            ClientStateStore(process.initialize_clients, process.client_state_type, path)
        )
        _store_states(store, point.population, process.initialize_client(np.int32(0)))
        dataset = memory_mapped_federation(point, pathlib.Path(folder))
        iterator = CohortDataSource(dataset, store, process.client_type, seed=SEED).iterator()
        background = resources.enter_context(Background())
        state, measured = process.initialize(), []
        for _ in range(point.warmup + point.rounds):
            watch = Stopwatch()
            state = _round(process, state, iterator, store, background, watch, point.cohort_size)
            measured.append(watch.seconds)
        memory |= {"peak": memory_mib("VmHWM"), "files": memory_mib("RssFile")}
        states_on_disk = size_mib(path)
    seconds = {part: [of[part] for of in measured[point.warmup :]] for part in measured[0]}
    medians = {part: statistics.median(values) for part, values in seconds.items()}
    whole = medians.pop("round")
    return {
        "scaling": point.algorithm,
        "cohort_size": point.cohort_size,
        "population": point.population,
        "seconds_per_round": spread(seconds["round"]),
        "rounds_per_second": round(1 / whole, 3),
        "ms_per_client": round(1000 * whole / point.cohort_size, 4),
        "round_over_training": round(whole / medians["training"], 3),
        "ms_of": {part: round(1000 * median, 3) for part, median in medians.items()},
        "memory_mib": memory,
        "states_on_disk_mib": states_on_disk,
        "rounds": point.rounds,
        "examples_per_client": point.workload.examples_per_client,
        "epochs": point.workload.epochs,
        "batch_size": point.workload.batch_size,
    }


def _process_of(point: Point):
    return process_of(
        point.algorithm,
        point.workload,
        num_clients=point.population,
        clients_per_round=point.cohort_size,
    )


def _round(process, server_state, iterator, store, background, watch, cohort_size):
    """Does the next round, and the same training alone; returns the new server state."""

    def write():
        with watch.measuring("write"):
            store.commit({"iterator": position.to_bytes()})

    with watch.measuring("round"):
        with watch.measuring("select"):
            position = copy.deepcopy(iterator)
            cohort = iterator.select(cohort_size)
        with background.doing(write), watch.measuring("compute"):
            output = process.next(server_state, cohort)
        with watch.measuring("update"):
            iterator.update(output.clients)
    with watch.measuring("training"):
        process.next(server_state, cohort)
    return output.state


def _store_states(store: ClientStateStore, num_clients: int, state: Any) -> None:
    for start in range(0, num_clients, _STATES_PER_COMMIT):
        client_ids = range(start, min(start + _STATES_PER_COMMIT, num_clients))
        store.put(client_ids, [state] * len(client_ids))
        store.commit()


def run_at(point: Point) -> dict[str, Any]:
    """Measures a run in this process, and its resumption by another round.

    Returns:
        A record. `ms_of` has the medians of the columns of `timings.csv` for a round and its parts.
        `seconds_to` has what happens once: to `make_data` of files and check them, to `start` the
        run, with its partition and picture, to `evaluate` the sample, and to `resume` the run, up
        to its next round. `memory_mib` is that of `rounds_at`; `mib_on_disk` has the sizes of the
        run's folders and files.
    """
    evaluated = min(_EVALUATED_CLIENTS, point.population)
    with (
        contextlib.redirect_stdout(io.StringIO()),
        installed(RUNTIMES["graph_vectorized"]()),
        tempfile.TemporaryDirectory(prefix="benchmark_") as folder,
    ):
        process = _process_of(point)
        memory = {"start": memory_mib("VmRSS")}
        watch = time.perf_counter()
        dataset = memory_mapped_federation(point, pathlib.Path(folder))
        seconds_to = {"make_data": time.perf_counter() - watch}
        rounds, path = point.warmup + point.rounds, pathlib.Path(folder) / "run"
        for what, first, number in (("start", 0, rounds), ("resume", rounds, rounds + 1)):
            watch = time.perf_counter()
            with experiment.RunDirectory(path, {}, resume=what == "resume") as directory:
                experiment.train(
                    process,
                    point.workload.model(),
                    dataset,
                    directory,
                    rounds=number,
                    clients_per_round=point.cohort_size,
                    seed=SEED,
                    evaluate_every=0,
                    evaluate=EvaluationOptions(
                        clients=evaluated, clients_per_call=point.cohort_size
                    ),
                    capacity="cohort",
                )
            whole = time.perf_counter() - watch
            timings = experiment.RunFiles(path).timings()
            in_rounds = timings["round_seconds"][first:].sum()
            seconds_to[what] = whole - in_rounds - timings["evaluation_seconds"][-1]
        seconds_to["evaluate"] = timings["evaluation_seconds"][-1]
        memory |= {"peak": memory_mib("VmHWM"), "files": memory_mib("RssFile")}
        on_disk = {entry.name: size_mib(entry) for entry in sorted(path.iterdir())}
    medians = {
        name.removesuffix("_seconds"): float(np.nanmedian(timings[name][point.warmup : rounds]))
        for name in TIMINGS
        if name in timings and name != "evaluation_seconds"
    }
    return {
        "run": point.algorithm,
        "population": point.population,
        "cohort_size": point.cohort_size,
        "rounds": point.rounds,
        "evaluated_clients": evaluated,
        "ms_of": {part: round(1000 * seconds, 3) for part, seconds in medians.items()},
        "seconds_to": {what: round(seconds, 3) for what, seconds in seconds_to.items()},
        "memory_mib": memory,
        "mib_on_disk": {name: mib for name, mib in on_disk.items() if mib >= 0.1},
        "examples_per_client": point.workload.examples_per_client,
    }


def memory_mapped_federation(point: Point, folder: pathlib.Path) -> FederatedDataset:
    """Makes files of all clients' examples: those to train on come first, then those to test on."""
    splits, num_examples = {}, 0
    sizes = {"train": point.workload.examples_per_client, "test": _TEST_EXAMPLES}
    for split, each in sizes.items():
        rows = _mapped(folder / f"{split}.npy", np.int64, each * point.population)
        for start in range(0, len(rows), _WRITTEN_AT_A_TIME):
            end = min(start + _WRITTEN_AT_A_TIME, len(rows))
            rows[start:end] = np.arange(num_examples + start, num_examples + end)
        splits[split] = ClientRows(rows, each * np.arange(point.population + 1))
        num_examples += len(rows)
    splits["validation"] = ClientRows.of([[]] * point.population)
    x = _mapped(folder / "x.npy", np.uint8, num_examples, *point.workload.image_shape)
    y = _mapped(folder / "y.npy", np.int32, num_examples)
    rng = np.random.default_rng(SEED)
    for start in range(0, num_examples, _WRITTEN_AT_A_TIME):
        some = y[start : start + _WRITTEN_AT_A_TIME]
        some[:] = rng.integers(_NUM_CLASSES, size=len(some), dtype=np.int32)
    return FederatedDataset(x, y, _NUM_CLASSES, Partition(**splits))


def _mapped(path: pathlib.Path, dtype: type, *shape: int) -> np.ndarray:
    """Returns an array of zeros in a new file."""
    return np.lib.format.open_memmap(path, "w+", dtype, shape)
