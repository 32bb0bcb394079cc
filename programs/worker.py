"""Lends this machine's devices to a program on another machine with the same --workers.

    worker.py --workers=HOST:PORT,HOST:PORT --index=I

The program runs until it is killed. TensorFlow's server listens on all interfaces and does not
authenticate its clients: run it behind a firewall.
"""

import sys

from absl import app, flags

from tff_pfl import runtime
from tff_pfl.runtime.startup import announce_tensorflow, prepare_process

prepare_process()

_WORKERS = flags.DEFINE_list("workers", None, "The addresses of all workers, including this one.")
_INDEX = flags.DEFINE_integer("index", None, "This worker's index, from 0.", lower_bound=0)


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
    announce_tensorflow()
    try:
        runtime.lend_devices(_WORKERS.value, _INDEX.value)
    except runtime.DeviceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    flags.mark_flags_as_required(["workers", "index"])
    app.run(main)
