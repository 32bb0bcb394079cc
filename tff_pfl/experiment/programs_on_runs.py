"""Runs `programs/evaluate.py` and `programs/export.py` between their flags and exit codes."""

import os
import pathlib
from collections.abc import Callable, Collection, Sequence
from typing import Any

from tff_pfl import experiment, runtime
from tff_pfl.experiment.client_tables import RESULT_SUFFIXES, client_tables
from tff_pfl.experiment.interruption import exit_code_of
from tff_pfl.experiment.run_directory import (
    OutputDirectoryError,
    RunDirectory,
    check_empty_folder,
    check_writable,
    is_of_a_run,
)
from tff_pfl.experiment.run_files import RunFiles
from tff_pfl.experiment.summary import rows
from tff_pfl.runtime.startup import announce_tensorflow


def evaluate_program(
    run_dir: str,
    output: str,
    *,
    baseline: str | None = None,
    set_context: Callable[[], None] | None = None,
    **changes: Any,
) -> int:
    """Evaluates a run and prints the result.

    Args:
        run_dir: The run's output directory; nothing in it is changed.
        output: Prefix of the results: `OUTPUT.json`, with all statistics; `OUTPUT_table.csv`, the
            same with a row for each quantity and group of clients; `OUTPUT.csv`, a row a client;
            and `OUTPUT_new_clients.csv`, a row a new client, if there are any. Their folder is
            made.
        baseline: See `evaluate_run`.
        set_context: Sets the context in which TFF computations are executed; by default
            `runtime.set_graph_context`.
        **changes: `trust_imports` (see `config_of_run`), and keys of `config.evaluation` that
            differ from the run's.

    Returns:
        The exit code: 0, 1 after an error that the user can fix, 130 after Ctrl-C, 143 after
        SIGTERM.
    """

    def evaluate():
        check_writable(output)
        runs = [run_dir, *filter(None, [baseline])]
        _check_apart(output)
        _prepare(runs, set_context)
        found = experiment.evaluate_run(run_dir, baseline, **changes)
        print(f"round {found.evaluation.round_num} of {found.run}")
        print("\n".join(rows(found.evaluation.metrics)))
        print("\n".join(client_tables(found.distributions(), found.gains())))
        if found.baseline is not None:
            print(f"gains are over round {found.baseline.round_num} of {found.baseline.run}")
        # After what was found is told: it may have taken hours, and the disk may be full.
        os.makedirs(os.path.dirname(os.path.abspath(output)), exist_ok=True)
        print(f"results: {', '.join(found.write(output))}")

    return exit_code_of(evaluate)


def export_program(
    run_dir: str,
    output: str,
    *,
    client_ids: Sequence[int | str] | None = None,
    trust_imports: bool | Collection[str] = (),
    set_context: Callable[[], None] | None = None,
) -> int:
    """Writes the models of a run and prints which.

    Args:
        run_dir: See `export_run`.
        output: See `export_run`.
        client_ids: See `export_run`.
        trust_imports: See `config_of_run`.
        set_context: See `evaluate_program`.

    Returns:
        The exit code, see `evaluate_program`.
    """

    def export():
        check_empty_folder(output)
        _prepare([run_dir], set_context)
        exported = experiment.export_run(run_dir, output, client_ids, trust_imports=trust_imports)
        print(f"{len(exported.models)} models of round {exported.round_num} of {exported.run}")
        print(f"results: {output}")

    return exit_code_of(export)


def _check_apart(output):
    """Checks that results do not replace files of a run, this one or another."""
    for suffix in RESULT_SUFFIXES:
        path = pathlib.Path(os.path.realpath(output + suffix))
        for folder in filter(is_of_a_run, path.parents):
            if path.relative_to(folder).parts[0] in RunDirectory.FILES:
                raise OutputDirectoryError(
                    f"output={output!r}: {output + suffix} belongs to a run itself, which stays "
                    "as it is. Choose another prefix."
                )


def _prepare(run_dirs, set_context):
    for directory in run_dirs:
        RunFiles(directory).settings()  # is there a run?
    announce_tensorflow()
    (set_context or runtime.set_graph_context)()
