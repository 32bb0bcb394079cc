"""Runs computations on two workers, ends one of them, and saves all that happened.

    unshare -rnpf --kill-child python -m tests.runtime.graph.scripts.cluster results.pickle

TensorFlow's servers listen on all interfaces and do what anybody asks of them: this has a network
of its own. In a process namespace of its own, the servers end with it, whatever happens.
"""

import fcntl
import functools
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
    """A new network has an interface `lo` that is down."""
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


def noted(call):
    """The result or the exception, as `(kind of exception, message)`, and the seconds it took."""
    started, result, raised = time.monotonic(), None, None
    try:
        result = call()
    except Exception as error:
        raised = type(error).__name__, str(error)
    return {"result": result, "raised": raised, "seconds": time.monotonic() - started}


def main(path):
    bring_loopback_up()
    addresses = ["127.0.0.1:2301", "127.0.0.1:2302"]
    workers = start_workers(addresses)
    saved = {"workers": runtime.connect_to_workers(addresses)}

    # Imported only now, as it computes, and a cluster is joined before.
    from tests.runtime.graph.scripts import computations

    def result(name, size, devices):
        return computations.results([name], [size], devices=devices)[name, size]

    def results(devices):
        return {
            (name, size): noted(functools.partial(result, name, size, devices))
            for name in computations.arguments(0)
            for size in (0, 5)
            if name != "ditto"  # which takes long to trace
        }

    first, second = saved["workers"]
    saved["one"] = results(["CPU:0"])
    saved["two"] = results([first, second])
    saved["executed_on"] = {
        devices: computations.executed_on(3, devices=devices)
        for devices in ((first, second), (second,), ("CPU:0", second))
    }
    context = runtime.create_graph_context(devices=[first, second])
    with tff.framework.get_context_stack().install(context):
        saved["count"] = count([1, 2])
        threading.Timer(0.5, workers[1].kill).start()
        saved["dies in a call"] = noted(lambda: count([1, 10**12]))
        saved["died before a call"] = noted(lambda: count([1, 2]))
    with open(path, "wb") as file:
        pickle.dump(saved, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
