"""Clients divided among devices: the result of one device, computed where it was asked for."""

import itertools
import signal
import socket

import pytest
import tensorflow as tf

from tests.marks import slow
from tests.runtime.conformance.compare import assert_same
from tests.runtime.graph.scripts.devices import CASES
from tests.runtime.graph.subprocesses import saved_by_script
from tff_pfl.runtime import (
    DeviceError,
    answers,
    connect_to_workers,
    create_graph_context,
    lend_devices,
)


@pytest.fixture(
    scope="module",
    params=[
        ("CPU", "some"),
        slow(("CPU", "all")),
        ("GPU", "all"),
    ],
    ids="-".join,
)
def kind_and_amount(request):
    kind, _ = request.param
    if not tf.config.list_physical_devices(kind):
        pytest.skip(f"This machine has no {kind} that TensorFlow can use.")
    return request.param


@pytest.fixture
def kind(kind_and_amount):
    return kind_and_amount[0]


@pytest.fixture(scope="module")
def saved(kind_and_amount, tmp_path_factory):
    """What the script saves, which runs all there is to run on two devices of the kind."""
    env = {"CUDA_VISIBLE_DEVICES": {"CPU": "", "GPU": "0"}[kind_and_amount[0]]}
    return saved_by_script("devices", *kind_and_amount, tmp_path_factory=tmp_path_factory, env=env)


def test_two_devices_give_what_one_gives(saved, kind_and_amount):
    names, sizes = CASES[kind_and_amount[1]]
    assert set(saved["one"]["auto"]) == set(itertools.product(names, sizes))
    for vectorize, results in saved["one"].items():
        for (case, size), one in results.items():
            two = saved["two"][vectorize][case, size]
            assert_same(two, one, path=f"{case} of {size}, {vectorize}")


def test_clients_keep_their_order(saved):
    for vectorize in ("auto", "never"):
        assert saved["two"][vectorize]["aggregate", 5] == b"( 1 4 7 10 13)"
        numbers = [number for _, number in saved["two"][vectorize]["map", 5][0]]
        assert numbers == [1, 4, 7, 10, 13]


def test_operations_are_executed_where_they_were_asked_for(saved, kind):
    """Clients on as many of the devices as there are clients for, the server on the first."""
    tried = itertools.product([(0, 1), (1, 0), (1,)], ["always", "never"], [1, 3])
    for indices, vectorize, size in tried:
        devices = tuple(f"{kind}:{index}" for index in indices)
        names = [f"/job:localhost/replica:0/task:0/device:{device}" for device in devices]
        expected = {"Lgamma": sorted(names[:size]), "Digamma": names[:1]}
        assert saved["executed_on"][devices, vectorize, size] == expected


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


@pytest.mark.parametrize("worker", ["localhost", ":8470", "localhost:", "localhost:x", "a:65536"])
def test_what_is_no_address_of_a_worker_raises_with_one_that_is(worker):
    message = f"HOST:PORT, such as localhost:8470, with a port of at most 65535, found '{worker}'"
    for use in (
        answers,
        lambda worker: connect_to_workers([worker]),
        lambda worker: lend_devices([worker], 0),
    ):
        with pytest.raises(DeviceError, match=message):
            use(worker)


def test_workers_that_are_no_list_raise():
    with pytest.raises(DeviceError, match=r"a list of addresses, as \['localhost:8470'\], found"):
        connect_to_workers("localhost:8470")


def test_a_worker_that_cannot_listen_says_why():
    with pytest.raises(DeviceError, match="There is no worker 1 of 1; the first one is 0"):
        lend_devices(["localhost:8470"], 1)
    with socket.create_server(("localhost", 0)) as other:
        worker = f"localhost:{other.getsockname()[1]}"
        with pytest.raises(DeviceError, match=f"Worker 0 cannot listen at {worker}; perhaps"):
            lend_devices([worker], 0)


def test_ctrl_c_ends_a_worker(monkeypatch):
    """Which waits in C++, where a handler of Python's would not be called."""
    handlers = []

    class Server:
        def __init__(self, *_, **__):
            pass

        def join(self):
            handlers.append(signal.getsignal(signal.SIGINT))

    monkeypatch.setattr(tf.distribute, "Server", Server)
    before = signal.getsignal(signal.SIGINT)
    try:
        lend_devices(["localhost:8470"], 0)
    finally:
        signal.signal(signal.SIGINT, before)
    assert handlers == [signal.SIG_DFL]
