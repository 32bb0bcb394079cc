"""Tests that exported sides of a process, which need TensorFlow alone, do its rounds."""

import json
import pathlib

import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.algorithms.test_contract import ROWS
from tests.federation import assert_equal
from tests.marks import slow
from tff_pfl import runtime
from tff_pfl.deployment import export_client, export_server, named_tensors

SUBJECTS = {row.id: row.subject for row in ROWS}
SIZES = (6, 5, 9)


class Side:
    """An exported side, whose signatures take what they need from tensors by name."""

    def __init__(self, folder):
        self.description = json.loads((pathlib.Path(folder) / "process.json").read_text())
        self._signatures = tf.saved_model.load(str(folder)).signatures

    def __contains__(self, name):
        return name in self._signatures

    def call(self, name, *tensors):
        known = {key: value for some in tensors for key, value in some.items()}
        inputs = self.description["signatures"][name]["inputs"]
        return self._signatures[name](**{key: tf.constant(known[key]) for key in inputs})


def of_label(label, tensors):
    return {name: value for name, value in tensors.items() if name.partition("__")[0] == label}


def inputs_of(client):
    return named_tensors("data", client.data) | {"client_id": client.client_id}


class Deployment:
    """A server and clients that exchange named tensors."""

    def __init__(self, process, folder):
        export_client(process, folder / "client")
        export_server(process, folder / "server")
        self.client, self.server = Side(folder / "client"), Side(folder / "server")
        self.state = self.server.call("initialize")
        self.client_states = {}

    def message(self, client, signature, select):
        message = self.server.call(signature, self.state)
        return message | (
            self.server.call(select, self.state, client) if select in self.server else {}
        )

    def next(self, clients):
        metrics = {}
        carried = [{}] * len(clients)
        for exchange in self.server.description["exchanges"]:
            total = self.server.call(f"zero_{exchange}")
            for position, client in enumerate(clients):
                own = self.state_of(client)
                done = self.client.call(
                    f"work_{exchange}",
                    self.message(client, f"message_{exchange}", f"select_{exchange}"),
                    client | own | carried[position],
                )
                self.client_states[int(client["client_id"])] = of_label("state", done)
                carried[position] = of_label("carry", done)
                total = self.server.call(f"accumulate_{exchange}", total, done)
            updated = self.server.call(f"update_{exchange}", self.state, total)
            self.state = of_label("server", updated)
            metrics[exchange] = of_label("metrics", updated)
        return metrics

    def state_of(self, client):
        number = int(client["client_id"])
        if number not in self.client_states:
            self.client_states[number] = self.client.call("initialize", client)
        return self.client_states[number]

    def personalize(self, client):
        message = self.message(client, "personalize_message", "personalize_select")
        return self.client.call("personalize", message, client, self.state_of(client))


@pytest.mark.parametrize(
    "name", ["ditto", "fedpg", *(slow(name) for name in SUBJECTS if name not in ("ditto", "fedpg"))]
)
def test_rounds_equal_those_of_the_process(name, tmp_path):
    subject = SUBJECTS[name]
    process, clients = subject.process, subject.clients(SIZES)
    deployment = Deployment(process, tmp_path)
    with tff.framework.get_context_stack().install(runtime.create_graph_context(vectorize="never")):
        state = process.initialize()
        for _ in range(3):
            state, states, metrics = process.next(state, clients)
            found = deployment.next([inputs_of(client) for client in clients])
            clients = [c._replace(state=s) for c, s in zip(clients, states, strict=True)]
            assert_equal(deployment.state, named_tensors("server", state))
            for client in clients:
                own = deployment.state_of(inputs_of(client))
                assert_equal(own, named_tensors("state", client.state))
            for exchange, its in found.items():
                assert_equal(its, named_tensors("metrics", metrics[exchange]))
        models = process.personalize(state, clients)
    for client, model in zip(clients, models, strict=True):
        assert_equal(deployment.personalize(inputs_of(client)), named_tensors("weights", model))
