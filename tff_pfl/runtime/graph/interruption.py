"""Cancels computations after Ctrl-C, or when the task that awaits them is cancelled.

TensorFlow's own context for cancellation covers all threads; here each call has its own.
"""

import asyncio
import contextlib
import contextvars
import weakref
from collections.abc import Callable
from concurrent import futures
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.runtime.graph import internals


class _Interruption:
    """A handle that cancels the graphs of one call of a computation."""

    def __init__(self):
        self._managers = []
        self._is_cancelled = False

    def manager(self):
        """Returns a new manager for each graph, since TensorFlow cancels those of failed graphs."""
        manager = internals.CancellationManager()
        self._managers.append(manager)
        if self._is_cancelled:  # another thread may cancel meanwhile
            manager.start_cancel()
        return manager

    def cancel(self) -> None:
        """Cancels the running graph and all later ones."""
        self._is_cancelled = True
        for manager in list(self._managers):
            manager.start_cancel()


_current = contextvars.ContextVar("interruption", default=None)


@contextlib.contextmanager
def _interrupted_by(errors):
    interruption = _current.get() or _Interruption()
    token = _current.set(interruption)
    try:
        yield
    except errors:
        interruption.cancel()
        raise
    finally:
        _current.reset(token)


class InterruptibleContext(tff.framework.SyncExecutionContext):
    """A context of TFF that stops computing after an interruption such as Ctrl-C.

    It also ends its thread and closes its files when the context is deleted.
    """

    def __init__(self, *args, **kwargs):
        """Makes the context, with the arguments of TFF's context."""
        super().__init__(*args, **kwargs)
        self._threads = futures.ThreadPoolExecutor()
        weakref.finalize(self, _end, self._async_runner, self._threads).atexit = False

    def invoke(self, comp, arg):
        """Executes a computation in another thread, which has the same `_current`."""
        with _interrupted_by(BaseException):
            if _has_descriptors(arg):
                return super().invoke(comp, arg)
            # TFF's event loop would take a millisecond longer.
            run = contextvars.copy_context().run
            return self._threads.submit(run, self.executor_factory.run, comp, arg).result()


def _has_descriptors(arg) -> bool:
    """Returns whether a part of an argument is data that an executor must compute."""
    if isinstance(arg, tff.structure.Struct):
        return any(map(_has_descriptors, arg))
    return isinstance(arg, tff.framework.Ingestable)


def _end(runner, threads) -> None:
    """Ends the threads, also that of TFF's event loop, whose own finalizer is never called.

    It waits for no thread: it may run wherever Python collects garbage, and so in a thread that
    holds a lock which the other threads need to end.
    """
    threads.shutdown(wait=False)
    runner._finalizer = lambda loop, thread: loop.close()  # its thread calls it when it ends
    runner._event_loop.call_soon_threadsafe(runner._event_loop.stop)


async def in_thread(function: Callable, *args) -> Any:
    """Like `asyncio.to_thread`, but cancels the function's graphs if the task is cancelled."""
    with _interrupted_by(asyncio.CancelledError):
        return await asyncio.to_thread(function, *args)


def interruptible(
    function: tf.types.experimental.ConcreteFunction,
) -> internals.RuntimeFunction:
    """Returns a function of the runtime that ends with an error if its caller is interrupted."""

    def manager():
        interruption = _current.get()
        return None if interruption is None else interruption.manager()

    return internals.RuntimeFunction(function, manager)
