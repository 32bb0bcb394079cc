"""Runs experiments by TFF's own drivers, which know no clients' states.

In a simulation, the server's state contains the states of all clients. So TFF's drivers can train
any personalized process, and what saves the server's state saves the clients' states with it.
"""

import collections
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl import evaluation
from tff_pfl.aggregators import StackFactory
from tff_pfl.arguments.ranges import takes, whole
from tff_pfl.clients import ClientStateStore, CohortDataSource
from tff_pfl.deployment.examples_source import ExamplesDataSource, IdentifiedClient
from tff_pfl.deployment.stateless_view import settable_weights_type, under_client_work, with_weights
from tff_pfl.evaluation.each_client import evaluated_rows
from tff_pfl.evaluation.evaluator import metrics_of
from tff_pfl.experiment import Experiment
from tff_pfl.local import trees
from tff_pfl.runtime.graph.imported import ImportedFunction
from tff_pfl.templates.blocks import check_ids
from tff_pfl.templates.federation import Federation
from tff_pfl.templates.process import PersonalizedProcess
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
) -> tff.templates.IterativeProcess:
    """Makes a process whose server keeps the clients' states, for `tff.simulation` and the like.

    With `S`, `C`, `D`, `W` and `M` as in `PersonalizedProcess`, and `C[N]` the states of all
    clients, each tensor with a leading axis of `N = num_clients`:

        initialize        : ( -> <server=S, clients=C[N]>@SERVER)
        next              : (<<server=S, clients=C[N]>@SERVER, {<client_id=int32, data=D>}@CLIENTS>
                             -> <state=<server=S, clients=C[N]>@SERVER, metrics=M'@SERVER>)

    `M'` has the metrics of exchanges (`train` in most methods) under `client_work`, as in
    `compose_stateless_view`. Rounds have the numbers of `process`.

    If the global model is `weights` of the server's state, as in `averaging`, the result is a
    `tff.learning.templates.LearningProcess`, for `tff.learning.programs.train_model`:

        get_model_weights : (<server=S, clients=C[N]> -> W)
        set_model_weights : (<<server=S, clients=C[N]>, W> -> <server=S, clients=C[N]>)

    This is for simulations only, because the server sees the states of all clients. It holds `N`
    states in memory, copies them in each round, and each saved state has all of them.
    `tff_pfl.train` reads and writes only those of the cohort.

    Example:
        >>> model, local = testing.tiny_model(), testing.tiny_local()
        >>> algorithm = tff_pfl.make("fedper", model, local)
        >>> process = tff_pfl.compose(algorithm, testing.EXAMPLES_TYPE)
        >>> simulation = tff_pfl.deployment.simulation_process(process, num_clients=4)
        >>> simulation.initialize().clients["head"]["bias"].shape
        (4, 3)

    Args:
        process: The process.
        num_clients: The number of clients. A round fails with `tf.errors.InvalidArgumentError` if
            its cohort has a client twice, or an id that is not in 0 .. `num_clients` - 1.

    Raises:
        TypeError: Clients' states have tensors of unknown shapes.
    """
    first_states = _first_states(process, num_clients)
    stack_type = first_states.type_signature.result
    own_state = trace(
        "the state of a client",
        # An id out of range fails after the round, with a message.
        lambda clients, i: trees.row(clients, tf.clip_by_value(i, 0, num_clients - 1)),
        stack_type,
        np.int32,
    )
    new_type = collections.OrderedDict(client_id=np.int32, state=process.client_state_type)
    stack = StackFactory().create(tff.types.to_type(new_type), tff.types.TensorType(np.float32))
    stacked_type = stack.next.type_signature.result.result.member
    federation = Federation(num_clients)

    def with_new_states(server, clients, stacked):
        ids = stacked.value["client_id"]
        with tf.control_dependencies(check_ids(ids, federation, distinct=True)):
            server = tf.nest.map_structure(tf.identity, server)
            clients = trees.put_rows(clients, tf.identity(ids), stacked.value["state"])
        return SimulationState(server, clients)

    server_type = process.initialize.type_signature.result.member
    finish = trace("clients' states", with_new_states, server_type, stack_type, stacked_type)
    metrics_type = process.next.type_signature.result.metrics.member
    regroup = trace("the metrics of a round", under_client_work, metrics_type)

    @tff.federated_computation
    def initialize():
        clients = tff.federated_eval(first_states, tff.SERVER)
        return tff.federated_zip(SimulationState(process.initialize(), clients))

    state_type = initialize.type_signature.result
    client_type = tff.types.StructWithPythonType(
        [("client_id", np.int32), ("data", process.client_type.data)], IdentifiedClient
    )

    @tff.federated_computation(state_type, tff.types.FederatedType(client_type, tff.CLIENTS))
    def next_round(state, clients):
        ids, everybody = clients.client_id, tff.federated_broadcast(state.clients)
        own = tff.federated_map(own_state, (everybody, ids))
        cohort = tff.federated_zip(Client(ids, own, clients.data))
        output = process.next(state.server, cohort)
        new = collections.OrderedDict(client_id=ids, state=output.clients)
        stacked = stack.next(
            stack.initialize(),
            tff.federated_zip(new),
            tff.federated_value(np.float32(1), tff.CLIENTS),
        )
        return tff.learning.templates.LearningProcessOutput(
            tff.federated_map(finish, (output.state, state.clients, stacked.result)),
            tff.federated_map(regroup, output.metrics),
        )

    weights_type = settable_weights_type(process)
    if weights_type is None:
        return tff.templates.IterativeProcess(initialize, next_round, next_is_multi_arg=True)
    get_weights = trace(
        "get_model_weights", lambda state: process.global_weights(state.server), state_type.member
    )
    set_weights = trace(
        "set_model_weights",
        lambda state, weights: state._replace(server=with_weights(state.server, weights)),
        state_type.member,
        weights_type,
    )
    return tff.learning.templates.LearningProcess(initialize, next_round, get_weights, set_weights)


def _first_states(process, num_clients) -> tff.Computation:
    """Makes `( -> C[N])`, the stacked states of clients that were never seen."""
    state_type = process.client_state_type
    if is_empty(state_type):
        return tff.tensorflow.computation(lambda: empty_value(state_type))
    specs = tff.types.type_to_tf_tensor_specs(state_type)

    @tff.tensorflow.computation(np.int32)
    def first_leaves(client_id):
        return tuple(tf.nest.flatten(process.initialize_client(client_id)))

    # A loop cannot call computations of TFF.
    message = tff.framework.ConcreteComputation.get_proto(first_leaves).tensorflow
    leaves_of = ImportedFunction(message, [tf.TensorSpec([], tf.int32)])

    @tff.tensorflow.computation
    def first_states():
        ids = tf.range(num_clients)
        leaves = tf.map_fn(leaves_of, ids, fn_output_signature=tf.nest.flatten(specs))
        return tf.nest.pack_sequence_as(specs, leaves)

    return first_states


class Simulation:
    """An experiment with the parts that TFF's drivers take.

    Rounds have the cohorts and the numbers of `tff_pfl.train`.

    Example:
        simulation = tff_pfl.deployment.Simulation(experiment)
        state = tff.simulation.run_training_process(
            simulation.process,
            simulation.training_selection_fn,
            experiment.rounds,
            evaluation_fn=simulation.evaluation_fn,
            evaluation_selection_fn=simulation.evaluation_selection_fn,
            program_state_manager=tff.program.FileProgramStateManager("states"),
            metrics_managers=[tff.program.CSVFileReleaseManager("metrics.csv")],
        )

    Attributes:
        process: The `simulation_process` of the experiment.
        train_data_source: The source of cohorts for `tff.learning.programs.train_model`.
    """

    def __init__(self, experiment: Experiment):
        """Makes the parts.

        Raises:
            ValueError, TemplateError: See `Experiment.process`.
            TypeError: See `simulation_process`.
        """
        process, members = experiment.process, experiment.members
        self._experiment = experiment
        self._task = evaluation.evaluated_model(process, experiment.model).task
        self._source = CohortDataSource(
            members,
            ClientStateStore(process.initialize_clients, process.client_state_type),
            process.client_type,
            seed=experiment.seed,
            capacity=experiment.capacity(experiment.cohort_size),
            participation=experiment.participation,
        )
        self._measure = evaluation.for_each_client(
            process,
            experiment.model,
            evaluation.measured,
            at_a_time=experiment.evaluation.clients_per_call,
        )
        self.process = simulation_process(process, members.num_clients)
        self.train_data_source = ExamplesDataSource(self._source, with_ids=True)

    def training_selection_fn(self, round_num: int) -> list[IdentifiedClient]:
        """Returns the cohort of a round, counted from 1, with its training examples.

        Raises:
            ValueError: Clients are selected by another rule than uniformly at random, so that
                cohorts depend on earlier rounds.
        """
        return self.train_data_source.of_round(round_num - 1, self._experiment.cohort_size)

    def evaluation_selection_fn(self, round_num: int) -> np.ndarray:
        """Returns the ids of the clients that the experiment evaluates, the same in all rounds."""
        del round_num
        return self._experiment.evaluator.client_ids

    def evaluation_fn(
        self, state: SimulationState, clients: Iterable[int | str]
    ) -> dict[str, float]:
        """Evaluates the models of some clients on their own examples of the experiment's split.

        Args:
            state: The state of `process`.
            clients: The names of clients, or their ids.

        Returns:
            The statistics over clients, such as `personalized/local_test/accuracy_mean`; see
            `tff_pfl.evaluation.summarize`.

        Raises:
            UnknownNameError: A client does not exist.
        """
        dataset, split = self._experiment.members, self._experiment.evaluation.split
        ids = np.asarray(dataset.ids_of(clients))
        states = [
            tf.nest.map_structure(lambda leaf, i=i: np.asarray(leaf)[i], state.clients) for i in ids
        ]
        self._source.store.put(ids, states)
        rows = evaluated_rows(self._source, *evaluation.SPLITS)
        found = self._measure(state.server, self._source, ids, split, rows)
        metrics = metrics_of(found, "local", dataset, split, ids).of_task(self._task)
        return evaluation.to_text(evaluation.summarize(metrics))
