"""Computes the losses of the global model, on which selectors of clients may depend."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow_federated as tff

from tff_pfl.arguments.ranges import takes, whole
from tff_pfl.clients import CohortDataSource
from tff_pfl.evaluation.federated import evaluated_rows
from tff_pfl.local import evaluate
from tff_pfl.models import Model
from tff_pfl.templates import PersonalizedProcess
from tff_pfl.tracing.equality import elementwise_equality


@takes(clients_per_call=whole(1))
def global_losses(
    process: PersonalizedProcess,
    model: Model,
    source: CohortDataSource,
    *,
    clients_per_call: int = 25,
) -> Callable[[Any, np.ndarray], np.ndarray]:
    """Returns a function that computes the global model's loss on clients' training examples.

    Client states and random numbers have no influence, so the losses are a function of the server's
    state and the data.

    Args:
        process: The process, with a global model.
        model: The process's model.
        source: The source of the training examples.
        clients_per_call: The number of clients evaluated at a time, which bounds memory.

    Returns:
        `(server state S, int [k] client ids -> float64 [k])`, the mean loss over each client's
        training examples; NaN for a client without examples.
    """
    model = process.algorithm.evaluated_model or model
    rows = evaluated_rows(source, "train")
    state_type, data_type = process.initialize.type_signature.result, process.client_type.data

    @tff.tensorflow.computation(model.weights_type, data_type)
    @elementwise_equality()
    def loss_of_client(weights, examples):
        return evaluate(model, weights, examples, batch_size=rows)["loss"]

    @tff.federated_computation(state_type, tff.types.FederatedType(data_type, tff.CLIENTS))
    def losses_of_clients(state, examples):
        weights = tff.federated_broadcast(tff.federated_map(process.global_weights, state))
        return tff.federated_map(loss_of_client, (weights, examples))

    def losses(state, client_ids):
        starts = range(0, len(client_ids), clients_per_call)
        chunks = [client_ids[start : start + clients_per_call] for start in starts]
        found = [losses_of_clients(state, source.select_examples(c, "train")) for c in chunks]
        sums = np.array([(mean.total, mean.count) for chunk in found for mean in chunk], np.float64)
        total, count = sums.reshape([-1, 2]).T
        return np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)

    return losses
