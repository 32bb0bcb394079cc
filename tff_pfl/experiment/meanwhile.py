"""What a run does while the devices compute."""

import concurrent.futures
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping


class Meanwhile:
    """A thread that works while the caller waits for something else, and never else.

        with Meanwhile() as meanwhile:
            with meanwhile.running(write_last_output):
                output = compute()

    Nothing runs outside of `running`, so that what both threads use one after the other needs no
    lock.
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
    """Seconds of what a round does, by name.

    Attributes:
        seconds: So far.
    """

    def __init__(self, seconds: Mapping[str, float] | None = None):
        """Has measured nothing yet, or what another one has."""
        self.seconds = dict(seconds or {})

    @contextlib.contextmanager
    def measuring(self, name: str) -> Iterator[None]:
        """Measures its body, if that does not fail."""
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start
