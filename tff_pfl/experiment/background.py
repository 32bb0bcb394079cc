"""Runs work in a background thread and measures the seconds of a round's parts."""

import asyncio
import concurrent.futures
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any


class Background:
    """A thread that works while the caller waits for something else.

        with Background() as background:
            with background.doing(write_last_output):
                output = compute()

    The thread does one piece of work at a time, and only during `doing` and `do`. Therefore both
    threads can use the same objects without a lock. The thread has its own event loop, because the
    caller's loop may be running.
    """

    def __init__(self):
        """Prepares the thread, which starts with its first work."""
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "background")
        self._runner = asyncio.Runner()

    def __enter__(self) -> "Background":
        """Returns the object itself."""
        return self

    def __exit__(self, *exc_info) -> None:
        """Waits for the thread's work and ends the thread."""
        self._thread.submit(self._runner.close)
        self._thread.shutdown()

    def do(self, work: Callable[[], None]) -> None:
        """Runs `work` in the thread and waits for it."""
        self._thread.submit(work).result()

    @contextlib.contextmanager
    def doing(self, work: Callable[[], None]) -> Iterator[None]:
        """Runs `work` beside the body and waits for it.

        An exception of the work is raised after the body. If the body raises an exception, it is
        raised at once; the thread still finishes the work before it starts other work or ends.
        """
        done = self._thread.submit(work)
        yield
        done.result()

    def run(self, coroutine: Coroutine) -> Any:
        """Runs a coroutine in the thread's event loop. Only work in the thread may call this."""
        return self._runner.run(coroutine)


class Stopwatch:
    """A stopwatch for the parts of a round.

    Attributes:
        seconds: The measured seconds, by name.
    """

    def __init__(self, seconds: Mapping[str, float] | None = None):
        """Starts with the seconds of another stopwatch, by default without any."""
        self.seconds = dict(seconds or {})

    @contextlib.contextmanager
    def measuring(self, name: str) -> Iterator[None]:
        """Measures the seconds of its body, unless the body raises an exception."""
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start
