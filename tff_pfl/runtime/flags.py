"""Flags for the choice of the runtime, which programs import and the library does not."""

import os
import sys
from typing import TYPE_CHECKING, NoReturn

from absl import flags, logging

from tff_pfl import runtime

if TYPE_CHECKING:  # `--help` must not import TensorFlow
    import tensorflow_federated as tff

_RUNTIME = flags.DEFINE_enum(
    "runtime",
    "graph",
    ["graph", "cpp", "remote"],
    "graph: TensorFlow in this process, on GPUs or CPUs. cpp: TFF's C++ runtime, in a process of "
    "its own. remote: TFF's C++ runtime at the address --tff_worker.",
)
_DEVICES = flags.DEFINE_list(
    "devices",
    None,
    "Devices on which the graph runtime computes clients, such as GPU:0,GPU:1. Default: all GPUs, "
    "else the CPU.",
)
_JIT_COMPILE = flags.DEFINE_bool(
    "jit_compile",
    None,
    "Whether XLA compiles client work where it can. Default: on GPUs, and on CPUs where it saves "
    "time: in long trainings of light models.",
)
_TFF_WORKER = flags.DEFINE_string(
    "tff_worker", None, "HOST:PORT of programs/tff_worker.py, for --runtime=remote."
)


def set_context_from_flags() -> None:
    """Makes the runtime of the flags the default context of TFF computations.

    Raises:
        DeviceError: A device or the worker of --runtime=remote is missing.
        WorkerDiedError: A worker does not answer.
    """
    _context("set")


def async_context_from_flags() -> "tff.framework.AsyncExecutionContext":
    """Returns an asynchronous context of the runtime of the flags, for a `ProgramContext`.

    Raises:
        DeviceError: A device or the worker of --runtime=remote is missing.
        WorkerDiedError: A worker does not answer.
    """
    return _context("create_async")


def restart(*arguments: str) -> NoReturn:
    """Restarts this program in the same process.

    Args:
        *arguments: Flags to append to the command line; the last value of a flag counts.
    """
    print(f"Restarting with: {' '.join(arguments)}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:], *arguments])


def _context(verb: str):
    """Calls `runtime.{verb}_{kind}_context` for the value `kind` of --runtime."""
    kind = _RUNTIME.value
    if kind == "remote" and not _TFF_WORKER.value:
        raise runtime.DeviceError("--runtime=remote needs --tff_worker=HOST:PORT.")
    needed_runtimes = {
        "devices": "graph",
        "jit_compile": "graph",
        "tff_worker": "remote",
    }
    for name, needed in needed_runtimes.items():
        if flags.FLAGS[name].value and kind != needed:
            logging.warning("--%s has no effect without --runtime=%s.", name, needed)
    function = getattr(runtime, f"{verb}_{kind}_context")
    if kind == "cpp":
        return function()
    if kind == "remote":
        return function(_TFF_WORKER.value)
    return function(devices=_DEVICES.value, jit_compile=_JIT_COMPILE.value)
