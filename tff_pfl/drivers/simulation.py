"""Trains and evaluates any method by TFF's own drivers, which know no clients' states.

In a simulation, the server's state contains the states of all clients. So TFF's drivers can train
any personalized process, and what saves the server's state saves the clients' states with it.
"""

import collections
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.aggregators import StackFactory
from tff_pfl.arguments.ranges import takes, whole
from tff_pfl.deployment.global_model import evaluation_over_rounds, means_of, sums_of_data
from tff_pfl.deployment.stateless_view import under_client_work
from tff_pfl.drivers.examples_source import evaluated_type, identified_type
from tff_pfl.evaluation import EvaluatedClient, map_models
from tff_pfl.local import trees
from tff_pfl.runtime.graph.imported import ImportedFunction
from tff_pfl.templates.algorithm import evaluated_model
from tff_pfl.templates.blocks import IDS, check_ids, ids_of_cohort
from tff_pfl.templates.federation import Federation
from tff_pfl.templates.process import PersonalizedProcess, check_process
from tff_pfl.templates.values import Client
from tff_pfl.tracing.structures import empty_value, is_empty
from tff_pfl.tracing.trace import trace


class SimulationState(NamedTuple):
    """The server's state of a simulation.

    Attributes:
        server: The process's `ServerState`.
        clients: The states of all clients, each tensor with a leading axis of clients.
    """

    server: Any
    clients: Any


@takes(num_clients=whole(1))
def simulation_process(
    process: PersonalizedProcess, num_clients: int
) -> tff.learning.templates.LearningProcess:
    """Makes a process whose server keeps the clients' states.

    `tff.simulation.run_training_process` and `tff.learning.programs.train_model` take it. With `S`,
    `C`, `D` and `M` as in `PersonalizedProcess`, and `C[N]` the states of all clients, each tensor
    with a leading axis of `N = num_clients`:

        A                 = <server=S, clients=C[N]>
        initialize        : ( -> A@SERVER)
        next              : (<A@SERVER, {<client_id=int32, data=D>}@CLIENTS>
                             -> <state=A@SERVER, metrics=M'@SERVER>)
        get_model_weights : (A -> A)
        set_model_weights : (<A, A> -> A)

    `M'` has the metrics of exchanges (`train` in most methods) under `client_work`, as in
    `compose_stateless_view`. Rounds have the numbers of `process`. The global model, if there is
    one, is `process.global_weights(state.server)`.

    The whole state counts as the model's weights: TFF's evaluations are given nothing else, and a
    client's own model is made of both parts. `simulation_evaluation` evaluates it.

    This is for simulations only, because the server sees the states of all clients. It holds `N`
    states in memory, copies them in each round, and each saved state has all of them.
    `tff_pfl.train` reads and writes only those of the cohort.

    Example:
        >>> model, local = testing.tiny_model(), testing.tiny_local()
        >>> algorithm = tff_pfl.make("fedper", model, local)
        >>> process = tff_pfl.compose(algorithm, testing.EXAMPLES_TYPE)
        >>> simulation = tff_pfl.drivers.simulation_process(process, num_clients=4)
        >>> simulation.initialize().clients["head"]["bias"].shape
        (4, 3)

    Args:
        process: The process.
        num_clients: The number of clients. A round fails with `tf.errors.InvalidArgumentError` if
            its cohort has a client twice, or an id that is not in 0 .. `num_clients` - 1.

    Raises:
        TypeError: Clients' states have tensors of unknown shapes.
    """
    check_process(process)
    initialize = _initialize(process, num_clients)
    state_type = initialize.type_signature.result
    own_states = _own_states(state_type, num_clients)
    new_type = collections.OrderedDict(client_id=np.int32, state=process.client_state_type)
    stack = StackFactory().create(tff.types.to_type(new_type), tff.types.TensorType(np.float32))
    stacked_type = stack.next.type_signature.result.result.member

    def with_new_states(state, server, stacked):
        new = stacked.value
        return SimulationState(
            server, trees.put_rows(state.clients, new["client_id"], new["state"])
        )

    finish = trace(
        "the new states of clients",
        with_new_states,
        *(state_type.member, state_type.member.server, stacked_type),
    )
    metrics_type = process.next.type_signature.result.metrics.member
    regroup = trace("the metrics of a round", under_client_work, metrics_type)
    clients_type = tff.types.FederatedType(identified_type(process.client_type.data), tff.CLIENTS)

    @tff.federated_computation(state_type, clients_type)
    def next_round(state, clients):
        ids = clients.client_id
        state, own = own_states(state, ids)
        output = process.next(state.server, tff.federated_zip(Client(ids, own, clients.data)))
        new = collections.OrderedDict(client_id=ids, state=output.clients)
        weight = tff.federated_value(np.float32(1), tff.CLIENTS)
        stacked = stack.next(stack.initialize(), tff.federated_zip(new), weight)
        return tff.learning.templates.LearningProcessOutput(
            tff.federated_map(finish, (state, output.state, stacked.result)),
            tff.federated_map(regroup, output.metrics),
        )

    def same(state):
        return state

    def other(state, weights):
        del state
        return weights

    return tff.learning.templates.LearningProcess(
        initialize,
        next_round,
        trace("get_model_weights", same, state_type.member),
        trace("set_model_weights", other, state_type.member, state_type.member),
    )


@takes(num_clients=whole(1))
def simulation_evaluation(
    process: PersonalizedProcess, num_clients: int
) -> tff.learning.templates.LearningProcess:
    """Makes an evaluation of all models of a simulation.

    A `tff.learning.programs.EvaluationManager` takes it; see `Simulation`. With `A` as in
    `simulation_process` and `D` as in `PersonalizedProcess`:

        initialize        : ( -> E@SERVER)
        next              : (<E@SERVER, {<client=<client_id=int32, data=D>, test=D>}@CLIENTS>
                             -> <state=E@SERVER, metrics=M@SERVER>)
        get_model_weights : (E -> A)
        set_model_weights : (<E, A> -> E)

    Metrics are those of `compose_global_evaluation` for each model, by name: `personalized`, the
    further models and, if the process has one, `global`. A round fails with
    `tf.errors.InvalidArgumentError` if its cohort is not valid in `simulation_process`. The manager
    saves the states of all clients with each evaluation.

    Args:
        process: The process of the simulation.
        num_clients: The number of clients of the simulation.
    """
    check_process(process)
    initialize = _initialize(process, num_clients)
    state_type = initialize.type_signature.result
    own_states = _own_states(state_type, num_clients)
    sums_of_models = map_models(process, sums_of_data)
    client_type = evaluated_type(identified_type(process.client_type.data))
    clients_type = tff.types.FederatedType(client_type, tff.CLIENTS)

    @tff.federated_computation(state_type, clients_type)
    def sums_of_clients(state, clients):
        ids = clients.client.client_id
        state, own = own_states(state, ids)
        client = tff.federated_zip(Client(ids, own, clients.client.data))
        evaluated = tff.federated_zip(EvaluatedClient(client, clients.test))
        return sums_of_models(state.server, evaluated)

    def means(sums, like):
        return collections.OrderedDict(
            (name, means_of(evaluated_model(process.algorithm, name), sums[name], like[name]))
            for name in sums
        )

    return evaluation_over_rounds(initialize, sums_of_clients, means)


def _own_states(state_type, num_clients) -> tff.Computation:
    """Makes `(<A@SERVER, {int32}@CLIENTS> -> <A@SERVER, {C}@CLIENTS>)`, with a check of the ids."""

    def checked(state, ids):
        with tf.control_dependencies(check_ids(ids, Federation(num_clients), distinct=True)):
            return tf.nest.map_structure(tf.identity, state)

    check = trace("the ids of a cohort", checked, state_type.member, IDS)
    row = trace("the state of a client", trees.row, state_type.member.clients, np.int32)

    @tff.federated_computation(state_type, tff.types.FederatedType(np.int32, tff.CLIENTS))
    def own_states(state, ids):
        state = tff.federated_map(check, (state, ids_of_cohort(ids)))
        return state, tff.federated_map(row, (tff.federated_broadcast(state.clients), ids))

    return own_states


def _initialize(process, num_clients) -> tff.Computation:
    """Makes `( -> A@SERVER)`, with the states of clients that were never seen."""
    state_type = process.client_state_type
    specs = tff.types.type_to_tf_tensor_specs(state_type)

    @tff.tensorflow.computation(np.int32)
    def first_leaves(client_id):
        return tuple(tf.nest.flatten(process.initialize_client(client_id)))

    # A loop cannot call computations of TFF.
    message = tff.framework.ConcreteComputation.get_proto(first_leaves).tensorflow
    leaves_of = ImportedFunction(message, [tf.TensorSpec([], tf.int32)])

    @tff.tensorflow.computation
    def first_states():
        if is_empty(state_type):
            return empty_value(state_type)
        ids = tf.range(num_clients)
        leaves = tf.map_fn(leaves_of, ids, fn_output_signature=tf.nest.flatten(specs))
        return tf.nest.pack_sequence_as(specs, leaves)

    @tff.federated_computation
    def initialize():
        clients = tff.federated_eval(first_states, tff.SERVER)
        return tff.federated_zip(SimulationState(process.initialize(), clients))

    return initialize
