"""Applies a function to the models and the examples of many clients, a few clients at a time.

    measure = for_each_client(process, measured)
    for means in measure(server_state, source, client_ids, "validation"):
        print(means["personalized"]["accuracy"])

All evaluations are such maps of a pure function. Clients of one call are computed together.
"""

import collections
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl import runtime
from tff_pfl.clients import CohortDataSource
from tff_pfl.local import Examples, rows_of_batch
from tff_pfl.models import Model
from tff_pfl.templates import Client, PersonalizedProcess
from tff_pfl.templates.algorithm import evaluated_model
from tff_pfl.tracing.equality import elementwise_equality
from tff_pfl.tracing.structures import type_of_row, type_of_rows

GLOBAL = "global"
BATCH_SIZE = 200  # The most examples in a forward pass.
_ROWS_OF_CALL = 64  # The examples in whose time a forward pass starts.
_MOST_OUTPUTS = 1 << 24  # The most outputs of the models of all clients that are computed at once.

Models = Mapping[str, Callable[[Any, Any], Any]]
"""Federated functions `(S@SERVER, {Client}@CLIENTS) -> {W}@CLIENTS` by the name of the model."""


class EvaluatedClient(NamedTuple):
    """A client to evaluate.

    Attributes:
        client: The `Client`, with the state and the training examples from which its models are
            made, or `()` if only the global model is evaluated.
        test: The `Examples` on which it is evaluated, or `()` if all clients share them.
    """

    client: Client
    test: Examples


def models_of(process: PersonalizedProcess) -> Models:
    """Returns the evaluated models: `personalized`, the further ones and, if any, `global`."""
    models = {"personalized": process.personalize, **process.further_models}
    if process.global_weights is not None:
        models[GLOBAL] = lambda state, clients: sent(process.global_weights, state)
    return models


def sent(message_of: tff.Computation, state: Any) -> Any:
    """Sends what the server computes from its state to all clients."""
    return tff.federated_broadcast(tff.federated_map(message_of, state))


def for_each_client(
    process: PersonalizedProcess,
    fn: Callable[..., Any],
    models: Models | None = None,
    *,
    pool: Any = None,
    at_a_time: int = 25,
) -> Callable[..., Iterator[Mapping[str, Any]]]:
    """Returns a map of a function over clients' models.

    Args:
        process: The algorithm.
        fn: `(evaluated model, W, D, *, batch_size) -> T`, pure TensorFlow of the weights and of the
            client's own examples, in batches of at most `batch_size`.
        models: The models. Default: all, see `models_of`.
        pool: A structure of arrays that takes the place of all clients' own examples.
        at_a_time: The most clients in a call, which bounds memory. Fewer are, if their models have
            more than 2^24 outputs for a batch.

    Returns:
        `(server state, source, client_ids, split="test", batch_size=None)`, which yields the `T` of
        each model of each client in order. `source` is the `CohortDataSource` of clients' states
        and examples. By default, batches have `evaluated_rows` of the split.
    """
    models = models_of(process) if models is None else models
    outputs = functools.cache(lambda: outputs_of_row(process))

    @functools.cache
    def computation(client_type, batch_size):
        pool_type = None if pool is None else _type_of(pool)
        of_batches = functools.partial(fn, batch_size=batch_size)
        return map_models(process, of_batches, models, client_type, pool_type)

    def results(
        server_state: Any,
        source: CohortDataSource,
        client_ids: Sequence[int] | np.ndarray,
        split: str = "test",
        batch_size: int | None = None,
    ) -> Iterator[Mapping[str, Any]]:
        rows = batch_size or evaluated_rows(source, split)
        compute = computation(source.federated_type.member, rows)
        parts = chunks(client_ids, at_once(at_a_time, rows * outputs()))
        sizes = np.maximum(source.sizes("train"), source.sizes(split))
        cohorts = runtime.Cohorts.of(max(map(len, parts), default=1), sizes)
        for ids in parts:
            nothing: list[Any] = [()] * len(ids)
            clients = nothing if models.keys() == {GLOBAL} else source.clients_of_ids(ids)
            tests = source.select_examples(ids, split) if pool is None else nothing
            evaluated = list(map(EvaluatedClient, clients, tests))
            # A pass over few examples is as fast without XLA.
            with runtime.compiling(False, cohorts):
                found = compute(server_state, evaluated, *([] if pool is None else [pool]))
            yield from found

    return results


def map_models(
    process: PersonalizedProcess,
    fn: Callable[[Model, Any, Any], Any],
    models: Models | None = None,
    client_type: tff.types.StructType | None = None,
    pool_type: tff.types.Type | None = None,
) -> tff.Computation:
    """Builds the computation of a map, which TFF's programs can also execute themselves.

    Args:
        process: The algorithm.
        fn: `(evaluated model, W, D) -> T`.
        models: See `for_each_client`.
        client_type: The type of a `Client`, if it is not the type of the process.
        pool_type: The type `P` of a pool that takes the place of `D`.

    Returns:
        `(<S@SERVER, {EvaluatedClient}@CLIENTS> -> {<personalized=T, ...>}@CLIENTS)`, with a field
        for each model. With a pool, it has a third argument, `P@SERVER`.
    """
    models = models_of(process) if models is None else models
    client_type = client_type or process.client_type
    state_type, data_type = process.initialize.type_signature.result, process.client_type.data
    fields = [
        ("client", () if models.keys() == {GLOBAL} else client_type),
        ("test", data_type if pool_type is None else ()),
    ]
    evaluated_type = tff.types.StructWithPythonType(fields, EvaluatedClient)
    clients_type = tff.types.FederatedType(evaluated_type, tff.CLIENTS)
    traced = {}

    def trace_of(model, *types):
        @tff.tensorflow.computation(*types)
        @elementwise_equality()
        def of_model(weights, examples):
            return fn(model, weights, examples)

        return of_model

    def results(state, clients, examples):
        found = collections.OrderedDict()
        for name, make in models.items():
            made = make(state, clients.client)
            model = evaluated_model(process.algorithm, name)
            types = made.type_signature.member, examples.type_signature.member
            key = id(model), *types
            if key not in traced:
                traced[key] = trace_of(model, *types)
            found[name] = tff.federated_map(traced[key], (made, examples))
        return tff.federated_zip(found)

    if pool_type is None:
        return tff.federated_computation(
            lambda state, clients: results(state, clients, clients.test), [state_type, clients_type]
        )
    return tff.federated_computation(
        lambda state, clients, pool: results(state, clients, tff.federated_broadcast(pool)),
        [state_type, clients_type, tff.types.FederatedType(pool_type, tff.SERVER)],
    )


def chunks(client_ids: Sequence[int] | np.ndarray, at_a_time: int) -> list[np.ndarray]:
    """Divides the ids of clients into parts of at most `at_a_time`, as equal as can be."""
    number = -(-len(client_ids) // at_a_time)
    return np.array_split(client_ids, number) if number else []


def stacked(results: Iterable[Any]) -> Any:
    """Stacks the structures of one client or more as arrays with a leading axis of clients."""
    return tf.nest.map_structure(lambda *leaves: np.stack(leaves), *results)


def evaluated_rows(source: CohortDataSource, *splits: str) -> int:
    """Returns the rows of a forward pass with which all clients of the splits take the least time.

    They are those of `rows_of_batch` for some size. Large clients have several passes, so that
    small ones are not padded to their size.
    """
    sizes = np.concatenate(list(map(source.sizes, splits)))

    def time(rows):
        return np.sum(-(-sizes // rows)) * (rows + _ROWS_OF_CALL)

    suffice = (rows_of_batch(BATCH_SIZE, size) for size in range(BATCH_SIZE))
    return min(dict.fromkeys([BATCH_SIZE, *suffice]), key=time)


def at_once(most: int, outputs: int) -> int:
    """Returns how many of `most` clients, or rows, with this many outputs each fit into memory."""
    return max(1, min(most, _MOST_OUTPUTS // outputs))


def outputs_of_row(process: PersonalizedProcess) -> int:
    """Returns the number of an evaluated model's outputs for an example, such as its logits."""
    models = {id(model): model for model in (process.evaluated_model, process.global_model)}
    return max(_outputs_of_row(model, process.client_type.data.x) for model in models.values())


def _outputs_of_row(model, x) -> int:
    if model.num_classes is not None:
        return model.num_classes

    def outputs(weights, x):
        return model.apply(weights, x, training=False, seed=tf.zeros([2], tf.int32))

    x_type = type_of_rows(type_of_row(x))
    specs = map(tff.types.type_to_tf_tensor_specs, (model.weights_type, x_type))
    found = tf.function(outputs, autograph=False).get_concrete_function(*specs)
    shapes = [tf.TensorShape(spec.shape[1:]) for spec in tf.nest.flatten(found.structured_outputs)]
    return sum(shape.num_elements() or 1 for shape in shapes)


def _type_of(arrays: Any) -> tff.types.Type:
    specs = tf.nest.map_structure(lambda array: tf.TensorSpec(array.shape, array.dtype), arrays)
    return tff.types.tensorflow_to_type(specs)
