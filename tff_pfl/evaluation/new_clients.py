"""Clients that took no part in training, and fine-tune what they receive: section 5.4 of PGFed."""

import collections
import functools
from typing import Any

import numpy as np
import tensorflow_federated as tff

from tff_pfl.clients import ClientStateStore, CohortDataSource
from tff_pfl.data import FederatedDataset
from tff_pfl.equality import elementwise_equality
from tff_pfl.evaluation import fine_tuning as tunings
from tff_pfl.evaluation.federated import BATCH_SIZE, EvaluatedClient, evaluate_federation
from tff_pfl.evaluation.metrics import ClientMetrics, direction
from tff_pfl.local import ClientContext, LocalTraining, evaluate
from tff_pfl.local.seeds import FINE_TUNING, client_seed, run_seed
from tff_pfl.models import Model
from tff_pfl.ranges import takes, whole
from tff_pfl.templates import Client, PersonalizedProcess

_BY_EPOCH = "fine_tuned_by_epoch"


@takes(epochs=whole(0), clients_per_call=whole(1))
class NewClientsEvaluation:
    """Evaluates what clients get that join at the end, before and after they fine-tune it.

    They get the global model. If the algorithm has none, they get what `personalize` makes for a
    client that never took part: FedPer's and FedRep's body with a head that nobody trained, of
    `local` the initial weights. Where the server has something for each client, by its id, as the
    embeddings of a hypernetwork, there is nothing for others.
    """

    def __init__(
        self,
        process: PersonalizedProcess,
        model: Model,
        local: LocalTraining,
        dataset: FederatedDataset,
        *,
        epochs: int,
        fine_tuning: LocalTraining | None = None,
        best_epoch: bool = False,
        locally_trained: bool = False,
        first_id: int = 0,
        split: str = "test",
        clients_per_call: int = 25,
        capacity: int | str | None = None,
        seed: int = 0,
    ):
        """Prepares the evaluation.

        Args:
            process: The algorithm.
            model: Its model.
            local: How clients train.
            dataset: The data of the new clients; they fine-tune it with their training examples.
            epochs: Passes over them.
            fine_tuning: How they fine-tune it; `None`: as clients train.
            best_epoch: Whether it is evaluated after each of them, for `with_best_epoch`.
            locally_trained: Whether it is also evaluated as each of them trains it in a round, as
                long as clients that take part do.
            first_id: The id of the first of them.
            split: The split they are evaluated on, "test" or "validation".
            clients_per_call: Clients evaluated at a time; bounds memory.
            capacity: See `CohortDataSource`.
            seed: The seed of the order of batches.

        Raises:
            ValueError: If the algorithm has nothing for new clients.
        """
        if process.global_weights is None and not process.takes_new_clients:
            raise ValueError(
                "new clients fine-tune the global model, and this algorithm has none; nor has its "
                "server a model for clients that it does not know. Set "
                "config.new_clients.evaluated=False to hold them out all the same, as of a "
                "baseline of runs that evaluate them."
            )
        model = process.evaluated_model or model
        fine_tuning = local if fine_tuning is None else fine_tuning
        trainings, by_epoch = {}, None
        if best_epoch and epochs:
            by_epoch = functools.partial(tunings.measured_fine_tuning, model, fine_tuning, epochs)
        else:
            trainings["fine_tuned"] = tunings.fine_tuning(model, fine_tuning, epochs)
        if locally_trained:
            trainings["locally_trained"] = tunings.fine_tuning(model, local)
        client_type, store = _joining(process, first_id)
        self._start = "personalized" if process.global_weights is None else "global"
        self._evaluation = _build_evaluation(
            process, model, self._start, trainings, by_epoch, client_type, first_id, seed
        )
        self._dataset = dataset
        self._first_id = first_id
        self._split = split
        self._clients_per_call = clients_per_call
        self._source = CohortDataSource(dataset, store, client_type, seed=seed, capacity=capacity)

    def __call__(self, server_state: Any) -> ClientMetrics:
        """Evaluates; see `evaluate_federation`.

        Args:
            server_state: The algorithm's `ServerState`; its last round sets the learning rate.

        Returns:
            Values such as `fine_tuned/new_clients_test/accuracy`, after all epochs, and likewise
            `locally_trained` and `fine_tuned_best_epoch`, if they are asked for, and what is
            fine-tuned: `global`, or `personalized` of an algorithm without a global model.
        """
        clients = evaluate_federation(
            self._evaluation,
            server_state,
            self._source,
            self._dataset,
            split=self._split,
            pool="new_clients",
            clients_per_call=self._clients_per_call,
        )
        clients = clients._replace(client_ids=clients.client_ids + self._first_id)
        return with_best_epoch(clients, self._start)


def with_best_epoch(clients: ClientMetrics, start: str) -> ClientMetrics:
    """Names what fine-tuning made of the model in all epochs and in the best for the mean client.

    The authors of PGFed report such a number: chosen on the very examples, it is higher than any
    that a user could choose by. The model before fine-tuning counts as epoch 0. Each quantity has
    its epoch, the first of several that are as good.

    Args:
        clients: With values float64 `[clients, epochs]` of the model "fine_tuned_by_epoch", if any,
            in whose place there are `fine_tuned` and `fine_tuned_best_epoch`.
        start: The name of the model before fine-tuning, "global" or "personalized".
    """
    values = {}
    for name, of_clients in clients.values.items():
        if name.model != _BY_EPOCH:
            values[name] = of_clients
            continue
        before = clients.values[name._replace(model=start)]
        of_clients = np.column_stack([before, of_clients])
        means = direction(name.quantity) * of_clients[clients.num_examples > 0].mean(0)
        best = np.argmax(np.nan_to_num(means, nan=-np.inf))  # a model that diverged is the worst
        values[name._replace(model="fine_tuned")] = of_clients[:, -1]
        values[name._replace(model="fine_tuned_best_epoch")] = of_clients[:, best]
    return clients._replace(values=values)


def _joining(process, first_id) -> tuple[tff.types.StructType, ClientStateStore]:
    """Returns the type of a new client, and its states: empty where all receive the same model."""
    if process.global_weights is None:

        def initial_states(rows):
            return process.initialize_clients([np.int32(first_id + row) for row in rows])

        return process.client_type, ClientStateStore(initial_states, process.client_state_type)
    stateless = tff.types.StructWithPythonType(
        [
            ("client_id", process.client_type.client_id),
            ("state", tff.types.to_type(())),
            ("data", process.client_type.data),
        ],
        Client,
    )
    return stateless, ClientStateStore(lambda ids: [()] * len(ids), stateless.state)


def _build_evaluation(
    process, model, start, trainings, by_epoch, client_type, first_id, seed
) -> tff.Computation:
    """`(<S@SERVER, {EvaluatedClient}@CLIENTS> -> {totals}@CLIENTS)`, of clients by their rows.

    Rows of new clients begin with 0, and ids with `first_id`: a training client has the other.
    """
    state_type = process.initialize.type_signature.result
    evaluated_type = tff.types.StructWithPythonType(
        [("client", client_type), ("test", client_type.data)], EvaluatedClient
    )

    @tff.tensorflow.computation(client_type)
    def by_id(client):
        return client._replace(client_id=client.client_id + first_id)

    @tff.tensorflow.computation(model.weights_type, state_type.member.round_num, evaluated_type)
    @elementwise_equality()
    def evaluate_client(weights, round_num, evaluated):
        client, test = evaluated
        drawn = client_seed(run_seed(seed, FINE_TUNING), round_num, client.client_id)
        context = ClientContext(round_num, client.client_id, drawn).of_evaluation()
        models = {name: train(weights, client.data, context) for name, train in trainings.items()}
        models[start] = weights

        def measure(weights):
            return evaluate(model, weights, test, batch_size=BATCH_SIZE)

        totals = {name: measure(weights) for name, weights in models.items()}
        if by_epoch is not None:
            totals[_BY_EPOCH] = by_epoch(weights, client.data, context, measure)
        return collections.OrderedDict(totals)

    @tff.federated_computation(state_type, tff.types.FederatedType(evaluated_type, tff.CLIENTS))
    def evaluate_clients(state, clients):
        if process.global_weights is None:
            weights = process.personalize(state, tff.federated_map(by_id, clients.client))
        else:
            weights = tff.federated_broadcast(tff.federated_map(process.global_weights, state))
        round_num = tff.federated_broadcast(state.round_num)
        return tff.federated_map(evaluate_client, (weights, round_num, clients))

    return evaluate_clients
