"""Runs the process of a part, which `benchmarks.gpu.runner` starts."""

import sys

from benchmarks.gpu.runner import run_part
from tff_pfl.runtime.startup import prepare_process

if __name__ == "__main__":
    prepare_process()
    run_part(*sys.argv[1:])
