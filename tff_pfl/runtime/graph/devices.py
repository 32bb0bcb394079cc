"""Devices of this machine, on which computations run."""

import functools
import os
from collections.abc import Sequence

import absl.logging
import tensorflow as tf

from tff_pfl.arguments.names import unknown_name
from tff_pfl.runtime import cuda
from tff_pfl.runtime.errors import DeviceError
from tff_pfl.runtime.graph import internals


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
