"""The flags by which programs choose the runtime. Programs import this; the library does not."""

import os
import sys
from typing import TYPE_CHECKING, NoReturn

from absl import flags

from tff_pfl import runtime

if TYPE_CHECKING:  # a program that shows its flags does without TensorFlow
    import tensorflow_federated as tff

_RUNTIME = flags.DEFINE_enum(
    "runtime",
    "graph",
    ["graph", "cpp", "remote"],
    "graph: TensorFlow in this process, on GPUs or CPUs. cpp: TFF's stock runtime. remote: the "
    "same in a worker of --tff_worker.",
)
_DEVICES = flags.DEFINE_list(
    "devices",
    None,
    "Where the graph runtime computes clients, as in GPU:0,GPU:1; by default on all GPUs, or the "
    "CPU; with --workers on these.",
)
_WORKERS = flags.DEFINE_list(
    "workers",
    [],
    "Other machines that compute clients, as HOST:PORT,HOST:PORT; each runs programs/worker.py "
    "with the same list.",
)
_TFF_WORKER = flags.DEFINE_string(
    "tff_worker", None, "Of --runtime=remote: HOST:PORT, where programs/tff_worker.py runs."
)


def set_context_from_flags() -> None:
    """Makes the runtime that the flags name the one in which TFF computations are executed.

    Raises:
        DeviceError: Flags do not fit each other, or a device is not there.
        WorkerDiedError: A worker does not answer.
    """
    _check()
    if _RUNTIME.value == "cpp":
        runtime.set_cpp_context()
    elif _RUNTIME.value == "remote":
        runtime.set_remote_context(_TFF_WORKER.value)
    else:
        runtime.set_graph_context(devices=_graph_devices())


def async_context_from_flags() -> "tff.framework.AsyncExecutionContext":
    """What a federated program's context executes in, see `tff_pfl.runtime.ProgramContext`.

    Raises:
        DeviceError: Flags do not fit each other, or a device is not there.
        WorkerDiedError: A worker does not answer.
    """
    _check()
    if _RUNTIME.value == "cpp":
        return runtime.create_async_cpp_context()
    if _RUNTIME.value == "remote":
        return runtime.create_async_remote_context(_TFF_WORKER.value)
    return runtime.create_async_graph_context(devices=_graph_devices())


def restart(*arguments: str) -> NoReturn:
    """Starts this program anew, as the same process, on those of --workers that answer now.

    Args:
        *arguments: What is added to the command line, whose last value of a flag counts.
    """
    answering = list(filter(runtime.answers, _WORKERS.value))
    if _WORKERS.value:
        arguments += (f"--workers={','.join(answering or _WORKERS.value)}",)
    print(f"starting again: {' '.join(arguments)}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:], *arguments])


def _check() -> None:
    if _RUNTIME.value != "graph" and (_DEVICES.value or _WORKERS.value):
        raise runtime.DeviceError("--devices and --workers are for --runtime=graph.")
    if (_RUNTIME.value == "remote") != bool(_TFF_WORKER.value):
        raise runtime.DeviceError("--runtime=remote and --tff_worker belong together.")


def _graph_devices() -> list[str] | None:
    workers = runtime.connect_to_workers(_WORKERS.value) if _WORKERS.value else None
    return _DEVICES.value or workers
