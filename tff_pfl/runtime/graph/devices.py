"""Which devices computations run on."""

from collections.abc import Sequence

import absl.logging
import tensorflow as tf

from tff_pfl.names import unknown_name
from tff_pfl.runtime import cuda


def choose(devices: Sequence[str] | None) -> list[str]:
    """The full names of the devices, checked; see `create_graph_context`.

    Raises:
        ValueError: A device is not there, or is named twice, or none is named.
    """
    if devices is None:
        gpus = [device.name for device in tf.config.list_logical_devices("GPU")]
        if not gpus:
            _warn_of_unused_gpu()
        return gpus or [tf.config.list_logical_devices("CPU")[0].name]
    if isinstance(devices, str) or not devices:
        raise ValueError(f"devices must be a list with names of devices or None, got {devices!r}.")
    present = [device.name for device in tf.config.list_logical_devices()]
    chosen = [_full_name(device, present) for device in devices]
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"A device is named twice in {list(devices)}.")
    return chosen


def _full_name(device: str, present: Sequence[str]) -> str:
    """`CPU:0`, `/GPU:1` or a longer name of a device, as TensorFlow has it."""
    try:
        wanted = tf.DeviceSpec.from_string("/" + device.lstrip("/"))
    except ValueError as error:
        raise ValueError(f"{device!r} is no name of a device: {error}") from None
    specs = [(name, tf.DeviceSpec.from_string(name)) for name in present]
    found = [name for name, spec in specs if spec.make_merged_spec(wanted) == spec]
    if wanted.device_index is None:
        found = found[:1]
    local = [name for name in found if name in _local()]
    if not found:
        raise ValueError(unknown_name("device", device, present))
    return (local or found)[0]


def _local() -> set[str]:
    """The devices of this process; in a cluster, others may have the same short names."""
    context = tf.config.list_logical_devices("CPU")[0].name.split("/device:")[0]
    return {device.name for device in tf.config.list_logical_devices() if context in device.name}


def _warn_of_unused_gpu() -> None:
    if cuda.has_driver() and (missing := cuda.missing_libraries()):
        absl.logging.warning(
            "NVIDIA's driver is here, but TensorFlow cannot use a GPU without %s: run `make gpu`.",
            ", ".join(missing),
        )
