"""The bodies of `programs/`, from their flags to their exit codes."""

import contextlib
import os
import pathlib
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import absl.logging
import ml_collections

from tff_pfl import runtime
from tff_pfl.arguments.settings import RESULTS
from tff_pfl.config.build import experiment_of
from tff_pfl.config.check import check_config, check_rounds_of_epsilon, config_of_run
from tff_pfl.config.errors import ConfigError, config_errors
from tff_pfl.config.interruption import exit_code_of
from tff_pfl.config.options import complete
from tff_pfl.config.unused import unused_settings
from tff_pfl.experiment import Experiment
from tff_pfl.experiment.evaluate import RESULT_SUFFIXES
from tff_pfl.experiment.export import check_folder
from tff_pfl.experiment.loop import PARTS, train
from tff_pfl.experiment.run import Run
from tff_pfl.experiment.run_directory import (
    CHECKPOINT,
    OutputDirectoryError,
    RunDirectory,
    check_writable,
    is_run_directory,
    resolved,
)
from tff_pfl.experiment.run_files import RunFiles
from tff_pfl.experiment.summary import finished_summary, read_summary, table
from tff_pfl.experiment.trackers import check_trackers


def run_of(
    run_dir: str | os.PathLike,
    changes: Mapping[str, Any] = {},
    *,
    trust_imports: bool | Collection[str] = (),
) -> Run:
    """Returns a run, finished or not, with the experiment of the config in its folder.

    Args:
        run_dir: The run's output directory.
        changes: New values for keys of `config.evaluation`. A warning is logged for keys that have
            no effect.
        trust_imports: See `config_of_run`.

    Raises:
        OutputDirectoryError: There is no run.
        ConfigError: The run's config is not a config of this version, or a change is impossible.
    """
    config = config_of_run(RunFiles(run_dir).settings, trust_imports=trust_imports)
    try:
        if "synthetic" in changes:
            changes = {**changes, "synthetic": tuple(map(float, changes["synthetic"]))}
        config.evaluation.update(changes)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"config.evaluation: {error}") from error
    check_config(config)
    changed = [f"evaluation.{key}" for key, value in changes.items() if value]
    for warning in unused_settings(config, changed):
        absl.logging.warning("%s: %s", os.fspath(run_dir), warning)
    return Run(run_dir, experiment_of(config))


def run_program(
    config: ml_collections.ConfigDict,
    output_dir: str,
    *,
    resume: bool = False,
    overwrite: bool = False,
    tracker: str | None = None,
    set_context: Callable[[], None] = lambda: None,
    restart: Callable[[bool], None] = lambda resume: None,
    scheduler: str = "",
    scheduler_file: str = "",
    parts: int = PARTS,
) -> int:
    """Trains and evaluates the experiment of a config, and prints its result and its files.

    If a finished run is resumed, its result is only printed again.

    Args:
        config: See `default_config`.
        output_dir: See `RunDirectory`.
        resume: Whether to resume the run in the directory.
        overwrite: Whether to delete the run in the directory first.
        tracker: A name in `TRACKERS` that also receives the metrics, or `None`.
        set_context: Sets the context in which TFF computations are executed. By default it is
            chosen as by `train`.
        restart: Called after a worker of the runtime was lost; may start the program again. Its
            argument is whether the run can be resumed, which is false as long as the run to
            overwrite has not been deleted.
        scheduler: The address `HOST:PORT` of a Dask scheduler, whose workers train the clients.
        scheduler_file: The file in which it has written its address, if that is not given.
        parts: See `train`.

    Returns:
        The exit code of the program: 0; 1 after an error that the user can fix; 75
        (`os.EX_TEMPFAIL`) after a worker of the runtime was lost; 130 after Ctrl-C; 143 after
        SIGTERM.
    """
    directory, trackers = None, [tracker] if tracker else []

    def work():
        nonlocal directory
        check_trackers(trackers)
        complete(config)
        check_config(config)
        directory = RunDirectory(output_dir, resolved(config), resume=resume, overwrite=overwrite)
        check_rounds_of_epsilon(config, directory.changes)
        summary = None if overwrite else finished_summary(directory.path, config.rounds)
        is_over = summary is not None and summary.final.round_num <= config.rounds
        if is_over and directory.has(CHECKPOINT):
            Run(directory.path, experiment_of(config)).check()
        elif not is_over:
            try:
                set_context()
                with runtime.current_or_graph_context(), _client(scheduler, scheduler_file) as it:
                    place = "" if it is None else f"the workers of {it.scheduler.address}"
                    options = {"release_managers": trackers, "client": it, "parts": parts}
                    train(_experiment(config, place), directory, **options)
            except runtime.WorkerDiedError as error:
                print(f"error: {error}\n{_advice(directory, output_dir)}", file=sys.stderr)
                return os.EX_TEMPFAIL
            summary = read_summary(directory.path)
        print(f"\n{table(summary)}\n\nresults: {directory.path}")
        for name in filter(directory.has, directory.FILES):
            print(f"  {name}")
        ignored = [
            change
            for change in directory.changes
            if change.what == RESULTS and change.key != "rounds"
        ]
        if is_over and not ignored:
            print("note: the run was finished before; its result is shown again", file=sys.stderr)
        elif is_over:
            print(
                "note: the run was finished already, and its results ignore these changes:\n  "
                + "\n  ".join(map(str, ignored))
                + f"\nprograms/evaluate.py --run_dir={directory.path} evaluates it again.",
                file=sys.stderr,
            )

    code = exit_code_of(work, advice=lambda: _advice(directory, output_dir))
    if code == os.EX_TEMPFAIL and directory is not None:
        restart(directory.resumes)
    return code


def _advice(directory, output_dir) -> str:
    if directory is None or directory.resumes:
        return f"pass --resume to continue the run in {output_dir}"
    return f"no run was started, and the run in {output_dir} was not changed"


@contextlib.contextmanager
def _client(scheduler: str, scheduler_file: str) -> Iterator[Any]:
    """Yields the client of a Dask scheduler; `None` without one."""
    if not (scheduler or scheduler_file):
        yield None
        return
    # Imported here, because one process does without Dask.
    from tff_pfl.cluster import connected

    with connected(scheduler, scheduler_file) as client:
        yield client


def _experiment(config, place: str) -> Experiment:
    """Builds the experiment of a config and its parts, and prints what takes a while."""
    place = place or ", ".join(runtime.current_devices() or ["the CPU"])
    print(f"clients are computed on {place}; composing the method", flush=True)
    experiment = experiment_of(config)
    with config_errors(None):  # tracing also reports errors of attacks, privacy and compression
        _ = experiment.process, experiment.evaluator, experiment.new_clients_evaluation
    print("tracing and compiling a round, whose graph later rounds use again", flush=True)
    return experiment


def evaluate_program(
    run_dir: str,
    output: str,
    *,
    baseline: str | None = None,
    predictions: bool = False,
    trust_imports: bool | Collection[str] = (),
    set_context: Callable[[], None] = lambda: None,
    **changes: Any,
) -> int:
    """Evaluates a run and prints the result.

    Args:
        run_dir: The run's output directory; nothing in it is changed.
        output: The prefix of the result files; see `EvaluationResult.write`. Missing folders are
            created.
        baseline: The output directory of another run; see `Run.evaluate`.
        predictions: See `Run.evaluate`.
        trust_imports: See `config_of_run`; it applies to both runs.
        set_context: Sets the context in which TFF computations are executed. By default it is
            chosen as by `train`.
        **changes: New values for keys of `config.evaluation`.

    Returns:
        The exit code: 0, 1 after an error that the user can fix, 130 after Ctrl-C, 143 after
        SIGTERM.
    """

    def evaluate():
        check_writable(output)
        _check_apart(output)
        set_context()
        compared = baseline and run_of(baseline, trust_imports=trust_imports)
        run = run_of(run_dir, changes, trust_imports=trust_imports)
        with config_errors(None):
            found = run.evaluate(baseline=compared, predictions=predictions)
        print(found)
        # The numbers are printed before: they may have taken hours, and the disk may be full.
        os.makedirs(os.path.dirname(os.path.abspath(output)), exist_ok=True)
        print(f"results: {', '.join(found.write(output))}")

    return exit_code_of(evaluate)


def _check_apart(output):
    """Checks that the result files would not replace files of any run."""
    for suffix in RESULT_SUFFIXES:
        path = pathlib.Path(os.path.realpath(output + suffix))
        for folder in filter(is_run_directory, path.parents):
            if path.relative_to(folder).parts[0] in RunDirectory.FILES:
                raise OutputDirectoryError(
                    f"output={output!r}: {output + suffix} would replace a file of a run. Choose "
                    "another prefix."
                )


def export_program(
    run_dir: str,
    output: str,
    *,
    clients: Iterable[int | str] | None = None,
    overwrite: bool = False,
    trust_imports: bool | Collection[str] = (),
    set_context: Callable[[], None] = lambda: None,
) -> int:
    """Writes the models of a run and prints how many there are.

    Args:
        run_dir: The run's output directory; nothing in it is changed.
        output: See `Run.export`.
        clients: See `Run.export`.
        overwrite: See `Run.export`.
        trust_imports: See `config_of_run`.
        set_context: See `evaluate_program`.

    Returns:
        The exit code, see `evaluate_program`.
    """

    def export():
        set_context()
        check_folder(output, overwrite)
        run = run_of(run_dir, trust_imports=trust_imports)
        with config_errors(None):
            exported = run.export(output, clients, overwrite=overwrite)
        print(f"{len(exported.models)} models of round {exported.round_num} of {exported.run}")
        print(f"results: {output}")

    return exit_code_of(export)
