"""Makes calls by the workers of a Dask cluster."""

import contextlib
import os
from collections.abc import Callable
from typing import Any

import distributed

from tff_pfl.cluster.errors import ClusterError
from tff_pfl.cluster.workers import Wanted, marked, versions
from tff_pfl.studies.engines import Died, Engine


def engine_of(client: distributed.Client, shared: str | os.PathLike) -> Engine:
    """Returns the engine of a client, whose workers make its calls.

    A call is made again by another worker if its worker has ended. A worker that does not see the
    shared folder, has other versions or several threads ends all calls by a `ClusterError`.

    Args:
        client: The client.
        shared: A folder that all workers must see. It is made if it is missing.
    """

    def engine(function, calls, started):
        address = client.scheduler.address
        with marked(shared) as mark:
            client.subscribe_topic(mark, lambda event: started(event[1]))
            wanted = Wanted(mark, versions())
            keys = {
                client.submit(_on_worker, wanted, key, function, *arguments, pure=False): key
                for key, arguments in calls.items()
            }
            try:
                for future in distributed.as_completed(list(keys), loop=client.loop):
                    yield keys.pop(future), _result(future, address)
            finally:
                with contextlib.suppress(Exception):  # the scheduler may have ended
                    client.cancel(list(keys))
                    client.unsubscribe_topic(mark)

    return engine


def _result(future: distributed.Future, address: str) -> Any:
    try:
        return future.result()
    except distributed.scheduler.KilledWorker as error:
        times = error.allowed_failures + 1
        return Died(
            f"its process was killed {times} times. The memory may not suffice for it; that of a "
            "worker is what its --memory-limit says."
        )
    except (distributed.client.FutureCancelledError, distributed.comm.CommClosedError) as error:
        raise ClusterError(
            f"The scheduler {address} has ended. The same command continues with another one."
        ) from error


def _on_worker(wanted: Wanted, key: str, function: Callable, *arguments: Any) -> Any:
    worker = distributed.get_worker()
    wanted.check(worker)
    worker.memory_manager.memory_pause_fraction = False  # TensorFlow keeps what it has allocated
    worker.log_event(wanted.mark, key)
    return function(*arguments)
