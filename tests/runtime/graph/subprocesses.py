"""Scripts of tests that need a process of their own, and nothing of which outlives the test."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys

_ROOT = pathlib.Path(__file__).parents[3]


def run_script(name: str, *args, wrapper=(), env=(), timeout: float = 200.0) -> str:
    """Runs a module of `tests.runtime.graph.scripts` and returns what it prints.

    Args:
        name: Of the module.
        *args: Its command line.
        wrapper: A command that runs the command that follows it.
        env: Additions to the environment.
        timeout: In seconds. After it, or with any exception here, the script and what it started
            are killed.
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
