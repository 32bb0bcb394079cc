"""Devices of this machine and of workers, on which computations run."""

import functools
import os
import signal
import socket
import time
from collections.abc import Sequence

import absl.logging
import tensorflow as tf

from tff_pfl.arguments.names import unknown_name
from tff_pfl.runtime import cuda
from tff_pfl.runtime.errors import DeviceError, WorkerDiedError
from tff_pfl.runtime.graph import internals

# The time to wait for a worker to start; TensorFlow would wait for ever.
_SECONDS_FOR_WORKERS = 10.0
_LAST_PORT = 65535
# The addresses of the workers that this process is connected to, in the order of their tasks.
_workers: list[str] = []


def choose(devices: Sequence[str] | str | None) -> list[str]:
    """Returns the full names of devices; see `create_graph_context`.

    Raises:
        DeviceError: A device does not exist.
    """
    if not devices:
        gpus = [device.name for device in tf.config.list_logical_devices("GPU")]
        if not gpus:
            _warn_of_unused_gpu()
        return gpus or [tf.config.list_logical_devices("CPU")[0].name]
    present = [device.name for device in tf.config.list_logical_devices()]
    return [_full_name(device, present) for device in _as_list(devices)]


def _as_list(names: Sequence[str] | str) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def num_cores() -> int:
    """Returns the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0))


def uses_onednn() -> bool:
    """Returns whether TensorFlow uses the kernels of oneDNN on CPUs in this process."""
    return internals.uses_onednn()


@functools.cache
def is_gpu(device: str) -> bool:
    """Returns whether this is the name of a GPU."""
    return tf.DeviceSpec.from_string(device).device_type == "GPU"


def _full_name(device: str, present: Sequence[str]) -> str:
    """Returns TensorFlow's full name of `CPU:0`, `/GPU:1` or a longer name of a device."""
    try:
        wanted = tf.DeviceSpec.from_string("/" + device.lstrip("/"))
    except ValueError:
        wanted = tf.DeviceSpec()
    if wanted.device_type is not None:
        for name in present:  # devices of this process come first
            if _complete(name).make_merged_spec(wanted) == _complete(name):
                return name
    raise DeviceError(unknown_name("device", device, present))


def _complete(name: str) -> tf.DeviceSpec:
    """Returns the spec of a device with its process, which names outside a cluster lack."""
    spec = tf.DeviceSpec.from_string(name)
    return spec if spec.job else spec.replace(job="localhost", replica=0, task=0)


def _warn_of_unused_gpu() -> None:
    if cuda.has_driver() and (missing := cuda.missing_libraries()):
        absl.logging.warning(
            "NVIDIA's driver is installed, but TensorFlow cannot use a GPU without %s. Run "
            "`make gpu`.",
            ", ".join(missing),
        )


def connect_to_workers(workers: Sequence[str] | str) -> list[str]:
    """Makes devices of other machines available, and returns their names.

    Args:
        workers: The `HOST:PORT` of each worker, which runs `programs/worker.py` or a
            `tf.distribute.Server` of the cluster `{"worker": workers}`.

    Returns:
        The names of the workers' GPUs, or of all their devices if they have no GPUs.

    Raises:
        DeviceError: A worker is not written as `HOST:PORT`.
        WorkerDiedError: A worker does not answer.
    """
    workers = _as_list(workers)
    for worker in workers:
        _wait_for(worker)
    _workers[:] = workers
    cluster = tf.train.ClusterSpec({"worker": workers})
    try:
        tf.config.experimental_connect_to_cluster(cluster, job_name="coordinator")
    except tf.errors.OpError as error:
        raise WorkerDiedError(f"Cannot connect to {', '.join(workers)}: {error.message}") from error
    names = [device.name for device in tf.config.list_logical_devices()]
    remote = [name for name in names if "/job:worker/" in name]
    return [name for name in remote if is_gpu(name)] or remote


def lend_devices(workers: Sequence[str], index: int) -> None:
    """Lends this machine's devices to a program that connects to all workers, and never returns.

    Args:
        workers: The `HOST:PORT` of each worker; see `connect_to_workers`.
        index: The index of this machine in `workers`, from 0.

    Raises:
        DeviceError: A worker is not written as `HOST:PORT`, no worker has this index, or its port
            is in use.
    """
    for worker in workers:
        _address(worker)
    if index >= len(workers):
        raise DeviceError(f"Worker {index} does not exist: indices are 0..{len(workers) - 1}.")
    cluster = tf.train.ClusterSpec({"worker": list(workers)})
    try:
        server = tf.distribute.Server(cluster, job_name="worker", task_index=index)
    except tf.errors.OpError as error:
        raise DeviceError(
            f"Worker {index} cannot listen at {workers[index]}, which another program may use: "
            f"{error.message}."
        ) from error
    print(f"worker {index} listens at {workers[index]}", flush=True)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a Python handler would wait for the server
    server.join()


def lost_workers(devices: Sequence[str]) -> list[str]:
    """Returns the addresses of the workers of these devices that do not answer."""
    specs = map(tf.DeviceSpec.from_string, devices)
    lent = [s.task for s in specs if s.job == "worker" and s.task < len(_workers)]
    return [_workers[i] for i in dict.fromkeys(lent) if not answers(_workers[i])]


def answers(worker: str) -> bool:
    """Returns whether a process listens at the `HOST:PORT` of a worker.

    Raises:
        DeviceError: The worker is not written as `HOST:PORT`.
    """
    address = _address(worker)
    try:
        socket.create_connection(address, timeout=1.0).close()
    except OSError:
        return False
    return True


def _address(worker: str) -> tuple[str, int]:
    host, _, port = worker.rpartition(":")
    if not host or not port.isdecimal() or int(port) > _LAST_PORT:
        raise DeviceError(
            "A worker must be HOST:PORT, such as localhost:8470, with a port of at most "
            f"{_LAST_PORT}, found {worker!r}."
        )
    return host, int(port)


def _wait_for(worker: str) -> None:
    address = _address(worker)
    deadline = time.monotonic() + _SECONDS_FOR_WORKERS
    while True:
        try:
            return socket.create_connection(address, timeout=1.0).close()
        except OSError as error:
            if time.monotonic() > deadline:
                raise WorkerDiedError(
                    f"No worker answers at {worker} ({error}). Start programs/worker.py there."
                ) from error
        time.sleep(0.2)
