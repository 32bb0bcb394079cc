"""Trains and evaluates a process, and resumes stopped runs."""

import operator
import os
from collections.abc import Iterator, Sequence
from typing import Literal

import tensorflow_federated as tff

from tff_pfl import evaluation, runtime
from tff_pfl.arguments.kinds import check_kind
from tff_pfl.arguments.ranges import takes, whole
from tff_pfl.clients import EVERYBODY_REPORTS, CohortDataSource, Ladder, Participation
from tff_pfl.data import FederatedDataset
from tff_pfl.experiment.checkpoint import Checkpoint, client_states
from tff_pfl.experiment.early_stop import EarlyStop
from tff_pfl.experiment.identity import of_run
from tff_pfl.experiment.memory import check_server_memory
from tff_pfl.experiment.metrics_log import MetricsLog
from tff_pfl.experiment.round_warnings import RoundWarnings
from tff_pfl.experiment.rounds import Rounds, Schedule
from tff_pfl.experiment.run_directory import CHECKPOINT, OutputDirectoryError, RunDirectory
from tff_pfl.experiment.run_files import write_quantities
from tff_pfl.experiment.summary import LateMean, Result, best_on, write_summary
from tff_pfl.experiment.versions import record_versions
from tff_pfl.models import Model
from tff_pfl.output.progress import progress_bar
from tff_pfl.privacy import PrivacyLoss
from tff_pfl.templates import PersonalizedProcess


@takes(rounds=whole(1), seed=whole(0), evaluate_every=whole(0), checkpoint_every=whole(1))
@runtime.current_or_graph_context()
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
    capacity: int | Literal["cohort"] | Ladder | None = None,
    release_managers: Sequence[tff.program.ReleaseManager] = (),
    title: str = "training",
    verbose: bool = True,
) -> Result:
    """Trains and evaluates a process, starting from the checkpoint in `directory` if it exists.

    A run that is killed at any moment and resumed gives the same numbers as an uninterrupted one:
    server state, client states and position are committed in one transaction, and metrics released
    after the last commit are released again.

    Rounds are computed in the context of TFF that was set in this thread, such as by
    `set_graph_context`, or else in that of `create_graph_context()`.

    Args:
        process: The process to train.
        model: The model of the process, for evaluation.
        dataset: The federation's data.
        directory: The open directory of the run, which receives all files.
        rounds: The number of rounds of the run, including those before it was resumed.
        clients_per_round: The number of clients in a cohort.
        seed: The seed of the cohorts.
        evaluate_every: Rounds between evaluations; 0: only after the last round.
        evaluate: The options of evaluations. By default each client's models are evaluated on its
            own test examples.
        evaluate_new_clients: Evaluates clients that did not train, after the last round.
        checkpoint_every: Rounds between commits.
        participation: Selects the clients of a round and decides which of them report. Unless all
            clients always report, metrics count both, such as `participation/num_selected`.
        early_stop: Ends the run before `rounds`, based on the evaluations every `evaluate_every`
            rounds. The round after which it ends the run is evaluated as the last one.
        privacy: Counts the privacy loss of the process. Metrics then have `privacy/epsilon`, which
            covers all rounds so far.
        capacity: See `CohortDataSource`. Results do not depend on it, up to rounding.
        release_managers: Receive the metrics and seconds of each round as `{name: number}` under
            the round's number, after `directory` has received them. If a manager fails, a warning
            is shown; the run and the other managers continue. A resumed run releases the rounds
            after its checkpoint again.
        title: The title of the progress bar, of warnings and of the summary.
        verbose: Whether to show a progress bar and print a line for each evaluation. Warnings are
            always printed.

    Returns:
        The result of the run, which is also written to `summary.json`.

    Raises:
        OutputDirectoryError: The run in `directory` cannot be resumed: it is of another process, of
            other data, cohorts, evaluations or metrics, or has another privacy loss; it has done
            more rounds; or its files have changed since the checkpoint, or the checkpoint is
            missing.
        ForeignStateError: The states of the clients are of another type.
        ValueError: A number is out of range; the early stop is impossible (`EarlyStop.check`); the
            cohorts are impossible (`Participation.check`, `Participation.check_process`), or differ
            from the cohorts of `privacy` (`Accountant.check`, `PrivacyLoss.check`) or of `process`
            (`Federation.check`); or the model has fewer logits than there are classes.
        NobodyReportedError: A round has no clients, and the runtime is not the graph runtime.
        MemoryError: The server's state does not fit into memory.

    Example:
        >>> model, local = testing.tiny_model(), testing.tiny_local()
        >>> x, y = np.ones([6, 4, 4, 1], np.float32), np.arange(6) % 3
        >>> dataset = tff_pfl.FederatedDataset.from_client_arrays([(x, y, x, y)] * 4, 3)
        >>> process = tff_pfl.compose(tff_pfl.make("ditto", model, local), testing.EXAMPLES_TYPE)
        >>> with tempfile.TemporaryDirectory() as folder, tff_pfl.RunDirectory(folder, {}) as run:
        ...     options = {"rounds": 1, "clients_per_round": 2}
        ...     result = tff_pfl.train(process, model, dataset, run, **options)
        round 1: personalized/local_test/loss ..., global/local_test/accuracy ...
        >>> result.final.round_num
        1
    """
    _check_directory(directory)
    tip = "FederatedDataset.from_client_arrays makes one of each client's arrays."
    check_kind("The data set", dataset, FederatedDataset, tip)
    clients_per_round = operator.index(clients_per_round)
    options = evaluate or evaluation.EvaluationOptions()
    check_server_memory(process)
    model.check_classes(dataset.num_classes)
    model.task.check_data(dataset.y, dataset.num_classes, dataset.name)
    participation.check(dataset.num_clients, clients_per_round)
    participation.check_process(process)
    process.made_for.check(dataset.num_clients, clients_per_round)
    if privacy is not None:
        privacy.accountant.check(dataset.num_clients, clients_per_round, participation)
        privacy.check(process.noise_multiplier)
    if early_stop is not None:
        early_stop.check(process, model, dataset, options)
        early_stop.check_every(evaluate_every)
    quantities = (process.evaluated_model or model).task.quantities
    schedule = Schedule(rounds, evaluate_every, checkpoint_every, early_stop, quantities)
    evaluator = evaluation.Evaluator(process, model, dataset, options)
    identity = of_run(process, model, dataset, options, evaluate_every, clients_per_round)
    with client_states(process, directory.file(CHECKPOINT)) as store:
        source = CohortDataSource(
            dataset,
            store,
            process.client_type,
            seed=seed,
            capacity=capacity,
            participation=participation,
        )
        checkpoint = Checkpoint(store, process, identity)
        progress = checkpoint.load(source)
        done = progress.round_num
        if done > rounds:
            raise OutputDirectoryError(
                f"The run in {directory.path} has done {done} rounds already, but rounds={rounds}. "
                f"Choose {done} or more."
            )
        checkpoint.count_privacy(progress, privacy)
        is_over = done == rounds or schedule.stopped(progress.evaluations) is not None
        log, reopens = _open_files(directory, dataset, checkpoint, progress, schedule, is_over)
        if not is_over:
            directory.delete("summary.json")  # a run with a summary counts as finished
        directory.write_settings()
        write_quantities(directory, quantities)
        shown = {"initial": done, "total": rounds, "desc": title, "unit": "round"}
        with progress_bar(visible=verbose, **shown) as bar:
            for warning in _warnings(directory, dataset, options.split, done):
                bar.write(warning)
            if is_over and verbose and not reopens:
                bar.write(f"{title}: the run was finished before; its result is shown again.")
            if process.noise_multiplier is not None and privacy is None:
                bar.write(
                    "warning: the process has noise for privacy, but epsilon is not counted. Pass "
                    f"privacy=PrivacyLoss(accountant, {process.noise_multiplier:g})."
                )
            Rounds(
                process,
                model,
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
                RoundWarnings(title, bar.write),
                verbose,
            ).run(clients_per_round, reopens=reopens)
    evaluations = progress.evaluations
    result = Result(
        title,
        evaluations[-1],
        best_on("validation", evaluations, quantities),
        best_on("test", evaluations, quantities),
        LateMean.of(evaluations, options.late_share),
        progress.seconds,
        schedule.stopped(evaluations),
        privacy and privacy.summary(progress.round_num),
        progress.server_state,
    )
    write_summary(directory, result)
    return result


def _check_directory(directory: RunDirectory) -> None:
    """Checks that a directory is open, and that a run in it has its checkpoint."""
    tip = "`with tff_pfl.RunDirectory(path, settings) as directory` opens one."
    check_kind("The directory", directory, RunDirectory, tip)
    if not directory.is_open:
        raise ValueError(f"The directory {directory.path} is not open: {tip}")
    if directory.has("metrics.csv") and not directory.has(os.path.join(CHECKPOINT, "data.mdb")):
        raise OutputDirectoryError(
            f"Cannot resume the run in {directory.path}: its {CHECKPOINT} is missing. Start it "
            "again with --overwrite or in another directory."
        )


def _warnings(directory, dataset, split, done) -> Iterator[str]:
    """Records the versions of the run, and yields warnings about it."""
    if changes := record_versions(directory, done, directory.settings.get("imports") or ()):
        yield (
            f"round {done}: warning: the run continues with other versions or other code, and "
            f"numbers may differ from here on: {'; '.join(changes)}"
        )
    if not dataset.sizes(split).any():
        yield (f"warning: no client has {split} examples: all their metrics are nan")


def _open_files(
    directory, dataset, checkpoint, progress, schedule, is_over
) -> tuple[MetricsLog, bool]:
    """Opens the files of a run that starts or resumes.

    The last evaluation is removed from `progress` in two cases: the run ends here now, but lacks
    evaluations that belong to the end of a run; or the run was made longer, and the evaluation at
    its previous end would not exist if it had been longer from the start.

    Returns:
        The log, and whether the last round has to be finished again.
    """
    done, log = progress.round_num, _open_log(directory, dataset, progress)
    reopens = log.rounds < done or bool(is_over and progress.ended < done)
    was_extended = bool(not is_over and progress.ended)
    if reopens or (was_extended and not schedule.is_regular(done)):
        progress.forget_evaluation()
    if reopens or was_extended:
        # Files that are written again must not belong to a commit.
        progress.released = log.released_before_the_end(done - reopens)
        progress.ended = 0
        checkpoint.save(progress)
        log = _open_log(directory, dataset, progress)
    return log, reopens


def _open_log(directory, dataset, progress) -> MetricsLog:
    log = MetricsLog(directory, progress.round_num, progress.released)
    if progress.round_num == 0:  # a resumed run has it, for the same data
        dataset.partition.save(directory.file("partition.npz"))
        log.record("partition.npz")
    return log
