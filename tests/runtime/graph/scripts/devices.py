"""Runs computations on two devices, and saves wrong results and the devices that were used.

    python -m tests.runtime.graph.scripts.devices CPU results.pickle

Both devices are logical devices on the first physical device of the type.
"""

import pickle
import sys

from tff_pfl.runtime.startup import prepare_process

prepare_process()

# ruff: noqa: E402
import tensorflow as tf


def make_two_devices(kind):
    """Divides the first device into two logical devices, before anything is computed."""
    physical = tf.config.list_physical_devices(kind)[0]
    memory = {"memory_limit": 1024} if kind == "GPU" else {}
    logical = tf.config.LogicalDeviceConfiguration(**memory)
    tf.config.set_logical_device_configuration(physical, [logical, logical])
    tf.config.experimental.enable_tensor_float_32_execution(False)


def main(kind, path):
    make_two_devices(kind)
    from tests.runtime.graph.scripts import placement

    first, second = f"{kind}:0", f"{kind}:1"
    saved = {
        "wrong": {
            vectorize: placement.wrong_cases(devices=[first, second], vectorize=vectorize)
            for vectorize in ("auto", "never")
        },
        "executed_on": {
            (devices, vectorize, size): placement.executed_on(
                size, devices=devices, vectorize=vectorize
            )
            for devices in ((first, second), (second, first), (second,))
            for vectorize in ("always", "never")
            for size in (1, 3)
        },
        "default": placement.executed_on(3),
    }
    with open(path, "wb") as file:
        pickle.dump(saved, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
