"""Calls functions in processes of their own, each of which serves one call after another."""

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

_SPAWN = multiprocessing.get_context("spawn")
_CALLS = 20  # that a process serves: what the graphs of earlier calls leave behind stays bounded
_PATIENCE = 5  # seconds in which an idle process ends by itself
_PR_SET_PDEATHSIG = 1  # from Linux's <sys/prctl.h>


class Workers:
    """A number of processes that call functions.

    A process imports TensorFlow once for its calls, so that a short run takes a fraction of the
    time of a program's. Calls of different groups never share a process. A function returns a
    problem, or nothing if all is well; after a problem its process ends. All processes end with the
    context, and with the process that has started them, even if that is killed.
    """

    def __init__(self, number: int = 1):
        """Starts no process yet.

        Args:
            number: The number of calls at a time.
        """
        self._number = number
        self._idle: list[_Worker] = []
        self._busy: dict[Any, _Worker] = {}

    def __enter__(self):
        """Returns the workers."""
        return self

    def __exit__(self, *error):
        """Ends all processes."""
        for worker in self._busy.values():
            worker.process.terminate()
            worker.connection.close()
        _end(self._idle)
        for worker in self._busy.values():
            worker.process.join()

    @property
    def calls(self) -> list:
        """The keys of the calls that are under way."""
        return list(self._busy)

    @property
    def have_room(self) -> bool:
        """Whether another call can start now."""
        return len(self._busy) < self._number

    def start(self, key: Any, group: str, function: Callable, *args: Any) -> None:
        """Starts a call.

        Args:
            key: A name for the call.
            group: The group of the call.
            function: The function, at the top of a module.
            *args: Its arguments, which can be pickled.
        """
        worker = next((worker for worker in self._idle if worker.group == group), None)
        if worker is None:
            surplus = len(self._idle) + len(self._busy) + 1 - self._number
            _end(self._idle[: max(0, surplus)])
            self._idle = [worker for worker in self._idle if worker.is_alive]
            worker = _Worker(group)
        else:
            self._idle.remove(worker)
        worker.call(function, *args)
        self._busy[key] = worker

    def wait(self) -> list[tuple[Any, Any]]:
        """Waits until calls have ended.

        Returns:
            The key and the problem of each call that has ended. If its process has ended, too, the
            problem is the exit code, or the negative number of the signal that killed it.
        """
        keys = {worker.connection: key for key, worker in self._busy.items()}
        ended = []
        for connection in wait(list(keys)):
            worker = self._busy.pop(keys[connection])
            ended.append((keys[connection], worker.problem()))
            if worker.is_alive:
                self._idle.append(worker)
        return ended

    def call(self, group: str, function: Callable, *args: Any) -> Any:
        """Calls a function and returns its problem; see `start`."""
        self.start(function, group, function, *args)
        ((_, problem),) = self.wait()
        return problem


class _Worker:
    """A process and the connection to it."""

    def __init__(self, group):
        self.group = group
        self.connection, there = _SPAWN.Pipe()
        self.process = _SPAWN.Process(target=_serve, args=(there, os.getpid()))
        self.process.start()
        there.close()
        self._calls = 0

    @property
    def is_alive(self):
        return not self.connection.closed

    def call(self, function, *args):
        self.connection.send((function, args))
        self._calls += 1

    def problem(self):
        try:
            problem = self.connection.recv()
        except EOFError:
            self.process.join()
            _end([self])
            return self.process.exitcode or 1  # a function may end its process by sys.exit()
        if problem or self._calls == _CALLS:
            _end([self])
        return problem


def _end(workers):
    """Ends idle processes, which do so by themselves, unless they hang."""
    for worker in workers:
        worker.connection.close()
    for worker in workers:
        worker.process.join(_PATIENCE)
        worker.process.terminate()
    for worker in workers:
        worker.process.join()


def _serve(connection: Connection, parent: int) -> None:
    os.setsid()  # Ctrl-C reaches only the parent, which then ends this process
    _end_with(parent)
    try:
        while True:
            function, args = connection.recv()
            connection.send(function(*args))
    except (EOFError, OSError):  # the parent has closed its end
        return


def _end_with(parent):
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has already ended
        os._exit(1)
