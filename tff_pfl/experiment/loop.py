"""Trains and evaluates the process of an experiment, and resumes stopped runs."""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow_federated as tff

from tff_pfl import runtime
from tff_pfl.arguments.ranges import RangeError
from tff_pfl.arguments.tracebacks import with_short_tracebacks
from tff_pfl.clients import ClientStateStore, CohortDataSource
from tff_pfl.data import FederatedDataset
from tff_pfl.evaluation import Evaluator
from tff_pfl.experiment.capacity import warn_of_slow_convolutions
from tff_pfl.experiment.checkpoint import (
    Checkpoint,
    Progress,
    client_states,
    remote_client_states,
)
from tff_pfl.experiment.experiment import Experiment
from tff_pfl.experiment.memory import check_server_memory
from tff_pfl.experiment.metrics_log import MetricsLog
from tff_pfl.experiment.recipe import NoRecipeError
from tff_pfl.experiment.round_warnings import RoundWarnings
from tff_pfl.experiment.rounds import Rounds, Schedule
from tff_pfl.experiment.run import Run
from tff_pfl.experiment.run_directory import (
    CHECKPOINT,
    OutputDirectoryError,
    RunDirectory,
    own_folder,
)
from tff_pfl.experiment.run_files import write_quantities
from tff_pfl.experiment.summary import LateMean, Result, best_on, write_summary
from tff_pfl.experiment.trackers import tracking
from tff_pfl.experiment.versions import record_versions
from tff_pfl.output.progress import progress_bar

if TYPE_CHECKING:
    import distributed


PARTS = 16
"""The number of parts of a federation on a cluster."""


@with_short_tracebacks
@runtime.current_or_graph_context()
def train(
    experiment: Experiment,
    folder: str | os.PathLike | RunDirectory | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    release_managers: Sequence[str | tff.program.ReleaseManager] = (),
    verbose: bool = True,
    client: "distributed.Client | None" = None,
    parts: int = PARTS,
    deadline: float = 600.0,
) -> Run:
    """Trains and evaluates an experiment in a folder, which receives all files of the run.

    Without a folder, the run has one of its own, such as `runs/ditto_on_digits-1f0c8a3e`. Its name
    covers all that the results depend on: an experiment that was trained before is not trained
    again, a stopped run continues, and one that has changed is a new run.

    A run that is killed at any moment and resumed gives the same numbers as an uninterrupted one:
    server state, client states and position are committed in one transaction, and metrics released
    after the last commit are released again.

    Rounds are computed in the context of TFF that was set in this thread, such as by
    `set_graph_context`, or else in that of `create_graph_context()`.

    Args:
        experiment: The experiment.
        folder: The folder; or its `RunDirectory`, in place of `resume` and `overwrite`, which has
            the list of its files; or `None`.
        resume: Whether to continue the run in the folder, if there is one. It is continued in any
            case in a folder of its own.
        overwrite: Whether to delete the run in the folder first, if there is one.
        release_managers: Receive the metrics and seconds of each round as `{name: number}` under
            the round's number, after the folder has received them; or names of trackers, such as
            "wandb". If a manager fails, a warning is shown; the run and the other managers
            continue. A resumed run releases the rounds after its checkpoint again.
        verbose: Whether to show a progress bar and print a line for each evaluation. Warnings are
            always printed.
        client: A Dask client, whose workers train and evaluate the clients of the federation; see
            `tff_pfl.cluster.Team`. They must see the folder, and the experiment must have a recipe.
        parts: The number of parts of the federation on a cluster, a power of two. The numbers
            depend on it by rounding, and not on the workers, of which there may be as many.
        deadline: The seconds after which the work of a worker is given to others.

    Returns:
        The run, whose result is also in `summary.json`.

    Raises:
        OutputDirectoryError: The folder has a run, and neither `resume` nor `overwrite` is set; or
            its run cannot be resumed: it is of another experiment, it has done more rounds, or its
            files have changed since the checkpoint, or the checkpoint is missing.
        ForeignStateError: The states of the clients are of another type.
        NoRecipeError: A part has no name by which workers of a cluster can make it.
        StateStoreError: The run was trained with another number of parts, or without a cluster.
        ValueError: See `Experiment.process` and `Experiment.new_clients_evaluation`.
        NobodyReportedError: A round has no clients, and the runtime is not the graph runtime.
        MemoryError: The server's state does not fit into memory.
        TrackerError: A tracker is unknown, not installed, or does not start.

    Example:
        >>> model, local = testing.tiny_model(), testing.tiny_local()
        >>> x, y = np.ones([6, 4, 4, 1], np.float32), np.arange(6) % 3
        >>> dataset = tff_pfl.FederatedDataset.from_client_arrays([(x, y, x, y)] * 4, 3)
        >>> ditto = tff_pfl.make("ditto", model, local)
        >>> experiment = tff_pfl.Experiment(ditto, dataset, rounds=1, clients_per_round=2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = tff_pfl.train(experiment, folder)
        round 1: personalized/local_test/loss ..., global/local_test/accuracy ...
        >>> run.result.final.round_num
        1
    """
    if client is not None:
        _check_cluster(experiment, parts)
    if folder is None:
        settings = {**experiment.settings, "fingerprints": experiment.identity["fingerprints"]}
        folder = own_folder("runs", experiment.title, settings)
        folder = RunDirectory(folder, settings, resume=not overwrite, overwrite=overwrite)
    elif not isinstance(folder, RunDirectory):
        folder = RunDirectory(folder, experiment.settings, resume=resume, overwrite=overwrite)
    # Impossible trainings and evaluations are refused before the run to overwrite is deleted.
    check_server_memory(experiment.process)
    _ = experiment.evaluator, experiment.new_clients_evaluation
    warn_of_slow_convolutions(experiment.model)
    here = _here if client is None else functools.partial(_on_cluster, client, parts, deadline)
    with folder, experiment.compiling(), tracking(release_managers, folder) as managers:
        result = _train(experiment, folder, managers, verbose, here)
    return Run(folder.path, experiment, result)


def _check_cluster(experiment: Experiment, parts: int) -> None:
    """Checks that workers can make the experiment, and that its parts make a binary tree."""
    if parts < 1 or parts & (parts - 1):
        raise RangeError(f"parts must be a power of two, such as 16, got {parts!r}.")
    try:
        _ = experiment.recipe
    except NoRecipeError as error:
        raise NoRecipeError(
            f"A cluster cannot train {experiment.title!r}: its workers know parts by their names. "
            f"{error} Name it, or leave out client."
        ) from error


class _Place(NamedTuple):
    """The place where clients are computed.

    Attributes:
        store: The store of their states.
        source: The source of cohorts.
        compute: `next` of the process.
        evaluator: The evaluator.
        committed: Called with the number of rounds that are committed.
    """

    store: ClientStateStore
    source: CohortDataSource
    compute: Callable[..., Any]
    evaluator: Evaluator
    committed: Callable[[int], None]


@contextlib.contextmanager
def _here(experiment, path) -> Iterator[_Place]:
    """Computes clients in this process."""
    with client_states(experiment.process, path) as store:
        source = experiment.source(store, experiment.cohort_size)
        yield _Place(store, source, experiment.process.next, experiment.evaluator, lambda _: None)


@contextlib.contextmanager
def _on_cluster(client, parts, deadline, experiment, path) -> Iterator[_Place]:
    """Computes clients by the workers of a cluster."""
    # Imported here, since a worker imports this module.
    from tff_pfl.cluster.team import Team

    with (
        remote_client_states(experiment.process, path, parts) as store,
        Team(client, experiment, path, num_parts=parts, deadline=deadline).working() as team,
    ):
        source = experiment.source(store, experiment.cohort_size)
        yield _Place(store, source, team.next, team.evaluator, team.commit)


def _train(experiment, directory, managers, verbose, place) -> Result:
    process, title = experiment.process, experiment.title
    _check_checkpoint(directory)
    schedule = Schedule.of(experiment)
    with place(experiment, directory.file(CHECKPOINT)) as at:
        source = at.source
        checkpoint = Checkpoint(at.store, process, experiment.identity)
        checkpoint.check()
        progress = checkpoint.load(source)
        at.committed(progress.round_num)
        done = progress.round_num
        if done > experiment.rounds:
            raise OutputDirectoryError(
                f"The run in {directory.path} has done {done} rounds already, but "
                f"rounds={experiment.rounds}. Choose {done} or more."
            )
        checkpoint.count_privacy(progress, experiment.privacy)
        is_over = done == experiment.rounds or schedule.stopped(progress.evaluations) is not None
        log, reopens = _open_files(
            directory, experiment.members, checkpoint, progress, schedule, is_over
        )
        if not is_over:
            directory.delete("summary.json")  # a run with a summary counts as finished
        directory.write_settings()
        write_quantities(directory, schedule.quantities)
        shown = {"initial": done, "total": experiment.rounds, "desc": title, "unit": "round"}
        with progress_bar(visible=verbose, **shown) as bar:
            if is_over and not reopens:
                if verbose:
                    bar.write(f"{title}: the run was finished before; its result is shown again.")
            else:
                for warning in _warnings(directory, experiment, done):
                    bar.write(warning)
            Rounds(
                experiment,
                source,
                at.evaluator,
                experiment.new_clients_evaluation,
                schedule,
                progress,
                checkpoint,
                log,
                managers,
                bar,
                RoundWarnings(title, bar.write),
                verbose,
                at.compute,
                at.committed,
            ).run(reopens=reopens)
    evaluations, quantities = progress.evaluations, schedule.quantities
    result = Result(
        title,
        evaluations[-1],
        best_on("validation", evaluations, quantities),
        best_on("test", evaluations, quantities),
        LateMean.of(evaluations, experiment.evaluation.late_share),
        progress.seconds,
        schedule.stopped(evaluations),
        experiment.privacy and experiment.privacy.summary(progress.round_num),
        progress.server_state,
    )
    write_summary(directory, result)
    return result


def _check_checkpoint(directory: RunDirectory) -> None:
    """Checks that a run in a directory has its checkpoint."""
    if directory.has("metrics.csv") and not directory.has(os.path.join(CHECKPOINT, "data.mdb")):
        raise OutputDirectoryError(
            f"Cannot resume the run in {directory.path}: its {CHECKPOINT} is missing. Start it "
            "again with --overwrite (in Python, overwrite=True) or in another directory."
        )


def _warnings(directory: RunDirectory, experiment: Experiment, done: int) -> Iterator[str]:
    """Records the versions of the run, and yields warnings about it."""
    if changes := record_versions(directory, done, directory.settings.get("imports") or ()):
        yield (
            f"round {done}: warning: the run continues with other versions or other code, and "
            f"numbers may differ from here on: {'; '.join(changes)}"
        )
    split = experiment.evaluation.split
    if not experiment.members.sizes(split).any():
        yield (f"warning: no client has {split} examples: all their metrics are nan")


def _open_files(
    directory: RunDirectory,
    dataset: FederatedDataset,
    checkpoint: Checkpoint,
    progress: Progress,
    schedule: Schedule,
    is_over: bool,
) -> tuple[MetricsLog, bool]:
    """Opens the files of a run that starts or resumes.

    A resumed run drops its last evaluation if (1) this round is now the last but lacks its final
    evaluations, or (2) the run was extended and that evaluation is off schedule.

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
