"""Runs a program that ends with the process that started it, even if that is killed.

    tied.py PROCESS PROGRAM ARGUMENTS...

Its run is then left as a crash would leave it. This module does not import TensorFlow.
"""

import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1  # of Linux's <sys/prctl.h>


def main(parent, *argv):
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(parent):  # it had ended before
            sys.exit(1)
    sys.argv[:] = argv
    sys.path[0] = os.path.dirname(os.path.abspath(argv[0]))
    runpy.run_path(argv[0], run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
