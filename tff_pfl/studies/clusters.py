"""Makes calls by the workers of a Dask cluster, of this machine or of others."""

import contextlib
import functools
import importlib.util
import logging
import os
import pathlib
import secrets
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import dask.config
import distributed

from tff_pfl.studies.engines import ClusterError, Died, Engine

_SECONDS = 10  # in which a scheduler must answer
_MARK = ".shared-by-workers"


def _silence() -> None:
    """Keeps Dask's own lines from the screen."""
    for name in ("distributed", "distributed.client"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


@contextlib.contextmanager
def local(jobs: int, *, dashboard: bool = False) -> Iterator[distributed.Client]:
    """Yields a client of processes on this machine, which listen on loopback only.

    Args:
        jobs: The number of processes.
        dashboard: Whether Dask shows in a browser what they do.

    Raises:
        ClusterError: The dashboard needs Bokeh, which is not installed.
    """
    if dashboard and importlib.util.find_spec("bokeh") is None:
        raise ClusterError("The dashboard needs Bokeh, which is not installed: pip install bokeh.")
    options = {
        "distributed.scheduler.worker-saturation": 1.0,  # no run waits for that of its worker
        "distributed.logging": {"distributed": "critical"},
    }
    _silence()
    with (
        dask.config.set(options),
        _without_main(),
        distributed.LocalCluster(
            n_workers=jobs,
            threads_per_worker=1,
            memory_limit=0,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            worker_dashboard_address="127.0.0.1:0",
            silence_logs=logging.CRITICAL,
            preload="tff_pfl.studies.worker_setup",
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        if dashboard:
            print(f"dashboard: {client.dashboard_link}", file=sys.stderr)
        try:
            yield client
        except BaseException:
            _kill(cluster)  # it would wait for runs that have begun
            raise


def _kill(cluster: distributed.LocalCluster) -> None:
    """Kills the processes of a cluster on this machine; others do not take their place."""
    for nanny in cluster.workers.values():
        nanny.auto_restart = False
        if nanny.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(nanny.pid, signal.SIGKILL)


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Keeps processes from importing the script, which would start processes of its own."""
    main = sys.modules["__main__"]
    kept = {name: vars(main)[name] for name in ("__file__", "__spec__") if name in vars(main)}
    vars(main).pop("__file__", None)
    main.__spec__ = None
    try:
        yield
    finally:
        vars(main).update(kept)


@contextlib.contextmanager
def connected(scheduler: str = "", scheduler_file: str = "") -> Iterator[distributed.Client]:
    """Yields a client of a scheduler.

    Args:
        scheduler: Its address, `HOST:PORT`.
        scheduler_file: The file in which it has written its address, if that is not given.

    Raises:
        ClusterError: It does not answer.
    """
    _silence()
    if not scheduler and not os.path.exists(scheduler_file):
        raise ClusterError(
            f"There is no {scheduler_file}. dask scheduler --scheduler-file={scheduler_file} "
            "writes it."
        )
    tls = distributed.Security().get_connection_args("client")
    if scheduler.startswith("tls://") and tls["ssl_context"] is None:
        raise ClusterError(
            f"{scheduler} needs certificates: set DASK_DISTRIBUTED__COMM__TLS__CA_FILE, and __CERT "
            "and __KEY of DASK_DISTRIBUTED__COMM__TLS__CLIENT."
        )
    where = {"address": scheduler} if scheduler else {"scheduler_file": scheduler_file}
    try:
        client = distributed.Client(**where, timeout=_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        place = scheduler or f"the address in {scheduler_file}"
        raise ClusterError(
            f"No Dask scheduler answers at {place} ({error}). dask scheduler starts one, and dask "
            "worker its workers."
        ) from error
    with client:
        if not client.scheduler_info()["workers"]:
            print(f"waiting for workers of {client.scheduler.address}", file=sys.stderr)
        yield client


def engine_of(client: distributed.Client, shared: str | os.PathLike) -> Engine:
    """Returns the engine of a client, whose workers make its calls.

    A call is made again by another worker if its worker has ended. A worker that does not see the
    shared folder, has other versions or several threads ends all calls by a `ClusterError`.

    Args:
        client: The client.
        shared: A folder that all workers must see. It is made if it is missing.
    """

    def engine(function, calls, started):
        with marked(shared) as mark:
            client.subscribe_topic(mark, lambda event: started(event[1]))
            wanted = Wanted(mark, versions())
            keys = {
                client.submit(_on_worker, wanted, key, function, *arguments, pure=False): key
                for key, arguments in calls.items()
            }
            try:
                for future in distributed.as_completed(list(keys), loop=client.loop):
                    yield keys.pop(future), _result(future, client)
            finally:
                with contextlib.suppress(Exception):  # the scheduler may have ended
                    client.cancel(list(keys))
                    client.unsubscribe_topic(mark)

    return engine


@contextlib.contextmanager
def marked(folder: str | os.PathLike) -> Iterator[str]:
    """Yields a file in a folder by which workers know it."""
    mark = pathlib.Path(folder).expanduser().absolute() / f"{_MARK}.{secrets.token_hex(8)}"
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()
    try:
        yield str(mark)
    finally:
        mark.unlink(missing_ok=True)


def _result(future: distributed.Future, client: distributed.Client) -> Any:
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
            f"The scheduler {client.scheduler.address} has ended. The same command continues with "
            "another one."
        ) from error


class Wanted(NamedTuple):
    """The things that a worker must have.

    Attributes:
        mark: A file in the shared folder, and the topic of the calls that start.
        versions: The versions of its software.
    """

    mark: str
    versions: Mapping[str, Any]

    def check(self, worker: distributed.Worker) -> None:
        """Raises a `ClusterError` if a worker lacks something."""
        if (threads := worker.state.nthreads) > 1:
            raise ClusterError(
                f"The worker {worker.address} has {threads} threads, but trains one run at a time. "
                "Start it with --nthreads=1."
            )
        if not os.path.exists(self.mark):
            raise ClusterError(
                f"The worker {worker.address} does not see {os.path.dirname(self.mark)}, which it "
                "must share with this program."
            )
        found = versions()
        if others := [name for name, it in self.versions.items() if found[name] != it]:
            (name, *_) = others
            raise ClusterError(
                f"The worker {worker.address} has {name} {found[name]}, but this program "
                f"{self.versions[name]}, and numbers may differ. Install the same in both."
            )


def _on_worker(wanted: Wanted, key: str, function: Callable, *arguments: Any) -> Any:
    worker = distributed.get_worker()
    wanted.check(worker)
    worker.memory_manager.memory_pause_fraction = False  # TensorFlow keeps what it has allocated
    worker.log_event(wanted.mark, key)
    return function(*arguments)


@functools.cache
def versions() -> dict[str, Any]:
    """Returns the versions of the software of this process."""
    # Imported here, because it imports TensorFlow, which a client of a cluster may not need.
    from tff_pfl.experiment.versions import software

    return software()
