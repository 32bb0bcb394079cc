"""Runs the coordinator and the devices of the example in one process, and rounds to compare."""

import functools
import importlib
import pathlib
import socket
import sys

from tests.algorithms.test_contract import ROWS
from tff_pfl.deployment import export_client, export_server, named_tensors

SUBJECTS = {row.id: row.subject for row in ROWS}
SIZES = (6, 5, 9)  # the number of examples of each client

EXAMPLE = pathlib.Path("examples/deployment")
sys.path.insert(0, str(EXAMPLE))  # its programs import each other by their names
exported, coordinator, device = map(importlib.import_module, ("exported", "coordinator", "device"))

_side = functools.cache(exported.Side)
coordinator.Side = device.Side = lambda folder: _side(folder.resolve())


def rounds_of_the_process(process, clients):
    """Yields the server's state, the clients and the metrics after each of three rounds."""
    state = process.initialize()
    for _ in range(3):
        state, states, metrics = process.next(state, clients)
        clients = [c._replace(state=s) for c, s in zip(clients, states, strict=True)]
        yield state, clients, metrics


def write_folders(folder, process, clients):
    """Writes the folders of a coordinator and of devices with the examples of clients."""
    export_server(process, folder / "exported_server")
    export_client(process, folder / "client")
    (folder / "server").mkdir()
    (folder / "server" / "process").symlink_to(folder.resolve() / "exported_server")
    for client in clients:
        own = folder / f"device_{client.client_id}"
        own.mkdir()
        (own / "client").symlink_to(folder.resolve() / "client")
        header = {"client_id": int(client.client_id)}
        exported.Message(header, named_tensors("data", client.data)).write(own / "examples.npz")


def coordinator_of(folder, num_devices, rounds, **options):
    options = {"cohort_size": num_devices} | options
    return coordinator.Coordinator(
        folder / "server", num_devices=num_devices, rounds=rounds, **options
    )


def device_of(folder, client_id):
    return device.Device(folder / f"device_{client_id}")


def answer(server, one):
    """Returns what a device does with its task: its upload, or `None`."""
    return one.act(server.ask(one.hello()))


def run(folder, num_devices, rounds):
    """Runs the rounds, and returns the coordinator."""
    server = coordinator_of(folder, num_devices, rounds)
    devices = [device_of(folder, client_id) for client_id in range(num_devices)]
    is_over = False
    while not is_over:
        for one in devices:
            upload = answer(server, one)
            if upload is not None:
                server.send(upload)
        server.finish_if_due()
        is_over = all((folder / f"device_{i}" / "model.npz").exists() for i in range(num_devices))
    return server


def files(folder):
    """Returns the memory of the server and the models of devices, as bytes."""
    found = [folder / "server" / "memory.npz", *sorted(folder.glob("device_*/model.npz"))]
    return [path.read_bytes() for path in found]


def free_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def tensors(path):
    return exported.Message.unpack(path.read_bytes()).tensors
