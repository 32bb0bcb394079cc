"""How much memory something takes at its peak: of a GPU, or of this process."""

import pathlib
import re

import tensorflow as tf

_STATUS = pathlib.Path("/proc/self/status")
_CLEAR = pathlib.Path("/proc/self/clear_refs")


def reset_peak() -> None:
    """Begins anew to look for the peak."""
    gpus = tf.config.list_logical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.reset_memory_stats(_short(gpu.name))
    if not gpus:
        _CLEAR.write_text("5")  # the peak of the resident size, proc(5)


def peak_mib() -> float:
    """Since `reset_peak`: of the GPU that has most, or what the process had resident."""
    peaks = [
        tf.config.experimental.get_memory_info(_short(gpu.name))["peak"] / 2**20
        for gpu in tf.config.list_logical_devices("GPU")
    ]
    resident = int(re.search(r"VmHWM:\s*(\d+) kB", _STATUS.read_text())[1]) / 1024
    return round(max(peaks, default=resident), 1)


def _short(name: str) -> str:
    return name.removeprefix("/device:")
