"""What whole runs of training cost in federations of any size: time, memory and disk.

A run is what `programs/train.py` does once the data are there: cohorts of an algorithm on the model
of `linear`, a commit after each round, and an evaluation of a sample of clients at the end. Only
clients that took part have a state on disk. Data lie in memory-mapped files: labels at random, and
inputs of zeros, whose file has holes in their place and takes no room. So the time to read inputs
from a disk is not part of a round.
"""

import contextlib
import dataclasses
import io
import pathlib
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow_federated as tff

from benchmarks.processes import process_of
from benchmarks.runtimes import RUNTIMES
from benchmarks.scaling import in_new_processes, memory_mib, size_mib
from benchmarks.workloads import SEED, Workload
from tff_pfl import experiment
from tff_pfl.data import ClientRows, FederatedDataset, Partition
from tff_pfl.evaluation import EvaluationOptions
from tff_pfl.experiment.metrics_log import TIMINGS

_COHORT_SIZE = 100
_EVALUATED_CLIENTS = 1000
_TEST_EXAMPLES = 4  # of each client
_NUM_CLASSES = 10
_WRITTEN_AT_A_TIME = 1 << 20  # numbers; bounds memory


@dataclasses.dataclass(frozen=True)
class TrainingRun:
    """What is measured in one process.

    Attributes:
        workload: Model, examples and training of a client; its numbers of clients are not used.
        population: Clients of the federation; a cohort has 100 of them, or all if they are fewer.
        rounds: Rounds that count.
        warmup: Rounds before that.
        algorithm: By name.
    """

    workload: Workload
    population: int
    rounds: int
    warmup: int
    algorithm: str = "ditto"


def measure_runs(runs: Iterable[TrainingRun]) -> Iterator[dict[str, Any]]:
    """Yields a record a run, each measured in a new process; see `measure_run`."""
    return in_new_processes(measure_run, list(runs), "runs")


def measure_run(run: TrainingRun) -> dict[str, Any]:
    """Measures a run in this process, and its resumption by another round.

    Returns:
        A record. `ms_of` has the medians of the columns of `timings.csv` for a round and its parts;
        `seconds_to` what is there once: to `make_data` of files and to check them, to `start` the
        run, with its partition and picture, to `evaluate` the sample, and to `resume` the run, up
        to its next round. `memory_mib` is as of `measure_point`, `mib_on_disk` what the folders and
        files of the run occupy.
    """
    clients = min(_COHORT_SIZE, run.population)
    context = RUNTIMES["graph_vectorized"]()
    with (
        contextlib.redirect_stdout(io.StringIO()),
        tff.framework.get_context_stack().install(context),
        tempfile.TemporaryDirectory(prefix="benchmark_") as folder,
    ):
        process = process_of(
            run.algorithm, run.workload, num_clients=run.population, clients_per_round=clients
        )
        memory = {"start": memory_mib("VmRSS")}
        watch = time.perf_counter()
        dataset = _federation(run, pathlib.Path(folder))
        seconds_to = {"make_data": time.perf_counter() - watch}
        rounds, path = run.warmup + run.rounds, pathlib.Path(folder) / "run"
        for what, number in (("start", rounds), ("resume", rounds + 1)):
            watch = time.perf_counter()
            with experiment.RunDirectory(path, {}, resume=what == "resume") as directory:
                experiment.train(
                    process,
                    run.workload.model(),
                    dataset,
                    directory,
                    rounds=number,
                    clients_per_round=clients,
                    seed=SEED,
                    evaluate_every=0,
                    evaluate=EvaluationOptions(
                        clients=min(_EVALUATED_CLIENTS, run.population), clients_per_call=clients
                    ),
                    capacity="cohort",
                )
            whole = time.perf_counter() - watch
            timings = experiment.RunFiles(path).timings()
            first = 0 if what == "start" else rounds
            of_rounds = timings["round_seconds"][first:].sum()
            seconds_to[what] = whole - of_rounds - timings["evaluation_seconds"][-1]
        seconds_to["evaluate"] = timings["evaluation_seconds"][-1]
        memory |= {"peak": memory_mib("VmHWM"), "files": memory_mib("RssFile")}
        on_disk = {entry.name: size_mib(entry) for entry in path.iterdir()}
    counted = {name: timings[name][run.warmup : rounds] for name in TIMINGS if name in timings}
    medians = {
        name.removesuffix("_seconds"): statistics.median(values)
        for name, values in counted.items()
        if name != "evaluation_seconds"
    }
    return {
        "run": run.algorithm,
        "population": run.population,
        "cohort_size": clients,
        "rounds": run.rounds,
        "evaluated_clients": min(_EVALUATED_CLIENTS, run.population),
        "ms_of": {part: round(1000 * seconds, 3) for part, seconds in medians.items()},
        "seconds_to": {what: round(seconds, 3) for what, seconds in seconds_to.items()},
        "memory_mib": memory,
        "mib_on_disk": {name: mib for name, mib in sorted(on_disk.items()) if mib >= 0.1},
        "examples_per_client": run.workload.examples_per_client,
    }


def _federation(run: TrainingRun, folder: pathlib.Path) -> FederatedDataset:
    """The training examples of all clients come first, then their test examples."""
    splits, num_examples = {}, 0
    sizes = {"train": run.workload.examples_per_client, "validation": 0, "test": _TEST_EXAMPLES}
    for split, each in sizes.items():
        rows = _mapped(folder / f"{split}.npy", np.int64, each * run.population)
        for start in range(0, len(rows), _WRITTEN_AT_A_TIME):
            end = min(start + _WRITTEN_AT_A_TIME, len(rows))
            rows[start:end] = np.arange(num_examples + start, num_examples + end)
        splits[split] = ClientRows(rows, each * np.arange(run.population + 1))
        num_examples += len(rows)
    x = _mapped(folder / "x.npy", np.uint8, num_examples, *run.workload.image_shape)
    y = _mapped(folder / "y.npy", np.int32, num_examples)
    rng = np.random.default_rng(SEED)
    for start in range(0, num_examples, _WRITTEN_AT_A_TIME):
        some = y[start : start + _WRITTEN_AT_A_TIME]
        some[:] = rng.integers(_NUM_CLASSES, size=len(some), dtype=np.int32)
    return FederatedDataset(x, y, _NUM_CLASSES, Partition(**splits))


def _mapped(path, dtype, *shape) -> np.ndarray:
    """An array of zeros in a new file."""
    if not shape[0]:  # there is nothing to map
        return np.zeros(shape, dtype)
    return np.lib.format.open_memmap(path, "w+", dtype, shape)
