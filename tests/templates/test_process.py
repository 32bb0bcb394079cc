import dataclasses

import numpy as np
import pytest
import tensorflow_federated as tff

from tff_pfl.local import examples_type
from tff_pfl.templates import Client, PersonalizedProcess, ProcessOutput
from tff_pfl.templates.errors import ProcessSignatureError

STATE = tff.types.FederatedType(np.float32, tff.SERVER)
CLIENT = tff.types.StructWithPythonType(
    [
        ("client_id", np.int32),
        ("state", np.int32),
        ("data", examples_type((2,))),
    ],
    Client,
)
CLIENTS = tff.types.FederatedType(CLIENT, tff.CLIENTS)


@tff.tensorflow.computation
def zero():
    return np.float32(0)


@tff.federated_computation
def initialize():
    return tff.federated_eval(zero, tff.SERVER)


@tff.federated_computation(STATE, CLIENTS)
def next_round(state, clients):
    return ProcessOutput(state, clients.state, state)


@tff.tensorflow.computation(np.int32)
def initialize_client(client_id):
    return client_id


@tff.federated_computation(STATE, CLIENTS)
def personalize(state, clients):
    return tff.federated_broadcast(state)


@tff.tensorflow.computation(np.float32)
def global_weights(state):
    return state


@tff.federated_computation(tff.types.FederatedType(np.int32, tff.CLIENTS))
def client_snapshot(states):
    return states


def build(**changes):
    arguments = {
        "initialize_fn": initialize,
        "next_fn": next_round,
        "initialize_client": initialize_client,
        "personalize": personalize,
        "global_weights": global_weights,
    }
    return PersonalizedProcess(**(arguments | changes))


def test_a_process_has_its_computations_and_one_with_other_parts_keeps_the_rest():
    @tff.federated_computation(STATE, CLIENTS)
    def other_round(state, clients):
        return ProcessOutput(state, clients.state, state)

    process = build(client_snapshot=client_snapshot, noise_multiplier=0.5)
    assert process.next is next_round
    assert process.initialize is initialize
    tff.test.assert_types_identical(process.client_type, CLIENT)
    tff.test.assert_types_identical(process.client_state_type, tff.types.TensorType(np.int32))
    changed = dataclasses.replace(process, next_fn=other_round)
    assert changed.next is other_round
    assert changed.client_snapshot is client_snapshot
    assert changed.noise_multiplier == 0.5


@tff.federated_computation(STATE, tff.types.FederatedType(CLIENT, tff.SERVER))
def at_server(state, clients):
    return state, clients


@tff.federated_computation([("state", STATE)])
def without_clients(argument):
    return argument


@tff.federated_computation(STATE, CLIENTS)
def nameless(state, clients):
    return state, clients.state


@tff.federated_computation(STATE, CLIENTS)
def other_clients(state, clients):
    return ProcessOutput(state, tff.federated_broadcast(state), state)


@tff.tensorflow.computation(np.int32)
def other_state(client_id):
    return np.float32(0)


@tff.federated_computation(CLIENTS)
def of_clients(clients):
    return clients.state


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"next_fn": at_server}, "`next` takes <S@SERVER"),
        ({"next_fn": without_clients}, "`next` takes <S@SERVER"),
        ({"next_fn": nameless}, "`next` returns <state="),
        ({"next_fn": other_clients}, r"(?s)expected: \{int32\}.*found: .*float32"),
        ({"initialize_client": global_weights}, "`initialize_client` takes an id"),
        ({"initialize_client": other_state}, "`initialize_client` returns C"),
        ({"global_weights": initialize_client}, "`global_weights` takes float32"),
        ({"personalize": of_clients}, "`personalize` takes what `next` takes"),
        ({"further_models": {"tuned": of_clients}}, "`tuned` takes what `next` takes"),
        ({"client_snapshot": of_clients}, r"`client_snapshot` takes {int32}@CLIENTS"),
    ],
)
def test_computations_of_other_types_are_refused(changes, message):
    with pytest.raises(ProcessSignatureError, match=message):
        build(**changes)
