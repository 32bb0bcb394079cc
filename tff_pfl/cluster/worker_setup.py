"""Prepares the processes that `clusters.local` starts, as a preload script of Dask."""

import os
import pathlib
import threading

import tqdm

_GPUS = pathlib.Path("/proc/driver/nvidia/gpus")


def dask_setup(worker) -> None:
    """Gives a worker a GPU, if there are any, and leaves Ctrl-C to the process that started it.

    Args:
        worker: The worker, whose name is its number.
    """
    os.setsid()
    tqdm.tqdm.set_lock(threading.RLock())  # its own would remain if this process was killed
    if gpus := _gpus():
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[worker.name % len(gpus)]


def _gpus() -> list[str]:
    """Returns the GPUs that this process may use, as CUDA names them."""
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return visible.split(",")
    return [str(number) for number, _ in enumerate(_GPUS.glob("*"))]
