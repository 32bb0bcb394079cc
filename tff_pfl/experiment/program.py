"""Runs `programs/train.py`, from its config to its exit code."""

import os
import sys
from collections.abc import Callable

import ml_collections

from tff_pfl import config as configs
from tff_pfl import runtime
from tff_pfl.experiment.interruption import exit_code_of
from tff_pfl.experiment.loop import train
from tff_pfl.experiment.memory import check_server_memory
from tff_pfl.experiment.restored import check_unchanged
from tff_pfl.experiment.run_directory import CHECKPOINT, RESULT_SETTINGS, RunDirectory, resolved
from tff_pfl.experiment.summary import finished_summary, read_summary, table
from tff_pfl.experiment.trackers import check_tracker, tracking


def run_program(
    config: ml_collections.ConfigDict,
    output_dir: str,
    *,
    resume: bool = False,
    overwrite: bool = False,
    tracker: str | None = None,
    set_context: Callable[[], None] = lambda: None,
    restart: Callable[[bool], None] = lambda resume: None,
) -> int:
    """Trains and evaluates the run that a config describes, and prints its result and its files.

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

    Returns:
        The exit code of the program: 0; 1 after an error that the user can fix; 75
        (`os.EX_TEMPFAIL`) after a worker of the runtime was lost; 130 after Ctrl-C; 143 after
        SIGTERM.
    """
    directory = None

    def work():
        nonlocal directory
        check_tracker(tracker)
        configs.complete(config)
        configs.check_config(config)
        directory = RunDirectory(output_dir, resolved(config), resume=resume, overwrite=overwrite)
        configs.check_rounds_of_epsilon(config, directory.changes)
        summary = None if overwrite else finished_summary(directory.path, config.rounds)
        is_over = summary is not None and summary.final.round_num <= config.rounds
        if is_over and directory.has(CHECKPOINT):
            check_unchanged(directory.path, config)
        elif not is_over:
            try:
                set_context()
                with runtime.current_or_graph_context():
                    _run(config, directory, tracker)
            except runtime.WorkerDiedError as error:
                print(f"error: {error}\n{_advice(directory, output_dir)}", file=sys.stderr)
                return os.EX_TEMPFAIL
            summary = read_summary(directory.path)
        print(f"\n{table(summary)}\n\nresults: {directory.path}")
        for name in filter(directory.has, directory.FILES):
            print(f"  {name}")
        ignored = [change for change in directory.changes if change.startswith(RESULT_SETTINGS)]
        if is_over and not ignored:
            print("note: the run was finished before; its result is shown again", file=sys.stderr)
        elif is_over:
            print(
                "note: the run was finished already, and its results ignore these changes:\n  "
                + "\n  ".join(ignored)
                + f"\nprograms/evaluate.py --run_dir={directory.path} evaluates it again.",
                file=sys.stderr,
            )

    code = exit_code_of(work, advice=lambda: _advice(directory, output_dir))
    if code == os.EX_TEMPFAIL:
        restart(directory.resumes)
    return code


def _advice(directory, output_dir) -> str:
    if directory is None or directory.resumes:
        return f"pass --resume to continue the run in {output_dir}"
    return f"no run was started, and the run in {output_dir} was not changed"


def _run(config, directory, tracker):
    devices = ", ".join(runtime.current_devices() or ["the CPU"])
    print(f"clients are computed on {devices}; composing the method", flush=True)
    run = configs.BuiltRun(config)
    capacity = run.capacity(config.clients_per_round)
    early_stop = run.early_stop(run.algorithm)
    evaluate_new_clients = run.new_clients_evaluation(capacity)
    check_server_memory(run.process)  # before the run to overwrite is deleted
    print("tracing and compiling a round, whose graph later rounds use again", flush=True)
    with directory, tracking(tracker, directory) as release_managers:
        train(
            run.process,
            run.model,
            run.dataset,
            directory,
            rounds=config.rounds,
            clients_per_round=config.clients_per_round,
            seed=config.seed,
            evaluate_every=config.evaluation.every,
            evaluate=configs.evaluation_options(config),
            checkpoint_every=config.checkpoint_every,
            participation=configs.participation(config),
            early_stop=early_stop,
            privacy=configs.privacy_loss(config, run.dataset.num_clients),
            evaluate_new_clients=evaluate_new_clients,
            capacity=capacity,
            release_managers=release_managers,
            title=run.title,
        )
