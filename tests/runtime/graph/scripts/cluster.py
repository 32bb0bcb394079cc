"""Runs computations on two workers, kills one of them, and saves the results.

    unshare -rnpf --kill-child python -m tests.runtime.graph.scripts.cluster results.pickle

TensorFlow's servers listen on all interfaces and serve everybody, so the script runs in a separate
network namespace. It runs in a separate process namespace too, so that the servers end with it.
"""

import fcntl
import os
import pathlib
import pickle
import socket
import struct
import subprocess
import sys
import threading
import time

from tff_pfl.runtime.startup import prepare_process

prepare_process()

# ruff: noqa: E402
import tensorflow_federated as tff

from tests.runtime.counting import count
from tff_pfl import runtime

ROOT = pathlib.Path(__file__).parents[4]
_WORKER = ROOT / "programs" / "worker.py"


def bring_loopback_up():
    """Activates the interface `lo`, which is down in a new network."""
    get_flags, set_flags, up = 0x8913, 0x8914, 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh22x", b"lo", 0)
        _, flags = struct.unpack("16sh22x", fcntl.ioctl(control, get_flags, request))
        fcntl.ioctl(control, set_flags, struct.pack("16sh22x", b"lo", flags | up))


def start_workers(addresses):
    workers = []
    for index in range(len(addresses)):
        options = [f"--workers={','.join(addresses)}", f"--index={index}"]
        command = [sys.executable, str(_WORKER), *options]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        workers.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        )
    for worker in workers:
        assert "listens" in worker.stdout.readline()
    return workers


def raised_by(number):
    """Counts to a number; returns the exception's type and message, and the seconds it took."""
    started = time.monotonic()
    try:
        count([1, number])
    except Exception as error:
        return type(error).__name__, str(error), time.monotonic() - started


def main(path):
    bring_loopback_up()
    addresses = ["127.0.0.1:2301", "127.0.0.1:2302"]
    workers = start_workers(addresses)
    saved = {"workers": runtime.connect_to_workers(addresses)}

    # Imported only now, since a cluster must be joined before anything is computed.
    from tests.runtime.graph.scripts import placement

    first, second = saved["workers"]
    saved["wrong"] = placement.wrong_cases(devices=[first, second])
    saved["executed_on"] = {
        devices: placement.executed_on(3, devices=devices)
        for devices in ((first, second), (second,), ("CPU:0", second))
    }
    context = runtime.create_graph_context(devices=[first, second])
    with tff.framework.get_context_stack().install(context):
        saved["count"] = count([1, 2])
        threading.Timer(0.5, workers[1].kill).start()
        saved["dies in a call"] = raised_by(10**12)
        saved["died before a call"] = raised_by(2)
    with open(path, "wb") as file:
        pickle.dump(saved, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
