"""Ends the processes of contestants, with all processes that they have started."""

import contextlib
import os
import signal
import subprocess


def end(process: subprocess.Popen, seconds: float) -> None:
    """Closes the input of a process, and kills it if it does not end in some seconds."""
    process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    kill(process)
    process.stdout.close()


def kill(process: subprocess.Popen) -> None:
    """Kills a process, which leads a session of its own, and all others of its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
