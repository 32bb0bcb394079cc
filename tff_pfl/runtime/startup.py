"""Prepares a process before it imports TensorFlow: its output, its CUDA libraries.

This module imports neither TensorFlow nor TensorFlow Federated.
"""

import functools
import gc
import os
import sys

import absl.flags
import absl.logging

from tff_pfl.runtime.cuda import load_cuda_libraries

# In place of Python's 700, 10 and 10; the memory at the peak of runs is the same.
_GARBAGE_COLLECTION = (10_000, 20, 20)

# TensorFlow and TFF leave these to the interpreter's last moments, when the modules that they use
# are gone already: nothing is lost, but a traceback is printed.
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
def prepare_process() -> None:
    """Keeps the noise of TensorFlow and TFF out of a program's output, and other CUDAs out of them.

    Call it before TensorFlow is imported. It does seven things, once in a process:

    *   Sets `TF_CPP_MIN_LOG_LEVEL=3`, unless it is set, for TensorFlow's C++ part, which reads it
        when it is loaded: that part logs as errors, on every machine, that cuDNN, cuFFT and cuBLAS
        are registered twice, and 3 is the level that holds errors back. Failures there still
        arrive as Python exceptions. Set the variable to 0 to see all it has to say.
    *   Gives the root logger absl's handler, as `absl.app.run` does, but in time: TensorFlow adds
        a handler of its own where it finds none, and then every warning appears twice.
    *   Leaves absl's verbosity at warnings, which `absl.app` raises to INFO for everybody, TFDS
        included, unless the flag is given.
    *   Drops two tracebacks that are printed as "Exception ignored in" at exit, of destructors that
        run too late to find their modules (`AtomicFunction.__del__` of TensorFlow 2.14,
        `ServiceManager.__del__` of TFF 0.87). Any other exception in a destructor is reported.
    *   Has Ctrl-C be one line in the place of a traceback, also while modules are imported; the
        process ends as by the signal all the same.
    *   Where there is NVIDIA's driver, makes TensorFlow use the CUDA libraries of `make gpu` rather
        than others that the machine may have; see `tff_pfl.runtime.cuda`.
    *   Has Python look for reference cycles less often. Imports and graphs are objects that stay:
        to go through them again and again is a tenth of the time until the first round is done.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    absl.logging.use_absl_handler()
    absl.flags.FLAGS["verbosity"].using_default_value = False
    sys.unraisablehook = _without(_HARMLESS_AT_EXIT, sys.unraisablehook)
    sys.excepthook = _briefly(sys.excepthook)
    load_cuda_libraries()
    gc.set_threshold(*_GARBAGE_COLLECTION)


def announce_tensorflow() -> None:
    """Tells the user at a terminal that TensorFlow is being loaded, unless it is already.

    A program calls it once it knows that its flags are right. Where nobody watches, as in a file or
    a pipe, the output is the result alone.
    """
    if "tensorflow" not in sys.modules and sys.stderr.isatty():
        print("Loading TensorFlow and TFF ...", file=sys.stderr, flush=True)


def _briefly(report):
    """Returns a `sys.excepthook` that passes to `report` all but Ctrl-C."""

    def hook(kind, error, traceback):
        if issubclass(kind, KeyboardInterrupt):
            print("\ninterrupted", file=sys.stderr)
        else:
            report(kind, error, traceback)

    return hook


def _without(functions, report):
    """Returns a `sys.unraisablehook` that reports all but what fails in `functions` at exit.

    A closure, since this module's globals are gone by the time it is needed.
    """
    is_finalizing = sys.is_finalizing

    def hook(unraisable):
        failed = unraisable.object
        name = (getattr(failed, "__module__", None), getattr(failed, "__qualname__", None))
        if not (is_finalizing() and name in functions):
            report(unraisable)

    return hook
