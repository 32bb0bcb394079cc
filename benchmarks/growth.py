"""Measures time, memory and disk of rounds and runs as cohorts and federations grow.

`rounds_at` measures rounds of an algorithm whose clients keep a model. The states of all clients
are on disk before the first round. `run_at` measures a training run like `programs/train.py`, after
the data are made; only clients that took part have a state. The data are in memory-mapped files.
Labels are random. Inputs are zeros, stored as holes of the file, so a round does not include the
time to read inputs from disk.
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

from benchmarks.contestants.common import lognormal_sizes
from benchmarks.timing import in_new_processes, memory_mib, size_mib, spread
from benchmarks.workloads import RUNTIMES, SEED, Workload, installed
from tff_pfl.clients import ClientStateStore, CohortDataSource
from tff_pfl.data import ClientRows, FederatedDataset, Partition
from tff_pfl.evaluation import Evaluation
from tff_pfl.experiment import Experiment, RunFiles, train
from tff_pfl.experiment.background import Background, Stopwatch
from tff_pfl.templates import compose

_COHORT_SIZE = 100  # or all clients of a smaller federation
# So few that writing the initial states takes less memory than a round.
_STATES_PER_COMMIT = 100
_EVALUATED_CLIENTS = 1000
_TEST_EXAMPLES = 4  # of each client
_NUM_CLASSES = 10
_WRITTEN_AT_A_TIME = 1 << 20  # numbers; bounds memory
_PEAK = {"peak": "VmHWM", "files": "RssFile"}  # see `memory_mib`


@dataclasses.dataclass(frozen=True)
class Point:
    """A measurement, made in its own process.

    Attributes:
        workload: The model, data and training of a client. Its number of clients is not used.
        population: The number of clients in the federation.
        rounds: The number of measured rounds.
        warmup: The number of rounds before the measured ones.
        cohort_size: The number of clients in a round.
        algorithm: The name of the algorithm.
        runtime: The name of the runtime.
        sigma: The spread of the clients' lognormal sizes; 0 for equal ones.
    """

    workload: Workload
    population: int
    rounds: int
    warmup: int
    cohort_size: int
    algorithm: str
    runtime: str = "graph_vectorized"
    sigma: float = 0.0

    def record(self, kind: str, rest: dict[str, Any]) -> dict[str, Any]:
        """Returns a record of this point; the key of the algorithm's name is `kind`."""
        names = "cohort_size", "population", "rounds", "runtime", "sigma"
        sizes = {key: getattr(self, key) for key in names}
        training = {
            key: getattr(self.workload, key)
            for key in ("examples_per_client", "epochs", "batch_size")
        }
        return {kind: self.algorithm, **sizes, **rest, **training}


@contextlib.contextmanager
def _at(point: Point) -> Iterator[tuple]:
    """Yields the algorithm of a point, an empty folder, and the memory in use at the start."""
    with (
        installed(RUNTIMES[point.runtime]()),
        tempfile.TemporaryDirectory(prefix="benchmark_") as folder,
    ):
        sizes = point.population, point.cohort_size
        algorithm = point.workload.algorithm(point.algorithm, *sizes)
        yield algorithm, pathlib.Path(folder), memory_mib(start="VmRSS")


def measure_scaling(
    cohort_sizes: Sequence[int], populations: Sequence[int], **point_options: Any
) -> Iterator[dict[str, Any]]:
    """Yields a record of rounds for each size of cohort and federation, each from a new process.

    Args:
        cohort_sizes: The first series: sizes of cohorts. The federation is as large as the largest
            cohort.
        populations: The second series: sizes of federations. The cohort has 100 clients, or all
            clients of a smaller federation. A point in both series is measured once.
        **point_options: Other attributes of `Point`.
    """
    sizes = [(size, max(cohort_sizes)) for size in cohort_sizes]
    sizes += [(min(_COHORT_SIZE, population), population) for population in populations]
    points = [
        Point(cohort_size=cohort_size, population=population, **point_options)
        for cohort_size, population in dict.fromkeys(sizes)
    ]
    return in_new_processes(rounds_at, points, "scaling")


def measure_unequal(
    cohort_sizes: Sequence[int], populations: Sequence[int], **point_options: Any
) -> Iterator[dict[str, Any]]:
    """Yields a record of rounds of unequal clients, without and with compilation.

    Args:
        cohort_sizes: The sizes of cohorts.
        populations: The sizes of federations. A smaller one takes part as a whole.
        **point_options: Other attributes of `Point`.
    """
    sizes = [(min(number, of), of) for of in populations for number in cohort_sizes]
    points = [
        Point(cohort_size=number, population=of, runtime=runtime, sigma=1.0, **point_options)
        for number, of in dict.fromkeys(sizes)
        for runtime in ("graph_loop", "graph_compiled")
    ]
    return in_new_processes(rounds_at, points, "unequal")


def measure_runs(populations: Sequence[int], **point_options: Any) -> Iterator[dict[str, Any]]:
    """Yields a record of a whole run for each size of federation, each from a new process.

    Args:
        populations: The sizes of federations. Cohorts are chosen as in `measure_scaling`.
        **point_options: Other attributes of `Point`.
    """
    points = [
        Point(cohort_size=min(_COHORT_SIZE, population), population=population, **point_options)
        for population in populations
    ]
    return in_new_processes(run_at, points, "runs")


def rounds_at(point: Point) -> dict[str, Any]:
    """Measures rounds in this process.

    Returns:
        A record. `seconds_per_round`, `rounds_per_second` and `ms_per_client` describe whole
        rounds. `ms_of` has the medians of their parts: `select`, `compute`, `update`, and `write`,
        which writes the previous round during `compute`. `training` is `compute` alone, on the same
        clients, in turn with the rounds; `round_over_training` is the ratio of the medians.
        `memory_mib` is the resident memory of the process, without GPU memory: `start` before
        clients and data are made, and `peak` at its highest. About `files` of the peak are pages of
        files, libraries and the store, which the kernel drops when memory is needed.
    """
    with _at(point) as (algorithm, folder, memory), contextlib.ExitStack() as resources:
        path, population = folder / "states", point.population
        process = compose(algorithm, point.workload.examples_type(), SEED)
        store = ClientStateStore(process.initialize_clients, process.client_state_type, path)
        resources.enter_context(store)
        state = process.initialize_client(np.int32(0))
        for start in range(0, population, _STATES_PER_COMMIT):
            client_ids = range(start, min(start + _STATES_PER_COMMIT, population))
            store.put(client_ids, [state] * len(client_ids))
            store.commit()
        dataset = memory_mapped_federation(point, folder)
        iterator = CohortDataSource(dataset, store, process.client_type, seed=SEED).iterator()
        background = resources.enter_context(Background())
        state, measured = process.initialize(), []
        for _ in range(point.warmup + point.rounds):
            watch = Stopwatch()
            state = _round(process, state, iterator, store, background, watch, point.cohort_size)
            measured.append(watch.seconds)
        memory |= memory_mib(**_PEAK)
        states_on_disk = size_mib(path)
    counted = measured[point.warmup :]
    seconds = {part: [parts[part] for parts in counted] for part in measured[0]}
    medians = {part: statistics.median(values) for part, values in seconds.items()}
    whole = medians.pop("round")
    found = {
        "seconds_per_round": spread(seconds["round"]),
        "rounds_per_second": round(1 / whole, 3),
        "ms_per_client": round(1000 * whole / point.cohort_size, 4),
        "round_over_training": round(whole / medians["training"], 3),
        "ms_of": {part: round(1000 * median, 3) for part, median in medians.items()},
        "memory_mib": memory,
        "states_on_disk_mib": states_on_disk,
    }
    return point.record("scaling", found)


def _round(process, server_state, iterator, store, background, watch, cohort_size):
    """Runs the next round, and then its training alone; returns the new server state."""

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


def run_at(point: Point) -> dict[str, Any]:
    """Measures a run in this process, and then resumes it for another round.

    Returns:
        A record. `ms_of` has the medians of the columns of `timings.csv` for a round and its parts.
        `seconds_to` has the seconds of single steps: `make_data` makes and checks the files of
        data, `start` starts the run with its partition and picture, `evaluate` evaluates the
        sample, and `resume` resumes the run up to its next round. `memory_mib` is as in
        `rounds_at`. `mib_on_disk` has the sizes of the run's folders and files.
    """
    evaluated = min(_EVALUATED_CLIENTS, point.population)
    how = {"every": 0, "clients": evaluated, "clients_per_call": point.cohort_size}
    with _at(point) as (algorithm, folder, memory), contextlib.redirect_stdout(io.StringIO()):
        watch = time.perf_counter()
        dataset = memory_mapped_federation(point, folder)
        seconds_to = {"make_data": time.perf_counter() - watch}
        rounds, path = point.warmup + point.rounds, folder / "run"
        for step, first, number in (("start", 0, rounds), ("resume", rounds, rounds + 1)):
            watch = time.perf_counter()
            experiment = Experiment(
                algorithm,
                dataset,
                rounds=number,
                clients_per_round=point.cohort_size,
                seed=SEED,
                evaluation=Evaluation(**how),
            )
            train(experiment, path, resume=step == "resume", verbose=False)
            whole = time.perf_counter() - watch
            timings = RunFiles(path).timings
            evaluation = timings.pop("evaluation_seconds")
            seconds_to[step] = whole - timings["round_seconds"][first:].sum() - evaluation.iloc[-1]
        seconds_to["evaluate"] = evaluation.iloc[-1]
        memory |= memory_mib(**_PEAK)
        on_disk = {entry.name: size_mib(entry) for entry in sorted(path.iterdir())}
    medians = {
        name.removesuffix("_seconds"): float(np.nanmedian(values[point.warmup : rounds]))
        for name, values in timings.items()
        if name != "round"
    }
    found = {
        "evaluated_clients": evaluated,
        "ms_of": {part: round(1000 * seconds, 3) for part, seconds in medians.items()},
        "seconds_to": {step: round(seconds, 3) for step, seconds in seconds_to.items()},
        "memory_mib": memory,
        "mib_on_disk": {name: mib for name, mib in on_disk.items() if mib >= 0.1},
    }
    return point.record("run", found)


def memory_mapped_federation(point: Point, folder: pathlib.Path) -> FederatedDataset:
    """Makes files of all clients' examples: first training examples, then test examples."""
    splits, num_examples = {}, 0
    means = {"train": point.workload.examples_per_client, "test": _TEST_EXAMPLES}
    for split, mean in means.items():
        sizes = lognormal_sizes(point.population, mean, point.sigma)
        ends = np.cumsum([0, *sizes])
        rows = _mapped(folder / f"{split}.npy", np.int64, ends[-1])
        for start, part in _parts(rows):
            part[:] = num_examples + start + np.arange(len(part))
        splits[split] = ClientRows(rows, ends)
        num_examples += len(rows)
    splits["validation"] = ClientRows.of([[]] * point.population)
    x = _mapped(folder / "x.npy", np.uint8, num_examples, *point.workload.image_shape)
    y = _mapped(folder / "y.npy", np.int32, num_examples)
    rng = np.random.default_rng(SEED)
    for _, part in _parts(y):
        part[:] = rng.integers(_NUM_CLASSES, size=len(part), dtype=np.int32)
    return FederatedDataset(x, y, _NUM_CLASSES, Partition(**splits))


def _mapped(path: pathlib.Path, dtype: type, *shape: int) -> np.ndarray:
    """Returns an array of zeros in a new file."""
    return np.lib.format.open_memmap(path, "w+", dtype, shape)


def _parts(array: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yields consecutive parts of an array, each with its start."""
    for start in range(0, len(array), _WRITTEN_AT_A_TIME):
        yield start, array[start : start + _WRITTEN_AT_A_TIME]
