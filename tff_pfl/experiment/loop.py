"""The round loop: select, train, update, evaluate, release, checkpoint; resume where it stopped."""

import time
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import tqdm

from tff_pfl import evaluation
from tff_pfl.clients import (
    ClientStateStore,
    CohortDataSource,
    sample_cohort,
)
from tff_pfl.data import FederatedDataset, plot_partition
from tff_pfl.experiment.checkpoint import Checkpoint
from tff_pfl.experiment.metrics_log import MetricsLog
from tff_pfl.experiment.run_directory import OutputDirectoryError, RunDirectory, flatten
from tff_pfl.models import Model
from tff_pfl.templates import PersonalizedProcess


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
    evaluate: evaluation.EvaluationOptions | None = None,
    evaluate_new_clients: evaluation.NewClientsEvaluation | None = None,
    checkpoint_every: int = 1,
    capacity: int | Literal["cohort"] | None = None,
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
        evaluate: What is evaluated; by default each client's models on its own test examples.
        evaluate_new_clients: What is evaluated after the last round besides.
        checkpoint_every: Rounds between commits.
        capacity: See `CohortDataSource`. Results do not depend on it, up to rounding.
        title: Shown beside the progress bar.

    Raises:
        OutputDirectoryError: If the run in `directory` has other data, or has done more rounds, or
            its files are not as they were at the checkpoint.
        ForeignStateError: If it is one of another process.
    """
    sample_cohort(seed, 0, dataset.num_clients, clients_per_round)  # refuses an impossible cohort
    options = evaluate or evaluation.EvaluationOptions()
    evaluator = evaluation.Evaluator(process, model, dataset, options)
    with ClientStateStore(
        lambda client_id: process.initialize_client(np.int32(client_id)),
        process.client_state_type,
        directory.file("checkpoint"),
    ) as store:
        source = CohortDataSource(dataset, store, process.client_type, seed=seed, capacity=capacity)
        checkpoint = Checkpoint(store, process, dataset)
        state, iterator, progress = checkpoint.load(source)
        done = iterator.round_num
        if done > rounds:
            raise OutputDirectoryError(
                f"The run in {directory.path} has done {done} rounds already, {rounds} are asked "
                f"for. Ask for {done} or more."
            )
        selected = _clients_selected(dataset.num_clients, clients_per_round, seed, done)
        # A run that was to be longer may have stopped here without an evaluation.
        evaluated_rounds = [round_num for round_num, _ in progress["evaluations"]]
        reopen = done == rounds and rounds not in evaluated_rounds
        log = MetricsLog(directory, done, progress["released"], reopen=reopen)
        if done == 0:  # else it is there, of the same data
            dataset.partition.save(directory.file("partition.npz"))
            log.record("partition.npz")
            plot_partition(dataset, directory.file("partition.png"))

        def finish_round(round_num, metrics, timings):
            due = evaluate_every and round_num % evaluate_every == 0
            if due or round_num == rounds:
                start = time.perf_counter()
                columns = evaluator(state, source, is_last=round_num == rounds)
                columns["was_selected"] = selected.astype(np.int32)
                log.release_table(f"clients/round_{round_num:06d}.csv", columns)
                evaluated = evaluation.summarize(columns)
                evaluated["num_clients_never_selected"] = int(np.sum(~selected))
                if evaluate_new_clients is not None and round_num == rounds:
                    columns = evaluate_new_clients(state)
                    log.release_table("new_clients.csv", columns)
                    evaluated |= evaluation.summarize(columns)
                snapshot = evaluation.take_snapshot(
                    process,
                    state,
                    store,
                    dataset.num_clients,
                    clients_per_call=options.clients_per_call,
                )
                if snapshot:
                    log.release_snapshot(round_num, snapshot)
                metrics = metrics | evaluated
                timings["evaluation_seconds"] = time.perf_counter() - start
                progress["evaluations"].append([round_num, evaluated])
                bar.write(f"round {round_num}: {_one_line(evaluated)}")
            log.release(round_num, metrics, timings)
            progress["seconds"] += sum(timings.values())
            if round_num == rounds or round_num % checkpoint_every == 0:
                progress["released"] = log.released
                checkpoint.save(state, iterator, progress)

        with tqdm.tqdm(initial=done, total=rounds, desc=title, unit="round", disable=None) as bar:
            if reopen:
                finish_round(done, progress["metrics"], {})
            while iterator.round_num < rounds:
                start = time.perf_counter()
                output = process.next(state, iterator.select(clients_per_round))
                state = output.state
                iterator.update(output.clients)
                timings = {"round_seconds": time.perf_counter() - start}
                selected[iterator.cohort] = True
                metrics = flatten(output.metrics, "/")
                metrics = {name: np.asarray(value).item() for name, value in metrics.items()}
                progress["metrics"] = metrics
                for warning in _warnings(metrics):
                    bar.write(f"round {iterator.round_num}: {warning}")
                finish_round(iterator.round_num, metrics, timings)
                bar.set_postfix(_postfix(metrics, timings))
                bar.update()
    evaluations = [Evaluation(*pair) for pair in progress["evaluations"]]
    return Result(state, evaluations[-1], max(evaluations, key=_quality), progress["seconds"])


def _clients_selected(num_clients, cohort_size, seed, rounds) -> np.ndarray:
    """bool `[num_clients]`: who was in a cohort of the first `rounds` rounds."""
    selected = np.zeros(num_clients, bool)
    for round_num in range(rounds):
        selected[sample_cohort(seed, round_num, num_clients, cohort_size)] = True
    return selected


def _warnings(metrics: Mapping[str, float]) -> list[str]:
    """What a user should know of a round at once."""
    warnings = []
    for name, value in metrics.items():
        exchange, _, quantity = name.rpartition("/")
        if quantity == "num_nonfinite" and value:
            warnings.append(
                f"{exchange}: {value} clients left out, for a result that is not finite, a "
                "negative weight or a number of examples that their rows cannot hold"
            )
        if quantity == "server_kept" and value:
            warnings.append(f"{exchange}: the server keeps its state, no sound update came")
    return warnings


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
