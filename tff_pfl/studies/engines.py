"""Calls a function with many arguments: in this process, or by the workers of a Dask cluster."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import distributed

Started = Callable[[str], None]
"""Takes the key of a call that starts."""

Engine = Callable[[Callable, Mapping[str, tuple], Started], Iterator[tuple[str, Any]]]
"""Calls a function with each of the arguments, and yields the key and the result of each call."""


class Died(NamedTuple):
    """The result of a call whose process was killed each time that it was tried.

    Attributes:
        reason: The reason, as a sentence.
    """

    reason: str


def in_this_process(
    function: Callable, calls: Mapping[str, tuple], started: Started
) -> Iterator[tuple[str, Any]]:
    """Makes calls one after the other."""
    for key, arguments in calls.items():
        started(key)
        yield key, function(*arguments)


@contextlib.contextmanager
def open_engine(
    jobs: int = 1,
    *,
    client: "distributed.Client | None" = None,
    scheduler: str = "",
    scheduler_file: str = "",
    shared: str | os.PathLike = ".",
    dashboard: bool = False,
) -> Iterator[Engine]:
    """Yields an engine: that of a client or a scheduler, of so many processes, or this process.

    Args:
        jobs: The number of processes on this machine, which end with the context, and with this
            process, even if that is killed.
        client: A Dask client of any cluster, which stays open.
        scheduler: The address of a Dask scheduler, `HOST:PORT`.
        scheduler_file: The file in which a Dask scheduler has written its address.
        shared: A folder that all workers must see; it is made if it is missing.
        dashboard: Whether Dask shows in a browser what the processes on this machine do.

    Raises:
        ClusterError: The scheduler does not answer, or the dashboard needs Bokeh.
    """
    is_elsewhere = client is not None or scheduler or scheduler_file
    if jobs == 1 and not is_elsewhere:
        yield in_this_process
        return
    # Imported here, because one process does without Dask.
    from tff_pfl.cluster import workers
    from tff_pfl.studies import clusters

    with contextlib.ExitStack() as stack:
        if not is_elsewhere:
            client = stack.enter_context(workers.local(jobs, dashboard=dashboard))
        elif client is None:
            client = stack.enter_context(workers.connected(scheduler, scheduler_file))
        yield clusters.engine_of(client, shared)
