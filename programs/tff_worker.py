"""Serves TFF's C++ runtime to programs that run with --runtime=remote --tff_worker=HOST:PORT.

    tff_worker.py --port=8470

The program runs until it is killed. The server listens on all interfaces and does not authenticate
its clients: run it behind a firewall.
"""

import os

from absl import app, flags

from tff_pfl import runtime
from tff_pfl.runtime.startup import announce_tensorflow, prepare_process

prepare_process()

_PORT = flags.DEFINE_integer(
    "port", None, "The port of the server.", lower_bound=1, upper_bound=65535
)
_MAX_CONCURRENT_CLIENTS = flags.DEFINE_integer(
    "max_concurrent_clients",
    len(os.sched_getaffinity(0)),
    "The number of a cohort's clients that are computed at a time.",
    lower_bound=1,
)


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
    announce_tensorflow()
    runtime.run_worker(_PORT.value, _MAX_CONCURRENT_CLIENTS.value)


if __name__ == "__main__":
    flags.mark_flags_as_required(["port"])
    app.run(main)
