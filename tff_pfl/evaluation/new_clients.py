"""Evaluates clients that join after training and fine-tune a model, as in PGFed's section 5.4."""

import collections
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow_federated as tff

from tff_pfl.arguments.ranges import takes, whole
from tff_pfl.clients import ClientStateStore, CohortDataSource, Ladder
from tff_pfl.data import FederatedDataset
from tff_pfl.evaluation import fine_tuning as tunings
from tff_pfl.evaluation.federated import (
    EvaluatedClient,
    at_once,
    evaluate_federation,
    evaluated_rows,
    measured,
    outputs_of_row,
    results_of_clients,
)
from tff_pfl.evaluation.metrics import ClientMetrics
from tff_pfl.local import ClientContext, LocalTraining
from tff_pfl.local.seeds import FINE_TUNING, client_seed, run_seed
from tff_pfl.models import Model, Weights
from tff_pfl.templates import Client, PersonalizedProcess, blocks
from tff_pfl.tracing.equality import elementwise_equality

_BY_EPOCH = "fine_tuned_by_epoch"


@takes(epochs=whole(0), clients_per_call=whole(1))
class NewClientsEvaluation:
    """An evaluation of new clients' models, before and after fine-tuning.

    New clients receive the global model. If the algorithm has none, they receive the model that
    `personalize` makes for a client that never took part: an untrained head on the body of FedPer
    or FedRep, or the initial weights in `local`. With a hypernetwork, they receive the mean of the
    embeddings, and fine-tuning fits this embedding, and personal layers, instead of the weights:
    see `Algorithm.new_client_model`. Other algorithms whose server keeps values for each client by
    its id have no model for new clients.
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
        capacity: int | str | Ladder | None = None,
        seed: int = 0,
    ):
        """Prepares the evaluation.

        Args:
            process: The algorithm.
            model: The algorithm's model.
            local: The local training of rounds.
            dataset: The data of the new clients. They fine-tune with their training examples.
            epochs: The number of passes over these examples.
            fine_tuning: The local training of the fine-tuning. `None` means `local`.
            best_epoch: Whether models are evaluated after each epoch, for `with_best_epoch`.
            locally_trained: Whether models are also evaluated after local training as in a round,
                for as many steps as clients that take part make.
            first_id: The id of the first new client.
            split: The split of the evaluation examples, "test" or "validation".
            clients_per_call: The number of clients evaluated at a time, which bounds memory.
            capacity: See `CohortDataSource`.
            seed: The seed of the order of batches.

        Raises:
            ValueError: The algorithm has no model for new clients.
        """
        fits = process.new_client_model
        if process.global_weights is None and fits is None and not process.takes_new_clients:
            raise ValueError(
                "new clients need a global model, or personal models for unknown clients, but this "
                "algorithm has none. Set config.new_clients.evaluated=False to hold these clients "
                "out without evaluating them."
            )
        model = process.evaluated_model or model
        fine_tuning = local if fine_tuning is None else fine_tuning
        plan = _Plan(
            "personalized" if process.global_weights is None else "global",
            functools.partial(tunings.fine_tuning, model, fine_tuning, epochs),
            functools.partial(tunings.measured_fine_tuning, model, fine_tuning, epochs)
            if best_epoch and epochs
            else None,
            tunings.fine_tuning(model, local) if locally_trained else None,
        )
        self._task = model.task
        client_type, store = _joining(process, first_id)
        self._plan = plan
        self._build = functools.partial(
            _build_evaluation, process, model, client_type, first_id, seed
        )
        self._dataset = dataset
        self._first_id = first_id
        self._split = split
        self._source = CohortDataSource(dataset, store, client_type, seed=seed, capacity=capacity)
        rows = evaluated_rows(self._source, split)
        measure = functools.partial(measured, model, batch_size=rows)
        self._evaluation = self._build(plan, measure)
        outputs = rows * outputs_of_row(process, model)
        self._clients_per_call = at_once(clients_per_call, outputs)

    def __call__(self, server_state: Any) -> ClientMetrics:
        """Evaluates the new clients; see `evaluate_federation`.

        Args:
            server_state: The algorithm's `ServerState`. Its last round sets the learning rate.

        Returns:
            Metrics such as `fine_tuned/new_clients_test/accuracy`, of the following models:
            `fine_tuned`, after all epochs; `locally_trained` and `fine_tuned_best_epoch`, if they
            were requested; and the model before fine-tuning, `global`, or `personalized` if the
            algorithm has no global model.
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
        clients = clients.of_task(self._task)
        return with_best_epoch(clients, self._plan.start)

    def models(self, server_state: Any, rows: Sequence[int]) -> Iterator[Weights]:
        """Yields the models of new clients after fine-tuning, which are measured as `fine_tuned`.

        Args:
            server_state: The algorithm's `ServerState`.
            rows: The positions of these clients in the data set of new clients.
        """
        plan = self._plan._replace(by_epoch=None, locally_trained=None)
        compute = self._build(plan, lambda weights, test: weights)
        at_a_time = self._clients_per_call
        for models in results_of_clients(
            compute, server_state, self._source, rows, self._split, at_a_time
        ):
            yield models["fine_tuned"]


def with_best_epoch(clients: ClientMetrics, start: str) -> ClientMetrics:
    """Replaces the metrics of all epochs by those of the last epoch and of the best epoch.

    PGFed's authors report the epoch with the best mean over clients. It is chosen on the examples
    of the evaluation, so it is better than any epoch that a user could choose. The model before
    fine-tuning counts as epoch 0. Each quantity has its own best epoch, the first if several tie.

    Args:
        clients: Metrics. Values of a model "fine_tuned_by_epoch", float64 `[clients, epochs]`, are
            replaced by `fine_tuned` and `fine_tuned_best_epoch`.
        start: The name of the model before fine-tuning, "global" or "personalized".
    """
    values, undefined = {}, {}
    for name in clients.values:
        if name.model != _BY_EPOCH:
            values[name], undefined[name] = clients.values[name], ~clients.is_defined(name)
            continue
        names = name._replace(model=start), name
        by_client = np.column_stack([clients.values[it] for it in names])
        is_defined = np.column_stack([clients.is_defined(it) for it in names])
        sums, numbers = by_client.sum(0, where=is_defined), is_defined.sum(0)
        means = np.divide(sums, numbers, out=np.full(len(sums), np.nan), where=numbers > 0)
        means = clients.quantities[name.quantity].better * means
        best = np.argmax(np.nan_to_num(means, nan=-np.inf))  # A diverged model is the worst.
        for model, epoch in (("fine_tuned", -1), ("fine_tuned_best_epoch", best)):
            values[name._replace(model=model)] = by_client[:, epoch]
            undefined[name._replace(model=model)] = ~is_defined[:, epoch]
    return clients._replace(values=values, undefined=undefined)


class _Plan(NamedTuple):
    """The models to evaluate, and how they are made.

    Attributes:
        start: The name of the model before fine-tuning.
        fine_tuned: `(weights_of) -> training`, see `tunings.fine_tuning`.
        by_epoch: `tunings.measured_fine_tuning` after each epoch instead, or `None`.
        locally_trained: The training as in a round, or `None`.
    """

    start: str
    fine_tuned: Callable[..., Any]
    by_epoch: Callable[..., Any] | None
    locally_trained: Callable[..., Any] | None


def _starts_personalized(process) -> bool:
    """Returns whether new clients start with the model that `personalize` makes."""
    return process.global_weights is None and process.new_client_model is None


def _joining(process, first_id) -> tuple[tff.types.StructType, ClientStateStore]:
    """Returns the type and the states of new clients, which are empty if they start without one."""
    if _starts_personalized(process):

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
    process, model, client_type, first_id, seed, plan, function
) -> tff.Computation:
    """Builds `(<S@SERVER, {EvaluatedClient}@CLIENTS> -> {OrderedDict of T}@CLIENTS)`.

    New clients are numbered from 0 here, but their ids start at `first_id`, because training
    clients have the smaller ids. A model's `T` is the result of the function `(W, D) -> T`, of its
    weights and the client's test examples.
    """
    state_type = process.initialize.type_signature.result
    evaluated_type = tff.types.StructWithPythonType(
        [("client", client_type), ("test", client_type.data)], EvaluatedClient
    )

    @tff.tensorflow.computation(client_type)
    def by_id(client):
        return client._replace(client_id=client.client_id + first_id)

    fits = process.new_client_model if process.global_weights is None else None
    message_of, message_type = process.global_weights, model.weights_type
    if fits is not None:
        message_of = blocks.trace(
            "new_client_model", lambda state: fits.distribute(state.algorithm), state_type.member
        )
        message_type = message_of.type_signature.result

    @tff.tensorflow.computation(message_type, state_type.member.round_num, evaluated_type)
    @elementwise_equality()
    def evaluate_client(message, round_num, evaluated):
        client, test = evaluated
        drawn = client_seed(run_seed(seed, FINE_TUNING), round_num, client.client_id)
        context = ClientContext(round_num, client.client_id, drawn).of_evaluation()
        weights, initial, weights_of = message, message, None
        if fits is not None:
            initial, weights_of = fits.init(message, seed), functools.partial(fits.weights, message)
            weights = weights_of(initial)

        def measure(weights):
            return function(weights, test)

        totals = {}
        if plan.by_epoch is None:
            tune = plan.fine_tuned(weights_of=weights_of)
            totals["fine_tuned"] = measure(tune(initial, client.data, context))
        if plan.locally_trained is not None:
            totals["locally_trained"] = measure(plan.locally_trained(weights, client.data, context))
        totals[plan.start] = measure(weights)
        if plan.by_epoch is not None:
            totals[_BY_EPOCH] = plan.by_epoch(
                initial, client.data, context, measure, weights_of=weights_of
            )
        return collections.OrderedDict(totals)

    @tff.federated_computation(state_type, tff.types.FederatedType(evaluated_type, tff.CLIENTS))
    def evaluate_clients(state, clients):
        if message_of is None:
            message = process.personalize(state, tff.federated_map(by_id, clients.client))
        else:
            message = tff.federated_broadcast(tff.federated_map(message_of, state))
        round_num = tff.federated_broadcast(state.round_num)
        return tff.federated_map(evaluate_client, (message, round_num, clients))

    return evaluate_clients
