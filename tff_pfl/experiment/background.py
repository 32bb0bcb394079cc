"""Works in the background, and measures how long the parts of a round take."""

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

    It does one thing after another, and nothing outside of `doing` and `do`, so that both threads
    can use the same things without a lock. It has an event loop of its own: the caller's may be
    running.
    """

    def __init__(self):
        """Starts nothing yet."""
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "background")
        self._runner = asyncio.Runner()

    def __enter__(self) -> "Background":
        return self

    def __exit__(self, *exc_info) -> None:
        self._thread.submit(self._runner.close)
        self._thread.shutdown()

    def do(self, work: Callable[[], None]) -> None:
        """Runs `work` in the thread, and waits for it."""
        self._thread.submit(work).result()

    @contextlib.contextmanager
    def doing(self, work: Callable[[], None]) -> Iterator[None]:
        """Runs `work` beside the body, and waits for it.

        An exception of the work is raised after the body. If the body raises one, other work, and
        the end of the thread, wait for this.
        """
        done = self._thread.submit(work)
        yield
        done.result()

    def run(self, coroutine: Coroutine) -> Any:
        """Runs a coroutine in the thread's event loop; only work in the thread calls it."""
        return self._runner.run(coroutine)


class Stopwatch:
    """Measures the parts of a round.

    Attributes:
        seconds: Seconds so far, by name.
    """

    def __init__(self, seconds: Mapping[str, float] | None = None):
        """Begins with nothing, or with the seconds of another one."""
        self.seconds = dict(seconds or {})

    @contextlib.contextmanager
    def measuring(self, name: str) -> Iterator[None]:
        """Measures its body, if that does not fail."""
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start
