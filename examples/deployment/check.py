"""Compares the models of devices with those of the simulation, bit for bit.

    python check.py --algorithm=ditto --deployed=deployed

It repeats the exchanges that the coordinator recorded, with the clients whose uploads were counted.
"""

import argparse
import pathlib
import sys

from tff_pfl import prepare_process

prepare_process()

import numpy as np  # noqa: E402
import tensorflow_federated as tff  # noqa: E402
from exported import Message  # noqa: E402
from federation import experiment_of  # noqa: E402

import tff_pfl  # noqa: E402
from tff_pfl import deployment  # noqa: E402
from tff_pfl.templates import Client  # noqa: E402


def simulated(process, dataset, history) -> tuple:
    """Returns the server's state and the clients after some exchanges."""
    mapreduce = tff.backends.mapreduce
    forms = deployment.forms(process)
    servers = [mapreduce.get_computation_for_map_reduce_form(form.map_reduce) for form in forms]
    devices = [mapreduce.get_computation_for_broadcast_form(form.on_clients) for form in forms]
    state = process.initialize()
    states = {i: process.initialize_client(np.int32(i)) for i in range(dataset.num_clients)}
    carry = {}
    for finished in history:
        ids, (_, index) = finished["client_ids"], finished["position"]
        clients = [
            {"client_id": i, "state": states[i], "data": dataset.examples(i, "train")} for i in ids
        ]
        if index:
            clients = [client | {"carry": carry[client["client_id"]]} for client in clients]
        kept = devices[index](state, clients)
        state, _ = servers[index](state, clients)
        states |= {i: one["state"] for i, one in zip(ids, kept, strict=True)}
        carry = {i: one["carry"] for i, one in zip(ids, kept, strict=True)}
    return state, [Client(i, states[i], dataset.examples(i, "train")) for i in states]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--algorithm", default="ditto", help="The name of the method.")
    parser.add_argument("--deployed", required=True, type=pathlib.Path, help="The folder.")
    parser.add_argument("--devices", type=int, default=10, help="Number of devices.")
    parser.add_argument("--cohort", type=int, default=6, help="Number of devices in a round.")
    args = parser.parse_args()
    tff_pfl.set_graph_context(vectorize="never")
    experiment = experiment_of(args.algorithm, args.devices, args.cohort)
    process = experiment.process
    memory = Message.unpack((args.deployed / "server" / "memory.npz").read_bytes())
    history = memory.header["history"]
    state, clients = simulated(process, experiment.dataset, history)
    differing = (
        [] if _same(deployment.named_tensors("server", state), memory.tensors) else ["server"]
    )
    for client, weights in zip(clients, process.personalize(state, clients), strict=True):
        folder = args.deployed / f"device_{client.client_id}"
        found = Message.unpack((folder / "model.npz").read_bytes()).tensors
        if not _same(deployment.named_tensors("weights", weights), found):
            differing.append(folder.name)
    found = f"other numbers: {differing}" if differing else "all numbers are equal"
    print(f"{len(history)} exchanges, {len(clients)} models: {found}")
    sys.exit(bool(differing))


def _same(a, b) -> bool:
    return set(a) == set(b) and all(a[name].tobytes() == b[name].tobytes() for name in a)


if __name__ == "__main__":
    main()
