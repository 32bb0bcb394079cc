"""Clients divided among devices: the result of one device, computed where it was asked for."""

import pytest
import tensorflow as tf

from tests.runtime.conformance.compare import assert_same
from tests.runtime.graph.subprocesses import saved_by_script
from tff_pfl.runtime import DeviceError, create_graph_context

CASES = (
    *("sums", "means", "extremes", "aggregate", "map", "select", "ragged", "sequences"),
    *("resources", "ditto"),
)
COHORTS = (0, 1, 2, 5)


@pytest.fixture(scope="module", params=["CPU", "GPU"])
def kind(request):
    if not tf.config.list_physical_devices(request.param):
        pytest.skip(f"This machine has no {request.param} that TensorFlow can use.")
    return request.param


@pytest.fixture(scope="module")
def saved(kind, tmp_path_factory):
    """What the script saves, which runs all there is to run on two devices of the kind."""
    env = {"CUDA_VISIBLE_DEVICES": {"CPU": "", "GPU": "0"}[kind]}
    return saved_by_script("devices", kind, tmp_path_factory=tmp_path_factory, env=env)


def test_the_script_ran_these_cases(saved):
    assert set(saved["one"]["auto"]) == {(case, size) for case in CASES for size in COHORTS}


@pytest.mark.parametrize("size", COHORTS)
@pytest.mark.parametrize("case", CASES)
def test_two_devices_give_what_one_gives(saved, case, size):
    for vectorize in saved["one"]:
        if (case, size) in saved["one"][vectorize]:
            two, one = (saved[number][vectorize][case, size] for number in ("two", "one"))
            assert_same(two, one)


def test_clients_keep_their_order(saved):
    for vectorize in ("auto", "never"):
        assert saved["two"][vectorize]["aggregate", 5] == b"( 1 4 7 10 13)"
        numbers = [number for _, number in saved["two"][vectorize]["map", 5][0]]
        assert numbers == [1, 4, 7, 10, 13]


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("vectorize", ["always", "never"])
@pytest.mark.parametrize("indices", [(0, 1), (1, 0), (1,)])
def test_operations_are_executed_where_they_were_asked_for(saved, kind, indices, vectorize, size):
    """Clients on as many of the devices as there are clients for, the server on the first."""
    devices = [f"{kind}:{index}" for index in indices]
    executed_on = saved["executed_on"][*devices, vectorize, size]
    names = [f"/job:localhost/replica:0/task:0/device:{device}" for device in devices]
    assert executed_on == {"Lgamma": sorted(names[:size]), "Digamma": names[:1]}


def test_by_default_all_gpus_are_used_or_one_cpu(saved, kind):
    indices = {"CPU": [0], "GPU": [0, 1]}[kind]
    names = [f"/job:localhost/replica:0/task:0/device:{kind}:{index}" for index in indices]
    assert saved["default"] == {"Lgamma": names, "Digamma": names[:1]}


NAMES = ("CPU:0", "CPU", "cpu:0", "/CPU:0", "device:CPU:0", "/device:CPU:0")
FULL_NAMES = ("/job:localhost/CPU:0", "/job:localhost/replica:0/task:0/device:CPU:0")


@pytest.mark.parametrize("name", NAMES + FULL_NAMES)
def test_a_device_has_many_names(name):
    create_graph_context(devices=[name])


@pytest.mark.parametrize("name", ["CPU:1", "CPU:12", "/job:worker/task:1/CPU:0", "TPU:0", "GPU:99"])
def test_unknown_device_raises_with_what_there_is(name):
    nearest = tf.config.list_logical_devices("CPU")[0].name
    with pytest.raises(DeviceError) as raised:
        create_graph_context(devices=["CPU:0", name])
    assert str(raised.value).startswith(f"Unknown device {name!r}.")
    assert ("GPU" in name) or f"Did you mean {nearest!r}?" in str(raised.value)
    assert repr(nearest) in str(raised.value).split("Valid:")[1]


@pytest.mark.parametrize("name", ["", "CPU:x", "the first one", "/job:localhost"])
def test_what_is_no_name_of_a_device_raises(name):
    with pytest.raises(DeviceError, match=f"^Unknown device {name!r}"):
        create_graph_context(devices=[name])


@pytest.mark.parametrize("second", NAMES)
def test_a_device_that_is_named_twice_raises(second):
    with pytest.raises(DeviceError, match="named twice in .'CPU:0', "):
        create_graph_context(devices=["CPU:0", second])


@pytest.mark.parametrize("devices", [[], (), "CPU:0", ""])
def test_what_is_no_list_of_devices_raises(devices):
    with pytest.raises(DeviceError, match="must be a list with names of devices or None, got "):
        create_graph_context(devices=devices)
