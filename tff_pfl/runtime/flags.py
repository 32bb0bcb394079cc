"""Flags by which programs choose the runtime. Programs import this; the library does not."""

import os
import sys
from typing import TYPE_CHECKING, NoReturn

from absl import flags, logging

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
    "tff_worker", None, "For --runtime=remote: HOST:PORT, where programs/tff_worker.py runs."
)


def set_context_from_flags() -> None:
    """Makes the runtime that the flags name the one in which TFF computations are executed.

    Raises:
        DeviceError: A device or the worker of --runtime=remote is missing.
        WorkerDiedError: A worker does not answer.
    """
    _context("set")


def async_context_from_flags() -> "tff.framework.AsyncExecutionContext":
    """Returns what a `tff_pfl.runtime.ProgramContext` executes in, on the runtime of the flags.

    Raises:
        DeviceError: A device or the worker of --runtime=remote is missing.
        WorkerDiedError: A worker does not answer.
    """
    return _context("create_async")


def restart(*arguments: str) -> NoReturn:
    """Starts this program anew, as the same process, on those of --workers that answer now.

    Args:
        *arguments: Flags added to the command line, where the last value of a flag counts.
    """
    answering = list(filter(runtime.answers, _WORKERS.value))
    if _WORKERS.value:
        arguments += (f"--workers={','.join(answering or _WORKERS.value)}",)
    print(f"starting again: {' '.join(arguments)}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:], *arguments])


def _context(verb: str):
    """Calls the function `runtime.{verb}_{kind}_context` for the kind of runtime in the flags."""
    kind = _RUNTIME.value
    if kind == "remote" and not _TFF_WORKER.value:
        raise runtime.DeviceError("--runtime=remote needs --tff_worker=HOST:PORT.")
    needs = {"devices": "graph", "workers": "graph", "tff_worker": "remote"}
    for name, needed in needs.items():
        if flags.FLAGS[name].value and kind != needed:
            logging.warning("--%s has no effect without --runtime=%s.", name, needed)
    function = getattr(runtime, f"{verb}_{kind}_context")
    if kind == "cpp":
        return function()
    if kind == "remote":
        return function(_TFF_WORKER.value)
    workers = runtime.connect_to_workers(_WORKERS.value) if _WORKERS.value else None
    return function(devices=_DEVICES.value or workers)
