"""Works while the devices compute, and measures how long the parts of a round take."""

import concurrent.futures
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping


class Meanwhile:
    """A thread that works while the caller waits for something else.

        with Meanwhile() as meanwhile:
            with meanwhile.running(write_last_output):
                output = compute()

    Nothing runs outside of `running`, so that both threads can use the same things one after the
    other without a lock.
    """

    def __init__(self):
        """Starts nothing yet."""
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "meanwhile")

    def __enter__(self) -> "Meanwhile":
        return self

    def __exit__(self, *exc_info) -> None:
        self._thread.shutdown()

    @contextlib.contextmanager
    def running(self, work: Callable[[], None]) -> Iterator[None]:
        """Runs `work` beside the body, and ends when both have ended.

        An exception of the work is raised after the body, unless the body has raised one.
        """
        done = self._thread.submit(work)
        try:
            yield
        finally:
            concurrent.futures.wait([done])
        done.result()


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
