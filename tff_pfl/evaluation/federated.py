"""Evaluates the models of every client, and the global model, on the client's own data."""

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.arguments.ranges import takes, whole
from tff_pfl.clients import CohortDataSource
from tff_pfl.data import FederatedDataset
from tff_pfl.evaluation.metrics import ClientMetrics, MetricName
from tff_pfl.local import Examples, metric_sums, rows_of_batch
from tff_pfl.models import Mean, Model, Weights
from tff_pfl.templates import Client, PersonalizedProcess
from tff_pfl.tracing.equality import elementwise_equality
from tff_pfl.tracing.structures import type_of_row, type_of_rows

BATCH_SIZE = 200  # The most examples in a forward pass.
_MOST_OUTPUTS = 1 << 24  # The most outputs of the models of all clients that are evaluated at once.


class EvaluatedClient(NamedTuple):
    """A client to evaluate.

    Attributes:
        client: The `Client`, with the state and the training examples from which its models are
            made.
        test: The `Examples` on which it is evaluated.
    """

    client: Client
    test: Examples


def evaluated_rows(source: CohortDataSource, *splits: str) -> int:
    """Returns the rows of a forward pass that suffice for all clients of the splits."""
    return rows_of_batch(BATCH_SIZE, max(map(source.largest_capacity, splits)))


def outputs_of_row(process: PersonalizedProcess, model: Model) -> int:
    """Returns the number of outputs for an example, such as a logit for each class."""
    model = process.algorithm.evaluated_model or model
    if model.num_classes is not None:
        return model.num_classes

    def outputs(weights, x):
        return model.apply(weights, x, training=False, seed=tf.zeros([2], tf.int32))

    x_type = type_of_rows(type_of_row(process.client_type.data.x))
    specs = map(tff.types.type_to_tf_tensor_specs, (model.weights_type, x_type))
    found = tf.function(outputs, autograph=False).get_concrete_function(*specs)
    shapes = [tf.TensorShape(spec.shape[1:]) for spec in tf.nest.flatten(found.structured_outputs)]
    return sum(shape.num_elements() or 1 for shape in shapes)


def at_once(most: int, outputs: int) -> int:
    """Returns how many of `most` clients, or rows, with this many outputs each fit into memory."""
    return max(1, min(most, _MOST_OUTPUTS // outputs))


def measured(
    model: Model, weights: Weights, test: Examples, *, batch_size: int = BATCH_SIZE
) -> Mapping[str, Mean]:
    """Computes the loss and the metrics on a client's examples; see `Model.finalized`."""
    return model.finalized(metric_sums(model, weights, test, batch_size=batch_size))


def build_evaluation(
    process: PersonalizedProcess, model: Model, *, batch_size: int = BATCH_SIZE
) -> tff.Computation:
    """Builds the evaluation of a cohort.

    Args:
        process: The algorithm.
        model: The algorithm's model.
        batch_size: The number of examples in a forward pass. It does not change the result.

    Returns:
        A computation of type
        `(<S@SERVER, {<client=<client_id, state, data>, test=D>}@CLIENTS> -> {T}@CLIENTS)`. `T` has
        the fields `personalized`, the names of `process.further_models` and, if the algorithm has a
        global model, `global`. Each field holds the loss and the model's metrics on the client's
        test examples, as `Mean`s of two sums.
    """

    def measure(model, weights, test):
        return measured(model, weights, test, batch_size=batch_size)

    return map_models(process, model, measure)


def map_models(
    process: PersonalizedProcess,
    model: Model,
    function: Callable[[Model, Weights, Examples], Any],
) -> tff.Computation:
    """Builds a computation that applies a function to each evaluated model of a cohort.

    Args:
        process: The algorithm.
        model: The algorithm's model.
        function: `(model, W, D) -> T`, a function of the evaluated model, the weights and the
            client's test examples.

    Returns:
        A computation of the type of `build_evaluation`, with one `T` for each model.
    """
    model = process.algorithm.evaluated_model or model
    client_type = process.client_type
    state_type = process.initialize.type_signature.result
    test_type = client_type.data
    evaluated_type = tff.types.StructWithPythonType(
        [("client", client_type), ("test", test_type)], EvaluatedClient
    )

    @tff.tensorflow.computation(model.weights_type, test_type)
    @elementwise_equality()
    def of_weights(weights, test):
        return function(model, weights, test)

    @tff.federated_computation(state_type, tff.types.FederatedType(evaluated_type, tff.CLIENTS))
    def of_clients(state, clients):
        models = {"personalized": process.personalize, **process.further_models}
        results = collections.OrderedDict(
            (name, tff.federated_map(of_weights, (make(state, clients.client), clients.test)))
            for name, make in models.items()
        )
        if process.global_weights is not None:
            weights = tff.federated_broadcast(tff.federated_map(process.global_weights, state))
            results["global"] = tff.federated_map(of_weights, (weights, clients.test))
        return tff.federated_zip(results)

    return of_clients


@takes(clients_per_call=whole(1))
def evaluate_federation(
    evaluation: tff.Computation,
    server_state: Any,
    source: CohortDataSource,
    dataset: FederatedDataset,
    *,
    split: str = "test",
    pool: str = "local",
    clients_per_call: int = 25,
    client_ids: np.ndarray | None = None,
) -> ClientMetrics:
    """Evaluates all clients, or a sample of them, a few clients at a time.

    Clients are evaluated whether or not they took part in training.

    Args:
        evaluation: The computation of `build_evaluation`, or another computation that returns
            `Mean`s by model and metric.
        server_state: The process's `ServerState`.
        source: The source of the clients' states and training examples.
        dataset: The data set of the evaluation examples.
        split: The split of the evaluation examples, "test" or "validation".
        pool: The name of the examples' pool, for the names of metrics.
        clients_per_call: The number of clients evaluated at a time, which bounds memory.
        client_ids: The sample in ascending order, or `None` for all clients.

    Returns:
        Each metric of each model on each client's examples, such as
        `personalized/local_test/accuracy`. It is NaN where it is undefined, as without examples or
        without weight, and may be NaN for a diverged model.
    """
    sizes, population = dataset.sizes(split), None
    if client_ids is None:
        client_ids = np.arange(dataset.num_clients)
    else:
        population, sizes = int(np.count_nonzero(sizes)), sizes[client_ids]
    rows = list(
        results_of_clients(evaluation, server_state, source, client_ids, split, clients_per_call)
    )
    values, undefined = {}, {}
    for model_name, totals in rows[0].items():
        for metric in totals:
            found = zip(*(row[model_name][metric] for row in rows), strict=True)
            total, count = (np.array(sums, np.float64) for sums in found)
            name = MetricName(model_name, f"{pool}_{split}", metric)
            undefined[name] = count == 0
            values[name] = np.divide(
                total, count, out=np.full(total.shape, np.nan), where=~undefined[name]
            )
    names = None if dataset.names is None else dataset.names[client_ids]
    return ClientMetrics(client_ids, sizes, values, population, names=names, undefined=undefined)


def results_of_clients(
    computation: tff.Computation,
    server_state: Any,
    source: CohortDataSource,
    client_ids: Sequence[int],
    split: str,
    clients_per_call: int,
) -> Iterator[Any]:
    """Yields the result of each client, in order, from a computation of `map_models`.

    The arguments are explained in `evaluate_federation`.
    """
    for start in range(0, len(client_ids), clients_per_call):
        ids = client_ids[start : start + clients_per_call]
        clients = source.clients_of_ids(ids)
        tests = source.select_examples(ids, split)
        yield from computation(server_state, list(map(EvaluatedClient, clients, tests)))
