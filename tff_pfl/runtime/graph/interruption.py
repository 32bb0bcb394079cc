"""Ends computations that nobody waits for any more: those of Ctrl-C, and of cancelled tasks.

TensorFlow has a context for it, of all threads at a time; here each call has its own.
"""

import asyncio
import contextlib
import contextvars
import threading
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.runtime.graph import internals


class _Interruption:
    """Ends the graphs that a call of a computation runs."""

    def __init__(self):
        self._managers = []
        self._has_come = False

    def manager(self):
        """Returns a manager of one graph: TensorFlow cancels the manager of a graph that fails."""
        manager = internals.CancellationManager()
        self._managers.append(manager)
        if self._has_come:  # in another thread, perhaps right now
            manager.start_cancel()
        return manager

    def come(self) -> None:
        """Ends the graph that runs, and those that would follow."""
        self._has_come = True
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
        interruption.come()
        raise
    finally:
        _current.reset(token)


class InterruptibleContext(tff.framework.SyncExecutionContext):
    """TFF's context, which stops computing after an interruption such as Ctrl-C.

    It also ends its thread and closes its files when nobody uses it any more.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        weakref.finalize(self, _end, self._async_runner).atexit = False

    def invoke(self, comp, arg):
        """Executes a computation, in another thread, whose coroutine has the same `_current`."""
        with _interrupted_by(BaseException):
            return super().invoke(comp, arg)


def _end(runner) -> None:
    """Ends the thread of TFF's event loop, which holds what would end it, and so never does."""
    if runner._thread is threading.current_thread():
        return
    runner._event_loop.call_soon_threadsafe(runner._event_loop.stop)
    runner._thread.join()
    runner._event_loop.close()
    runner._finalizer = lambda *_: None


async def in_thread(function: Callable, *args) -> Any:
    """Like `asyncio.to_thread`, but a cancelled task ends the graphs that the function runs."""
    with _interrupted_by(asyncio.CancelledError):
        return await asyncio.to_thread(function, *args)


def interruptible(function: tf.types.experimental.ConcreteFunction):
    """Returns the function, which then ends with an error if its caller is interrupted."""

    def manager():
        interruption = _current.get()
        return None if interruption is None else interruption.manager()

    internals.run_with(function, manager)
    return function
