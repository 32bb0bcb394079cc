"""Runs computations on one device and on two, and saves what they return and where they ran.

    python -m tests.runtime.graph.scripts.devices CPU some results.pickle

The devices are logical ones, both on the first device of the kind.
"""

import pickle
import sys

from tff_pfl.runtime.startup import prepare_process

prepare_process()

# ruff: noqa: E402
import tensorflow as tf

# By how much is run: the computations, and the sizes of their cohorts.
CASES = {
    "some": (("sums", "aggregate", "map"), (1, 5)),
    "all": (
        (
            *("sums", "means", "extremes", "aggregate", "map", "select", "ragged", "sequences"),
            *("resources", "ditto"),
        ),
        (0, 1, 2, 5),
    ),
}


def make_two_devices(kind):
    """Must come before anything is computed."""
    physical = tf.config.list_physical_devices(kind)[0]
    memory = {"memory_limit": 1024} if kind == "GPU" else {}
    logical = tf.config.LogicalDeviceConfiguration(**memory)
    tf.config.set_logical_device_configuration(physical, [logical, logical])
    tf.config.experimental.enable_tensor_float_32_execution(False)


def main(kind, amount, path):
    make_two_devices(kind)
    from tests.runtime.graph.scripts import computations

    first, second = f"{kind}:0", f"{kind}:1"
    names, sizes = CASES[amount]

    def results(devices):
        # An algorithm takes long to trace: in one way only.
        plain = [name for name in names if name != "ditto"]
        found = {"never": computations.results(plain, sizes, devices=devices, vectorize="never")}
        found["auto"] = computations.results(names, sizes, devices=devices)
        return found

    saved = {
        "one": results([first]),
        "two": results([first, second]),
        "executed_on": {
            (devices, vectorize, size): computations.executed_on(
                size, devices=devices, vectorize=vectorize
            )
            for devices in ((first, second), (second, first), (second,))
            for vectorize in ("always", "never")
            for size in (1, 3)
        },
        "default": computations.executed_on(3),
    }
    with open(path, "wb") as file:
        pickle.dump(saved, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
