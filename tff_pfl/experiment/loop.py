"""Trains and evaluates a process in a directory; goes on where a run was stopped."""

import operator
import os
from collections.abc import Iterator, Sequence
from typing import Literal

import tensorflow_federated as tff
import tqdm

from tff_pfl import evaluation, runtime
from tff_pfl.clients import EVERYBODY_REPORTS, CohortDataSource, Participation
from tff_pfl.data import FederatedDataset
from tff_pfl.experiment.checkpoint import Checkpoint, client_states
from tff_pfl.experiment.early_stop import EarlyStop
from tff_pfl.experiment.memory import check_server_memory
from tff_pfl.experiment.metrics_log import MetricsLog
from tff_pfl.experiment.rounds import Rounds, Schedule
from tff_pfl.experiment.run_directory import CHECKPOINT, OutputDirectoryError, RunDirectory
from tff_pfl.experiment.summary import LateMean, Result, best_on, write_summary
from tff_pfl.experiment.versions import record_versions
from tff_pfl.kinds import check_kind
from tff_pfl.models import Model
from tff_pfl.privacy import PrivacyLoss
from tff_pfl.ranges import takes, whole
from tff_pfl.templates import PersonalizedProcess


@takes(rounds=whole(1), seed=whole(0), evaluate_every=whole(0), checkpoint_every=whole(1))
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
    participation: Participation = EVERYBODY_REPORTS,
    early_stop: EarlyStop | None = None,
    privacy: PrivacyLoss | None = None,
    capacity: int | Literal["cohort"] | None = None,
    release_managers: Sequence[tff.program.ReleaseManager] = (),
    title: str = "training",
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
        seed: Seed of the cohorts.
        evaluate_every: Rounds between evaluations; 0: only after the last one.
        evaluate: The options of evaluations; by default each client's models are evaluated on its
            own test examples.
        evaluate_new_clients: Evaluates clients that did not train, after the last round.
        checkpoint_every: Rounds between commits.
        participation: Selects clients in a round, and says which of them report. Unless everybody
            does, metrics have the numbers of both, as `participation/num_selected`.
        early_stop: May end the run before, by the evaluations every `evaluate_every` rounds.
            The round that it ends after is evaluated as the last one.
        privacy: Counts what the process reveals of its clients; metrics then have
            `privacy/epsilon`, that of all rounds so far.
        capacity: See `CohortDataSource`. Results do not depend on it, up to rounding.
        release_managers: Receive the metrics and seconds of each round, too, as `{name: number}`
            under the number of the round, after they were written to `directory`. If one fails,
            there is a warning, and the run and the others go on. A run that is resumed releases
            rounds after its checkpoint again.
        title: The title of the progress bar and of the summary.

    Raises:
        OutputDirectoryError: If the run in `directory` has other data, cohorts that are drawn
            otherwise or of another size, or other noise or privacy, or has done more rounds, or
            its files are not as they were at the checkpoint, or that is gone.
        ForeignStateError: If it is one of another process.
        ValueError: If the early stop lacks what it needs, see `EarlyStop.check`; or cohorts are
            impossible, see `Participation.check`, or others than `privacy` counts, see
            `Accountant.check` and `PrivacyLoss.check`, or than `process` was made for, see
            `Federation.check`; or a number is out of range; or the model has fewer logits than
            there are classes.
        NobodyReportedError: In a round without clients, if it is not the graph runtime's.
        RuntimeError: In a thread in which no context was set.
        MemoryError: If the server's state is larger than the memory can hold.
    """
    _check_directory(directory)
    tip = "FederatedDataset.from_client_arrays makes one of each client's arrays."
    check_kind("The data set", dataset, FederatedDataset, tip)
    runtime.check_context()
    clients_per_round = operator.index(clients_per_round)
    options = evaluate or evaluation.EvaluationOptions()
    check_server_memory(process)
    model.check_classes(dataset.num_classes)
    participation.check(dataset.num_clients, clients_per_round)
    process.made_for.check(dataset.num_clients, clients_per_round)
    if privacy is not None:
        privacy.accountant.check(dataset.num_clients, clients_per_round, participation)
        privacy.check(process.noise_multiplier)
    if early_stop is not None:
        early_stop.check(process, model, dataset, options)
        early_stop.check_every(evaluate_every)
    schedule = Schedule(rounds, evaluate_every, checkpoint_every, early_stop)
    with client_states(process, directory.file(CHECKPOINT)) as store:
        source = CohortDataSource(
            dataset,
            store,
            process.client_type,
            seed=seed,
            capacity=capacity,
            participation=participation,
        )
        checkpoint = Checkpoint(store, process, dataset, clients_per_round)
        progress = checkpoint.load(source)
        done = progress.round_num
        if done > rounds:
            raise OutputDirectoryError(
                f"The run in {directory.path} has done {done} rounds already, {rounds} are asked "
                f"for. Ask for {done} or more."
            )
        checkpoint.count_privacy(progress, privacy)
        is_over = done == rounds or schedule.stopped(progress.evaluations) is not None
        log, reopens = _open_files(directory, dataset, checkpoint, progress, schedule, is_over)
        if not is_over:
            directory.delete("summary.json")  # of fewer rounds; a run without one is not finished
        directory.write_settings()
        evaluator = evaluation.Evaluator(process, model, dataset, options)
        with tqdm.tqdm(initial=done, total=rounds, desc=title, unit="round", disable=None) as bar:
            for warning in _warnings(directory, dataset, options.split, done):
                bar.write(warning)
            Rounds(
                process,
                dataset,
                source,
                options,
                evaluator,
                evaluate_new_clients,
                schedule,
                progress,
                checkpoint,
                log,
                release_managers,
                bar,
            ).run(clients_per_round, reopens=reopens)
    evaluations = progress.evaluations
    result = Result(
        title,
        evaluations[-1],
        best_on("validation", evaluations),
        best_on("test", evaluations),
        LateMean.of(evaluations, options.late_share),
        progress.seconds,
        schedule.stopped(evaluations),
        privacy and privacy.summary(progress.round_num),
        progress.server_state,
    )
    write_summary(directory, result)
    return result


def _check_directory(directory: RunDirectory) -> None:
    """Checks that a directory is open, and has the checkpoint of the run in it, if there is one."""
    tip = "`with tff_pfl.RunDirectory(path, settings) as directory` makes one."
    check_kind("The directory", directory, RunDirectory, tip)
    if not directory.is_open:
        raise ValueError(f"The directory {directory.path} is not open: {tip}")
    if directory.has("metrics.csv") and not directory.has(os.path.join(CHECKPOINT, "data.mdb")):
        raise OutputDirectoryError(
            f"The run in {directory.path} cannot go on: its {CHECKPOINT} is gone. Start it anew "
            "with --overwrite, or in another directory."
        )


def _warnings(directory, dataset, split, done) -> Iterator[str]:
    """Records the versions of the run, and yields what its user should know of it."""
    if changes := record_versions(directory, done, directory.settings.get("imports") or ()):
        yield (
            f"round {done}: warning: the run goes on with other versions, or other code, and "
            f"numbers may differ from here on: {'; '.join(changes)}"
        )
    if not dataset.sizes(split).any():
        yield (f"warning: no client has {split} examples: all that is evaluated on them is nan")


def _open_files(
    directory, dataset, checkpoint, progress, schedule, is_over
) -> tuple[MetricsLog, bool]:
    """Opens the files of a run that begins or goes on.

    A run that was to be longer may have stopped here without all that is evaluated at its end, or
    been stopped while it made up for that; a run that is made longer has an evaluation that a run
    from the start would not have had. `progress` forgets both.

    Returns:
        The log, and whether the last round is to be finished anew.
    """
    done, log = progress.round_num, _open_log(directory, dataset, progress)
    reopens = log.rounds < done or bool(is_over and progress.ended < done)
    goes_on = bool(not is_over and progress.ended)
    if reopens or (goes_on and not schedule.is_regular(done)):
        progress.forget_evaluation()
    if reopens or goes_on:
        # Files must not be those of a commit when they are written again.
        progress.released = log.released_before_the_end(done - reopens)
        progress.ended = 0
        checkpoint.save(progress)
        log = _open_log(directory, dataset, progress)
    return log, reopens


def _open_log(directory, dataset, progress) -> MetricsLog:
    log = MetricsLog(directory, progress.round_num, progress.released)
    if progress.round_num == 0:  # else it is there, of the same data
        dataset.partition.save(directory.file("partition.npz"))
        log.record("partition.npz")
    return log
