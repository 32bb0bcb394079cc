"""Starts and finds the workers of a Dask cluster, and checks that they fit."""

import contextlib
import functools
import importlib.util
import logging
import os
import pathlib
import secrets
import signal
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import dask.config
import distributed

from tff_pfl.cluster.errors import ClusterError

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
            preload="tff_pfl.cluster.worker_setup",
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


@functools.cache
def versions() -> dict[str, Any]:
    """Returns the versions of the software of this process."""
    # Imported here, because it imports TensorFlow, which a client of a cluster may not need.
    from tff_pfl.experiment.versions import software

    return software()
