"""Tests clients on several devices, and the names of devices."""

import itertools

import pytest
import tensorflow as tf

from tests.marks import slow, together
from tests.runtime.graph.subprocesses import saved_by_script
from tff_pfl.runtime import (
    DeviceError,
    create_graph_context,
    current_devices,
    set_graph_context,
)

CPU = tf.config.list_logical_devices("CPU")[0].name
HOST = "/job:localhost/replica:0/task:0/device:CPU:0"


@pytest.fixture(scope="module", params=[slow("CPU", id="CPU"), "GPU"])
def kind(request):
    if not tf.config.list_physical_devices(request.param):
        pytest.skip(f"This machine has no {request.param} that TensorFlow can use.")
    return request.param


@pytest.fixture(scope="module")
def saved(kind, tmp_path_factory):
    """Runs the script on two devices of the kind, and returns what it saves."""
    env = {"CUDA_VISIBLE_DEVICES": {"CPU": "", "GPU": "0"}[kind]}
    return saved_by_script("devices", kind, tmp_path_factory=tmp_path_factory, env=env)


@pytest.mark.parametrize("vectorize", ["auto", "never"])
def test_two_devices_give_the_stated_results(saved, vectorize):
    assert saved["wrong"][vectorize] == []


def test_operations_run_on_the_requested_devices(saved, kind):
    """Checks that clients are divided among the devices, and the server uses the first device.

    Operations that are placed on the CPU stay there.
    """
    tried = itertools.product([(0, 1), (1, 0), (1,)], ["always", "never"], [1, 3])
    for indices, vectorize, size in tried:
        devices = tuple(f"{kind}:{index}" for index in indices)
        names = [f"/job:localhost/replica:0/task:0/device:{device}" for device in devices]
        expected = {"Lgamma": sorted(names[:size]), "Digamma": names[:1], "Erfinv": [HOST]}
        assert saved["executed_on"][devices, vectorize, size] == expected


def test_default_is_all_gpus_or_one_cpu(saved, kind):
    indices = {"CPU": [0], "GPU": [0, 1]}[kind]
    names = [f"/job:localhost/replica:0/task:0/device:{kind}:{index}" for index in indices]
    assert saved["default"] == {"Lgamma": names, "Digamma": names[:1], "Erfinv": [HOST]}


@together("devices", ["CPU:0", ["cpu:0"], [HOST]])
def test_device_may_have_several_names(devices):
    try:
        set_graph_context(devices=devices)
        assert current_devices() == (CPU,)
    finally:
        set_graph_context()


@together("name", ["CPU:1", "/job:worker/task:1/CPU:0", "CPU:x"])
def test_error_for_an_unknown_device_lists_the_devices(name):
    with pytest.raises(DeviceError) as raised:
        create_graph_context(devices=["CPU:0", name])
    assert str(raised.value).startswith(f"Unknown device {name!r}.")
    assert repr(CPU) in str(raised.value)
