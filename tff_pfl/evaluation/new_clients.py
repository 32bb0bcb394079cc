"""Evaluates clients that join after training and fine-tune a model, as in PGFed's section 5.4."""

import collections
import functools
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import tensorflow_federated as tff

from tff_pfl.arguments.ranges import takes, whole
from tff_pfl.clients import ClientStateStore, CohortDataSource, Ladder
from tff_pfl.data import FederatedDataset
from tff_pfl.evaluation import fine_tuning as tunings
from tff_pfl.evaluation.each_client import GLOBAL, for_each_client, sent
from tff_pfl.evaluation.evaluator import measured, metrics_of
from tff_pfl.evaluation.metrics import ClientMetrics
from tff_pfl.evaluation.options import Evaluation
from tff_pfl.local import ClientContext, LocalTraining
from tff_pfl.local.seeds import FINE_TUNING, client_seed, run_seed
from tff_pfl.models import Weights
from tff_pfl.templates import Client, PersonalizedProcess
from tff_pfl.templates.algorithm import evaluated_model
from tff_pfl.tracing.trace import trace


class _Newcomer(NamedTuple):
    """The start of a new client.

    Attributes:
        message: The weights before fine-tuning, or the message of `Personalization.new_clients`.
        round_num: The number of rounds before.
        client: The `Client` with its training examples.
    """

    message: Any
    round_num: Any
    client: Client


@takes(epochs=whole(0))
class NewClientsEvaluation:
    """An evaluation of new clients' models, before and after fine-tuning.

    New clients receive the global model. If the algorithm has none, they receive the model that
    `personalize` makes for a client that never took part: an untrained head on the body of FedPer
    or FedRep, or the initial weights in `local`. With a hypernetwork, they receive the mean of the
    embeddings, and fine-tuning fits this embedding, and personal layers, instead of the weights:
    see `Personalization.new_clients`. Other algorithms whose server keeps values for each client by
    its id have no model for new clients.
    """

    def __init__(
        self,
        process: PersonalizedProcess,
        local: LocalTraining,
        dataset: FederatedDataset,
        options: Evaluation,
        seed: int = 0,
        *,
        epochs: int,
        fine_tuning: LocalTraining | None = None,
        locally_trained: bool = False,
        first_id: int = 0,
        capacity: int | Literal["cohort"] | Ladder | None = None,
    ):
        """Prepares the evaluation.

        Args:
            process: The algorithm.
            local: The local training of rounds.
            dataset: The data of the new clients. They fine-tune with their training examples.
            options: The split and the number of clients at a time; all new clients are evaluated.
            seed: The seed of the order of batches.
            epochs: The number of passes over the training examples.
            fine_tuning: The local training of the fine-tuning. `None` means `local`.
            locally_trained: Whether models are also evaluated after local training as in a round,
                for as many steps as clients that take part make.
            first_id: The id of the first new client.
            capacity: See `CohortDataSource`.

        Raises:
            ValueError: The algorithm has no model for new clients.
        """
        if not (_starts_from_server(process) or process.algorithm.personalize.takes_new_clients):
            raise ValueError(
                "new clients need a global model, or personal models for unknown clients, but this "
                "algorithm has none. Set evaluated=False to hold these clients out without "
                "evaluating them."
            )
        self._process = process
        self._start = "personalized" if process.global_weights is None else GLOBAL
        self.model = evaluated_model(process.algorithm, self._start)
        self._tune = functools.partial(
            tunings.fine_tuning, self.model, local if fine_tuning is None else fine_tuning, epochs
        )
        self._train = tunings.fine_tuning(self.model, local) if locally_trained else None
        self._dataset, self._options, self._seed, self._first_id = dataset, options, seed, first_id
        client_type, store = _joining(process, first_id)
        self._source = CohortDataSource(dataset, store, client_type, seed=seed, capacity=capacity)
        self._each = functools.partial(
            for_each_client,
            process,
            models={"new": self._newcomers},
            at_a_time=options.clients_per_call,
        )
        self._measure = self._each(self._measured)

    def __call__(self, server_state: Any) -> ClientMetrics:
        """Evaluates the new clients.

        Args:
            server_state: The algorithm's `ServerState`. Its last round sets the learning rate.

        Returns:
            Metrics such as `fine_tuned/new_clients_test/accuracy`, of the following models:
            `fine_tuned`, after all epochs; `locally_trained`, if it was requested; and the model
            before fine-tuning, `global`, or `personalized` if the algorithm has no global model.
        """
        split, rows = self._options.split, np.arange(self._dataset.num_clients)
        results = (found["new"] for found in self._measure(server_state, self._source, rows, split))
        clients = metrics_of(results, "new_clients", self._dataset, split, rows)
        return clients._replace(client_ids=rows + self._first_id).of_task(self.model.task)

    def models(self, server_state: Any, rows: Sequence[int]) -> Iterator[Weights]:
        """Yields the models of new clients after fine-tuning, which are measured as `fine_tuned`.

        Args:
            server_state: The algorithm's `ServerState`.
            rows: The positions of these clients in the data set of new clients.
        """
        tuned = self._each(self._fine_tuned)
        for found in tuned(server_state, self._source, rows, self._options.split):
            yield found["new"]

    def _newcomers(self, state, clients):
        """Computes `{_Newcomer}@CLIENTS`, in TFF.

        New clients are numbered from 0 here, but their ids start at `first_id`, because training
        clients have the smaller ids.
        """
        process = self._process
        if process.global_weights is not None:
            message = sent(process.global_weights, state)
        elif (fits := process.algorithm.personalize.new_clients) is not None:
            distribute = fits.distribute
            message_of = trace(
                "new_clients",
                lambda state: distribute(state.algorithm),
                state.type_signature.member,
            )
            message = sent(message_of, state)
        else:

            @tff.tensorflow.computation(clients.type_signature.member)
            def by_id(client):
                return client._replace(client_id=client.client_id + self._first_id)

            message = process.personalize(state, tff.federated_map(by_id, clients))
        round_num = tff.federated_broadcast(state.round_num)
        return tff.federated_zip(_Newcomer(message, round_num, clients))

    def _weights(self, message):
        """Returns what is fine-tuned, `P`, and `(P -> W)`, or `None` if `P` are the weights."""
        fits, seed = self._process.algorithm.personalize.new_clients, self._seed
        if fits is None or self._process.global_weights is not None:
            return message, None
        return fits.init(message, seed), functools.partial(fits.weights, message)

    def _context(self, newcomer) -> ClientContext:
        of_run, client_id = run_seed(self._seed, FINE_TUNING), newcomer.client.client_id
        drawn = client_seed(of_run, newcomer.round_num, client_id)
        return ClientContext(newcomer.round_num, client_id, drawn).of_evaluation()

    def _fine_tuned(self, model, newcomer, test, *, batch_size) -> Weights:
        """Computes the model of a new client after fine-tuning."""
        del model, test, batch_size
        initial, weights_of = self._weights(newcomer.message)
        return self._tune(weights_of)(initial, newcomer.client.data, self._context(newcomer))

    def _measured(self, model, newcomer, test, *, batch_size):
        """Computes the metrics of each model of a new client."""
        del model
        data, context = newcomer.client.data, self._context(newcomer)
        initial, weights_of = self._weights(newcomer.message)
        weights = initial if weights_of is None else weights_of(initial)

        def measure(weights):
            return measured(self.model, weights, test, batch_size=batch_size)

        tuned = self._fine_tuned(None, newcomer, test, batch_size=batch_size)
        found = collections.OrderedDict(fine_tuned=measure(tuned))
        if self._train is not None:
            found["locally_trained"] = measure(self._train(weights, data, context))
        found[self._start] = measure(weights)
        return found


def _starts_from_server(process) -> bool:
    """Returns whether new clients start with what the server sends, not with `personalize`."""
    fits = process.algorithm.personalize.new_clients
    return process.global_weights is not None or fits is not None


def _joining(process, first_id) -> tuple[tff.types.StructType, ClientStateStore]:
    """Returns the type and the states of new clients, which are empty if they start without one."""
    if not _starts_from_server(process):

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
