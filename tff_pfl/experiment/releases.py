"""Where the numbers of a run go: to its own directory, and wherever else its user wants them."""

import asyncio
import concurrent.futures
from collections.abc import Callable, Coroutine, Mapping, Sequence

import tensorflow_federated as tff


class Releases:
    """Hands numbers to release managers, one after another, the run's own first.

        with Releases(own, [tff.program.LoggingReleaseManager()], print) as releases:
            releases.release({"train/loss": 0.5}, 1)

    They run in one event loop, in a thread of its own: whoever trains may be in a running loop.
    """

    def __init__(
        self,
        own: tff.program.ReleaseManager,
        others: Sequence[tff.program.ReleaseManager],
        warn: Callable[[str], None],
    ):
        """Starts nothing yet.

        Args:
            own: Whose failure is that of the run.
            others: Whose failures are told, and are nobody else's.
            warn: Is told.
        """
        self._own = own
        self._others = others
        self._warn = warn
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "releases")
        self._runner = asyncio.Runner()

    def __enter__(self) -> "Releases":
        return self

    def __exit__(self, *exc_info) -> None:
        self._thread.submit(self._runner.close)
        self._thread.shutdown()

    def release(self, value: Mapping[str, float], key: int) -> None:
        """Releases the numbers of a round to all managers.

        Args:
            value: Numbers by name.
            key: Rounds done, from 1.
        """
        self._run(self._own.release(value, key))
        for manager in self._others:
            try:
                self._run(manager.release(dict(value), key))
            except Exception as error:
                self._warn(
                    f"round {key}: {type(manager).__name__} has not released its metrics: "
                    f"{type(error).__name__}: {error}"
                )

    def _run(self, coroutine: Coroutine) -> None:
        self._thread.submit(self._runner.run, coroutine).result()
