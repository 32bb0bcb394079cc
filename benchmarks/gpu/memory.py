"""Measures the peak memory of GPUs, or of this process on a machine without them."""

import pathlib

import tensorflow as tf

from benchmarks.timing import memory_mib


def reset_peak() -> None:
    """Starts a new measurement of the peak memory."""
    gpus = tf.config.list_logical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.reset_memory_stats(gpu.name.removeprefix("/device:"))
    if not gpus:  # resets the peak of the resident size; see proc(5)
        pathlib.Path("/proc/self/clear_refs").write_text("5")


def peak_mib() -> float:
    """Returns the peak memory since `reset_peak`: the highest of all GPUs, or of this process."""
    peaks = [
        tf.config.experimental.get_memory_info(gpu.name.removeprefix("/device:"))["peak"] / 2**20
        for gpu in tf.config.list_logical_devices("GPU")
    ]
    return round(max(peaks), 1) if peaks else memory_mib(peak="VmHWM")["peak"]
