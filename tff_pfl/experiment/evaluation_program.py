"""What `programs/evaluate.py` does between its flags and its exit code."""

import os
import sys
from collections.abc import Callable
from typing import Any

from tff_pfl import experiment, runtime
from tff_pfl.experiment.client_tables import client_tables
from tff_pfl.experiment.errors import user_errors
from tff_pfl.experiment.interruption import exit_code, interruptible
from tff_pfl.experiment.run_directory import check_writable
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
        **changes: Keys of `config.evaluation` that are other than the run's.

    Returns:
        The exit code: 0, 1 after an error that the user can mend, 130 after Ctrl-C, 143 after
        SIGTERM.
    """
    try:
        with interruptible():
            check_writable(output)
            for directory in filter(None, [run_dir, baseline]):
                RunFiles(directory).settings()  # is there a run?
            announce_tensorflow()
            (set_context or runtime.set_graph_context)()
            found = experiment.evaluate_run(run_dir, baseline, **changes)
            os.makedirs(os.path.dirname(os.path.abspath(output)), exist_ok=True)
            files = found.write(output)
    except user_errors() as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as interruption:
        print("\ninterrupted", file=sys.stderr)
        return exit_code(interruption)
    print(f"round {found.evaluation.round_num} of {found.run}")
    print("\n".join(rows(found.evaluation.metrics)))
    print("\n".join(client_tables(found.distributions(), found.gains())))
    if found.baseline is not None:
        print(f"gains are over round {found.baseline.round_num} of {found.baseline.run}")
    print(f"results: {', '.join(files)}")
    return 0
