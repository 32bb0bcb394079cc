"""Calls for workers, whose processes import nothing else."""

import os
import pathlib
import time


def write_process(file, problem=None):
    """Writes the id of its process into a file; returns the problem."""
    file.write_text(str(os.getpid()))
    return problem


def kill(number):
    os.kill(os.getpid(), number)


def wait_for_both(a, b, own):
    """Ends when another call has touched the other file."""
    own.touch()
    while not (a.exists() and b.exists()):
        time.sleep(0.01)


def cmdline(process):
    """Returns the command line of a process; empty if the process has ended."""
    try:
        return pathlib.Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""
