"""Ends programs after errors that a user can fix, after Ctrl-C and after SIGTERM."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TextIO, cast

from tff_pfl import clients, data, runtime
from tff_pfl.arguments.names import UnknownNameError
from tff_pfl.cluster.errors import ClusterError
from tff_pfl.config.errors import ConfigError
from tff_pfl.experiment.errors import NobodyReportedError, TrackerError
from tff_pfl.experiment.run_directory import OutputDirectoryError

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def user_errors() -> tuple[type[Exception], ...]:
    """Returns the errors that a user can fix, with TensorFlow's if it is imported."""
    tf = sys.modules.get("tensorflow")
    return (
        ClusterError,
        clients.CorruptStateError,
        clients.ForeignStateError,
        clients.StateStoreError,
        ConfigError,
        UnknownNameError,
        NobodyReportedError,
        MemoryError,
        runtime.DeviceError,
        OSError,  # missing files and full disks, which the message names
        OutputDirectoryError,
        TrackerError,
        data.PartitionFileError,
        runtime.WorkerDiedError,
        *(
            ()
            if tf is None
            else (
                tf.errors.FailedPreconditionError,
                tf.errors.NotFoundError,
                tf.errors.PermissionDeniedError,
                tf.errors.ResourceExhaustedError,
            )
        ),
    )


class Terminated(KeyboardInterrupt):
    """The exception for SIGTERM, which event loops let pass because they let Ctrl-C pass."""


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Makes SIGTERM raise `Terminated` and SIGINT raise `KeyboardInterrupt`, once, in its body.

    A second signal ends the process at once, for users who do not want to wait. Signals that are
    ignored or have a handler other than Python's own keep their handling. In threads other than the
    main thread, which receive no signals, nothing changes.
    """
    taken = {}
    if threading.current_thread() is threading.main_thread():
        handlers = {number: signal.getsignal(number) for number in _SIGNALS}
        ours = (signal.SIG_DFL, signal.default_int_handler)
        taken = {number: handler for number, handler in handlers.items() if handler in ours}

    def raise_once(number, frame):
        for further in taken:
            signal.signal(further, signal.SIG_DFL)
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    for number in taken:
        signal.signal(number, raise_once)
    try:
        yield
    finally:
        for number, handler in taken.items():
            signal.signal(number, handler)


class _Output:
    """An output of a program that is dropped once its reader has ended, as `head` does.

    Work whose results are files goes on, and other programs end soon.
    """

    def __init__(self, stream):
        self._stream = stream

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Writes text, or drops it."""
        return self._unless_broken(self._stream.write, text) or len(text)

    def flush(self) -> None:
        """Writes what has been held back, or drops it."""
        self._unless_broken(self._stream.flush)

    def _unless_broken(self, function, *args):
        try:
            return function(*args)
        except BrokenPipeError:
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self._stream.fileno())
            os.close(nothing)


@contextlib.contextmanager
def _lasting_output() -> Iterator[None]:
    """Replaces the outputs of this process by `_Output`s for the duration of the context."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = cast(Iterator[TextIO], map(_Output, before))
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = before


def exit_code(interruption: KeyboardInterrupt) -> int:
    """Returns 128 plus the signal's number, as shells do: 143 for SIGTERM, 130 for Ctrl-C."""
    is_terminated = isinstance(interruption, Terminated)
    return 128 + (signal.SIGTERM if is_terminated else signal.SIGINT)


@_lasting_output()
def exit_code_of(
    work: Callable[[], int | None],
    *,
    errors: Sequence[type[Exception]] = (),
    advice: Callable[[], str] = lambda: "",
) -> int:
    """Runs the work of a program, and prints errors that a user can fix without a traceback.

    If the reader of its output ends, as in `train.py ... | head`, the work goes on.

    Args:
        work: Does the work and returns an exit code, or `None` for 0.
        errors: Further errors that are printed without a traceback, besides `user_errors`.
        advice: Returns the text to print after "interrupted".

    Returns:
        The exit code of `work`; or 1 after an error, 130 after Ctrl-C, 143 after SIGTERM.
    """
    try:
        with interruptible():
            return work() or 0
    except (*errors, *user_errors()) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as interruption:
        print("; ".join(filter(None, ["\ninterrupted", advice()])), file=sys.stderr)
        return exit_code(interruption)
