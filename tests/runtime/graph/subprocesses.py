"""Runs scripts of tests in separate processes, which end with the test."""

import contextlib
import fcntl
import os
import pathlib
import pickle
import signal
import subprocess
import sys
from typing import Any

_ROOT = pathlib.Path(__file__).parents[3]


def run_script(name: str, *args, wrapper=(), env=(), timeout: float = 280.0) -> str:
    """Runs a module of `tests.runtime.graph.scripts` and returns what it prints.

    Args:
        name: The name of the module.
        *args: Its command line.
        wrapper: A command that runs the command that follows it.
        env: Additions to the environment.
        timeout: Seconds after which the script and all processes that it started are killed.
    """
    module = f"tests.runtime.graph.scripts.{name}"
    process = subprocess.Popen(
        [*wrapper, sys.executable, "-m", module, *map(str, args)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=_ROOT,
        env=os.environ | dict(env),
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=timeout)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert process.returncode == 0, errors[-4000:]
    return output


def saved_by_script(name: str, *args, tmp_path_factory, **options) -> Any:
    """Returns the value that a script pickles into the file of its last argument.

    The script runs once for all processes of `pytest -n`.

    Args:
        name: The name of the module.
        *args: Its command line, without the file.
        tmp_path_factory: The fixture of pytest.
        **options: Options of `run_script`.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    path = folder / f"{'_'.join([name, *args])}.pickle"
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            run_script(name, *args, path, **options)
    return pickle.loads(path.read_bytes())
