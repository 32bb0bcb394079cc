"""The round loop: select, train, update, evaluate, release, checkpoint; resume where it stopped."""

import json
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tqdm

from tff_pfl import evaluation
from tff_pfl.clients import (
    ClientStateStore,
    CohortDataSource,
    CohortIterator,
    deserialize,
    sample_cohort,
    serialize,
)
from tff_pfl.data import FederatedDataset, plot_partition
from tff_pfl.models import Model
from tff_pfl.templates import PersonalizedProcess
from tff_pfl.training.metrics_log import MetricsLog
from tff_pfl.training.run_directory import RunDirectory, flatten


class Evaluation(NamedTuple):
    """The metrics of one evaluation; see `tff_pfl.evaluation.summarize`.

    Attributes:
        round_num: Rounds done, from 1.
        metrics: By name.
    """

    round_num: int
    metrics: Mapping[str, float]


class Result(NamedTuple):
    """What a run leaves.

    Attributes:
        server_state: The final `ServerState`.
        final: The last evaluation.
        best: The evaluation with the highest mean personalized accuracy (or, for a model without
            accuracy, the lowest loss). It was chosen on the data it reports.
        seconds: Of training and evaluation, all sessions of the run together.
    """

    server_state: Any
    final: Evaluation
    best: Evaluation
    seconds: float


def train(
    process: PersonalizedProcess,
    model: Model,
    dataset: FederatedDataset,
    directory: RunDirectory,
    *,
    rounds: int,
    clients_per_round: int,
    seed: int = 0,
    evaluate_every: int = 1,
    split: str = "test",
    clients_per_call: int = 25,
    checkpoint_every: int = 1,
    title: str = "",
) -> Result:
    """Runs a process and evaluates it; goes on from the checkpoint in `directory`, if there is one.

    A run that is killed at any moment and started again gives the same numbers as one that was
    not: server state, client states and position are committed in one transaction, and metrics
    released after the last commit are released again.

    Args:
        process: The algorithm.
        model: Its model, for evaluation.
        dataset: The federation's data.
        directory: Where everything is written.
        rounds: Rounds in all, those before a resumption included.
        clients_per_round: Size of a cohort.
        seed: Of the cohorts.
        evaluate_every: Rounds between evaluations; 0: only after the last one.
        split: What is evaluated on.
        clients_per_call: Clients evaluated at a time.
        checkpoint_every: Rounds between commits.
        title: Shown beside the progress bar.
    """
    sample_cohort(seed, 0, dataset.num_clients, clients_per_round)  # refuses an impossible cohort
    dataset.partition.save(directory.file("partition.npz"))
    plot_partition(dataset, directory.file("partition.png"))
    evaluate = evaluation.build_evaluation(process, model)
    with ClientStateStore(
        lambda client_id: process.initialize_client(np.int32(client_id)),
        process.client_state_type,
        directory.file("checkpoint"),
    ) as store:
        source = CohortDataSource(dataset, store, process.client_type, seed=seed)
        checkpoint = _Checkpoint(store, process)
        state, iterator, progress = checkpoint.load(source)
        trained = _clients_seen(dataset.num_clients, clients_per_round, seed, iterator.round_num)
        log = MetricsLog(directory)
        bar = tqdm.tqdm(
            initial=iterator.round_num, total=rounds, desc=title, unit="round", disable=None
        )
        with bar:
            while iterator.round_num < rounds:
                start = time.perf_counter()
                output = process.next(state, iterator.select(clients_per_round))
                state = output.state
                iterator.update(output.clients)
                trained[iterator.cohort] = True
                round_num = iterator.round_num
                metrics = flatten(output.metrics, "/")
                timings = {"round_seconds": time.perf_counter() - start}
                last = round_num == rounds
                if last or (evaluate_every and round_num % evaluate_every == 0):
                    start = time.perf_counter()
                    columns = evaluation.evaluate_federation(
                        evaluate,
                        state,
                        source,
                        dataset,
                        split=split,
                        clients_per_call=clients_per_call,
                    )
                    columns["has_trained"] = trained.astype(np.int32)
                    log.release_clients(round_num, columns)
                    evaluated = evaluation.summarize(columns)
                    evaluated["num_clients_never_trained"] = int(np.sum(~trained))
                    metrics |= evaluated
                    timings["evaluation_seconds"] = time.perf_counter() - start
                    progress["evaluations"].append([round_num, evaluated])
                    bar.write(f"round {round_num}: {_one_line(evaluated)}")
                log.release(round_num, metrics, timings)
                progress["seconds"] += sum(timings.values())
                if last or round_num % checkpoint_every == 0:
                    checkpoint.save(state, iterator, progress)
                bar.set_postfix(_postfix(metrics, timings))
                bar.update()
    evaluations = [Evaluation(*pair) for pair in progress["evaluations"]]
    return Result(state, evaluations[-1], max(evaluations, key=_quality), progress["seconds"])


class _Checkpoint:
    """A consistent generation of a run: what is committed beside the states of the clients."""

    def __init__(self, store: ClientStateStore, process: PersonalizedProcess):
        self._store = store
        self._process = process
        self._state_type = process.initialize.type_signature.result.member

    def load(self, source: CohortDataSource) -> tuple[Any, CohortIterator, dict]:
        """`(server state, iterator, progress)`: those committed last, or those of a new run."""
        committed = self._store.attachment("iterator")
        if committed is None:
            new = {"evaluations": [], "seconds": 0.0}
            return self._process.initialize(), source.iterator(), new
        return (
            deserialize(self._store.attachment("server_state"), self._state_type),
            CohortIterator.from_bytes(committed),
            json.loads(self._store.attachment("progress")),
        )

    def save(self, state, iterator: CohortIterator, progress) -> None:
        self._store.commit(
            {
                "server_state": serialize(state, self._state_type),
                "iterator": iterator.to_bytes(),
                "progress": json.dumps(progress).encode(),
            }
        )


def _clients_seen(num_clients, cohort_size, seed, rounds) -> np.ndarray:
    """bool `[num_clients]`: who took part in the first `rounds` rounds."""
    seen = np.zeros(num_clients, bool)
    for round_num in range(rounds):
        seen[sample_cohort(seed, round_num, num_clients, cohort_size)] = True
    return seen


def _quality(evaluated: Evaluation) -> float:
    for name, value in evaluated.metrics.items():
        if name.startswith("personalized/") and name.endswith("/accuracy_mean"):
            return value
    return -next(v for name, v in evaluated.metrics.items() if name.startswith("personalized/"))


def _one_line(metrics: Mapping[str, float]) -> str:
    names = [name for name in metrics if name.endswith("_mean")]
    return ", ".join(f"{name.removesuffix('_mean')} {metrics[name]:.4f}" for name in names)


def _postfix(metrics, timings) -> dict[str, str]:
    """The figures that matter, short enough for one line."""
    shown = {"s/round": f"{timings['round_seconds']:.2f}"}
    for quantity in ("loss", "accuracy"):
        for name, value in metrics.items():
            if name.endswith(f"/{quantity}"):
                shown[name] = f"{value:.3f}"
                break
    return shown
