import numpy as np
import pytest
import tensorflow_federated as tff

from tff_pfl.local import examples_type
from tff_pfl.templates import Client, Federation, PersonalizedProcess, ProcessOutput
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


def build(initialize=initialize, next_round=next_round, **changes):
    arguments = {
        "initialize_client_fn": initialize_client,
        "personalize_fn": personalize,
        "global_weights_fn": global_weights,
    }
    return PersonalizedProcess(initialize, next_round, **(arguments | changes))


def test_properties():
    process = build()
    assert process.next is next_round
    assert process.initialize_client is initialize_client
    assert process.personalize is personalize
    assert process.global_weights is global_weights
    tff.test.assert_types_identical(process.client_type, CLIENT)
    tff.test.assert_types_identical(process.client_state_type, tff.types.TensorType(np.int32))
    assert build(global_weights_fn=None).global_weights is None
    assert process.client_snapshot is None
    assert build(client_snapshot_fn=client_snapshot).client_snapshot is client_snapshot


def test_a_process_with_other_parts_keeps_the_rest():
    @tff.federated_computation(STATE, CLIENTS)
    def other_round(state, clients):
        return ProcessOutput(state, clients.state, state)

    @tff.federated_computation(STATE, CLIENTS)
    def other_personalize(state, clients):
        return tff.federated_broadcast(state)

    process = build(
        snapshot_fn=global_weights,
        client_snapshot_fn=client_snapshot,
        further_models={"tuned": personalize},
        made_for=Federation(num_clients=3),
        noise_multiplier=0.5,
        takes_new_clients=False,
    )
    changed = process.replace(next_fn=other_round, personalize_fn=other_personalize)
    assert changed.next is other_round
    assert changed.personalize is other_personalize
    for name in (
        "initialize",
        "initialize_client",
        "global_weights",
        "snapshot",
        "client_snapshot",
    ):
        assert getattr(changed, name) is getattr(process, name) is not None
    assert changed.further_models == {"tuned": personalize}
    assert changed.made_for == Federation(num_clients=3)
    assert changed.noise_multiplier == 0.5
    assert not changed.takes_new_clients and build().takes_new_clients
    assert process.replace(further_models={}).further_models == {}
    assert process.replace().next is next_round
    assert process.replace().personalize is personalize


def test_next_takes_clients():
    @tff.federated_computation(STATE, tff.types.FederatedType(np.float32, tff.CLIENTS))
    def values(state, clients):
        return state, clients

    @tff.federated_computation(STATE, tff.types.FederatedType(CLIENT, tff.SERVER))
    def at_server(state, clients):
        return state, clients

    @tff.federated_computation(STATE, CLIENTS, CLIENTS)
    def three(state, clients, more):
        return ProcessOutput(state, clients.state, state)

    for wrong in (values, at_server, three):
        with pytest.raises(ProcessSignatureError, match="`next` takes <S@SERVER"):
            build(next_round=wrong)


def test_next_returns_state_clients_and_metrics():
    @tff.federated_computation(STATE, CLIENTS)
    def nameless(state, clients):
        return state, clients.state

    with pytest.raises(ProcessSignatureError, match="field 'state' is missing"):
        build(next_round=nameless)

    @tff.federated_computation(STATE, CLIENTS)
    def other_clients(state, clients):
        return ProcessOutput(state, tff.federated_broadcast(state), state)

    with pytest.raises(ProcessSignatureError, match=r"(?s)expected: \{int32\}.*found: .*float32"):
        build(next_round=other_clients)


def test_the_other_computations_fit():
    with pytest.raises(ProcessSignatureError, match="`initialize_client` is"):
        build(initialize_client_fn=global_weights)
    with pytest.raises(ProcessSignatureError, match="`global_weights` takes S"):
        build(global_weights_fn=initialize_client)

    @tff.federated_computation(CLIENTS)
    def without_state(clients):
        return clients.state

    with pytest.raises(ProcessSignatureError, match="`personalize` takes what `next` takes"):
        build(personalize_fn=without_state)
    with pytest.raises(ProcessSignatureError, match="`tuned` takes what `next` takes"):
        build(further_models={"tuned": without_state})


def test_a_snapshot_of_clients_takes_their_states():
    @tff.federated_computation(tff.types.FederatedType(np.float32, tff.CLIENTS))
    def of_other_states(states):
        return states

    @tff.federated_computation(tff.types.FederatedType(np.int32, tff.SERVER))
    def at_server(states):
        return states

    @tff.federated_computation(CLIENTS)
    def of_clients(clients):
        return clients.state

    for wrong in (of_other_states, at_server, of_clients, initialize_client):
        with pytest.raises(ProcessSignatureError, match=r"`client_snapshot` takes {C}@CLIENTS"):
            build(client_snapshot_fn=wrong)
