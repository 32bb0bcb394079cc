"""Evaluates each client's own model on its test examples, in a federated program."""

import tensorflow_federated as tff

import tff_pfl
from tff_pfl.evaluation import EvaluatedClient, map_models, measured


def build_mean_accuracy(process: tff_pfl.PersonalizedProcess) -> tff.Computation:
    """Builds the evaluation; every client has the same weight in the mean.

    Returns:
        `(<S@SERVER, {EvaluatedClient}@CLIENTS> -> <accuracy_mean=float32>@SERVER)`.
    """

    def accuracy_of(model, weights, examples):
        return measured(model, weights, examples, batch_size=200)["accuracy"].mean

    evaluate = map_models(process, accuracy_of, {"accuracy_mean": process.personalize})

    @tff.federated_computation(*evaluate.type_signature.parameter)
    def mean_accuracy(state, clients):
        return tff.federated_mean(evaluate(state, clients))

    return mean_accuracy


class EvaluatedClients(tff.program.FederatedDataSource):
    """Selects all clients of a federation, with their states, training and test examples."""

    def __init__(self, source: tff_pfl.CohortDataSource):
        """Makes a source of the same clients as `source`."""
        self._source = source

    @property
    def federated_type(self) -> tff.types.FederatedType:
        """`{EvaluatedClient}@CLIENTS`."""
        client_type = self._source.federated_type.member
        fields = [("client", client_type), ("test", client_type.data)]
        return tff.types.FederatedType(
            tff.types.StructWithPythonType(fields, EvaluatedClient), tff.CLIENTS
        )

    def iterator(self) -> "EvaluatedClientsIterator":
        """Returns an iterator over evaluations."""
        return EvaluatedClientsIterator(self._source)


class EvaluatedClientsIterator(tff.program.FederatedDataSourceIterator):
    """Selects all clients each time, so that a program has no position to save."""

    def __init__(self, source: tff_pfl.CohortDataSource):
        self._source = source

    @property
    def federated_type(self) -> tff.types.FederatedType:
        """`{EvaluatedClient}@CLIENTS`."""
        return EvaluatedClients(self._source).federated_type

    def select(self, k: int | None = None) -> list[EvaluatedClient]:
        """Returns all clients with their current states; `k` must be `None`."""
        if k is not None:
            raise ValueError(f"All clients are evaluated: k must be None, found {k}.")
        client_ids = range(self._source.num_clients)
        clients = self._source.clients_of_ids(client_ids)
        tests = self._source.select_examples(client_ids, "test")
        return list(map(EvaluatedClient, clients, tests))

    def to_bytes(self) -> bytes:
        raise NotImplementedError("Evaluations always start anew; this iterator cannot be saved.")

    @classmethod
    def from_bytes(cls, buffer: bytes) -> "EvaluatedClientsIterator":
        raise NotImplementedError("Evaluations always start anew; this iterator cannot be saved.")
