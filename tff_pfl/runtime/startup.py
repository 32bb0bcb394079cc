"""Prepares the output and the CUDA libraries of a process before it imports TensorFlow.

This module imports neither TensorFlow nor TensorFlow Federated.
"""

import atexit
import contextlib
import functools
import gc
import importlib.util
import os
import pathlib
import signal
import sys

import absl.flags
import absl.logging

from tff_pfl.runtime.cuda import load_cuda_libraries

# Python's thresholds are 700, 10 and 10. These ones do not raise the peak memory of runs.
_GARBAGE_COLLECTION = (10_000, 20, 20)

# Destructors that run at exit after their modules are gone. They only print a traceback.
_HARMLESS_AT_EXIT = frozenset(
    {
        (
            "tensorflow.python.eager.polymorphic_function.atomic_function",
            "AtomicFunction.__del__",
        ),
        (
            "tensorflow_federated.python.core.impl.executor_stacks.executor_factory",
            "local_cpp_executor_factory.<locals>.ServiceManager.__del__",
        ),
    }
)


@functools.cache
def prepare_tensorflow() -> None:
    """Silences needless output of TensorFlow and TFF, and selects the right CUDA libraries.

    `import tff_pfl` calls it. Before TensorFlow is imported, it has these effects:

    *   Sets `TF_CPP_MIN_LOG_LEVEL=3`, unless it is set. TensorFlow's C++ part logs as errors, on
        every machine, that cuDNN, cuFFT and cuBLAS are registered twice; level 3 suppresses errors.
        Failures are still raised as Python exceptions. Set the variable to 0 to see all messages.
    *   If NVIDIA's driver is installed, makes TensorFlow use the CUDA libraries of `make gpu`
        instead of others on the machine; see `tff_pfl.runtime.cuda`.

    And always these:

    *   Drops two tracebacks that are printed as "Exception ignored in" at exit, from destructors
        that run after their modules are gone (`AtomicFunction.__del__` of TensorFlow 2.14,
        `ServiceManager.__del__` of TFF 0.87). Other exceptions in destructors are reported.
    *   Ends the workers of TFF's own contexts at exit. They would outlive Python and hold its pipes
        open, so that `python script.py | tail` would wait for ever.

    Raises:
        ModuleNotFoundError: If TFF is not installed. pip cannot install it with its dependencies,
            so that it is not among those of this package.
    """
    if importlib.util.find_spec("tensorflow_federated") is None:
        raise ModuleNotFoundError(
            "tff_pfl needs TensorFlow Federated, which is not installed: "
            "pip install --no-deps tensorflow-federated==0.87.0",
            name="tensorflow_federated",
        )
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    load_cuda_libraries()
    ignore_failures_at_exit()
    atexit.register(_end_tff_workers)


@functools.cache
def prepare_process() -> None:
    """Prepares the output of a program, before TensorFlow is imported.

    It calls `prepare_tensorflow`, and does four further things, once in a process:

    *   Gives the root logger absl's handler, as `absl.app.run` does later. Otherwise TensorFlow
        adds its own handler, and every warning appears twice.
    *   Keeps absl's verbosity at warnings. `absl.app` would raise it to INFO for all libraries,
        including TFDS, unless the flag is given.
    *   Prints one line instead of a traceback on Ctrl-C, also while modules are imported. The
        process still ends by the signal.
    *   Makes Python search for reference cycles less often. Searching the many permanent objects of
        imports and graphs takes a tenth of the time until the end of the first round.
    """
    prepare_tensorflow()
    absl.logging.use_absl_handler()
    absl.flags.FLAGS["verbosity"].using_default_value = False
    sys.excepthook = _without_interruptions(sys.excepthook)
    gc.set_threshold(*_GARBAGE_COLLECTION)


@functools.cache
def ignore_failures_at_exit() -> None:
    """Drops the tracebacks of destructors that TensorFlow and TFF run too late."""
    sys.unraisablehook = _without(_HARMLESS_AT_EXIT, sys.unraisablehook)


def _end_tff_workers() -> None:
    """Ends child processes that are workers of TFF, on Linux."""
    for children in pathlib.Path("/proc/self/task").glob("*/children"):
        for child in children.read_text().split():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if pathlib.Path("/proc", child, "comm").read_text() == "worker_binary\n":
                    os.kill(int(child), signal.SIGKILL)


def announce_tensorflow() -> None:
    """Tells a user at a terminal that TensorFlow is being loaded, unless it is loaded already.

    Call it after the flags were checked. It prints nothing into a file or a pipe.
    """
    if "tensorflow" not in sys.modules and sys.stderr.isatty():
        print("Loading TensorFlow and TFF ...", file=sys.stderr, flush=True)


def _without_interruptions(report):
    """Returns a `sys.excepthook` that prints a line for Ctrl-C and calls `report` otherwise."""

    def hook(kind, error, traceback):
        if issubclass(kind, KeyboardInterrupt):
            print("\ninterrupted", file=sys.stderr)
        else:
            report(kind, error, traceback)

    return hook


def _without(functions, report):
    """Returns a `sys.unraisablehook` that ignores failures of `functions` at exit.

    It is a closure, since this module's globals are gone at exit.
    """
    is_finalizing = sys.is_finalizing

    def hook(unraisable):
        failed = unraisable.object
        name = (getattr(failed, "__module__", None), getattr(failed, "__qualname__", None))
        if not (is_finalizing() and name in functions):
            report(unraisable)

    return hook
