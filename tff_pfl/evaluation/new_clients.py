"""Clients that took no part in training, and fine-tune the global model: section 5.4 of PGFed."""

from typing import Any

import numpy as np

from tff_pfl.algorithms import build_fedavg
from tff_pfl.clients import ClientStateStore, CohortDataSource
from tff_pfl.data import FederatedDataset
from tff_pfl.evaluation.federated import build_evaluation, evaluate_federation
from tff_pfl.evaluation.fine_tuning import fine_tuned
from tff_pfl.local import LocalSGD
from tff_pfl.models import Model
from tff_pfl.templates import PersonalizedProcess


class NewClientsEvaluation:
    """Evaluates the global model at clients that are new to it, before and after fine-tuning."""

    def __init__(
        self,
        process: PersonalizedProcess,
        model: Model,
        local: LocalSGD,
        dataset: FederatedDataset,
        *,
        epochs: int,
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
            local: How the clients fine-tune the global model.
            dataset: The data of the new clients; they fine-tune it with their training examples.
            epochs: Passes over them.
            first_id: What the first of them is called in the result.
            split: What they are evaluated on, "test" or "validation".
            clients_per_call: Clients evaluated at a time; bounds memory.
            capacity: See `CohortDataSource`.
            seed: Of the order of batches.

        Raises:
            ValueError: If the algorithm has no global model.
        """
        if process.global_weights is None:
            raise ValueError("new clients fine-tune the global model, and this algorithm has none.")
        self._global_weights = process.global_weights
        # A client that never took part has what FedAvg's clients have: the global model.
        fedavg = build_fedavg(model, process.client_type.data, local, seed=seed)
        self._fine_tuning = fine_tuned(fedavg, model, local, epochs=epochs, seed=seed)
        self._evaluation = build_evaluation(self._fine_tuning, model)
        self._dataset = dataset
        self._first_id = first_id
        self._split = split
        self._clients_per_call = clients_per_call
        store = ClientStateStore(
            lambda client_id: self._fine_tuning.initialize_client(np.int32(client_id)),
            self._fine_tuning.client_state_type,
        )
        self._source = CohortDataSource(
            dataset, store, self._fine_tuning.client_type, seed=seed, capacity=capacity
        )

    def __call__(self, server_state: Any) -> dict[str, np.ndarray]:
        """A row for each new client; see `evaluate_federation`.

        Args:
            server_state: The algorithm's `ServerState`; its round sets the learning rate.

        Returns:
            Columns such as `fine_tuned/new_clients_test/accuracy`, and likewise `global`.
        """
        state = self._fine_tuning.initialize()._replace(
            round_num=server_state.round_num, algorithm=self._global_weights(server_state)
        )
        columns = evaluate_federation(
            self._evaluation,
            state,
            self._source,
            self._dataset,
            split=self._split,
            clients_per_call=self._clients_per_call,
        )
        columns["client_id"] += self._first_id
        return {
            name.replace("personalized/local", "fine_tuned/new_clients").replace(
                "global/local", "global/new_clients"
            ): column
            for name, column in columns.items()
        }
