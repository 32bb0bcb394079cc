"""Presents methods whose clients keep nothing as processes of `tff.learning`.

`tff.learning` and its programs know only the clients' data, `{D}@CLIENTS`. A process of this
library identifies clients by ids, and derives their random numbers from these. In a view, a
client's id is computed from its data instead. It is negative. Clients with the same data share an
id, and therefore their random numbers.
"""

import collections
import math
from collections.abc import Mapping

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.local.examples import num_rows
from tff_pfl.templates.errors import ProcessSignatureError
from tff_pfl.templates.process import PersonalizedProcess, check_process
from tff_pfl.templates.values import Client
from tff_pfl.tracing.structures import empty_value, is_empty
from tff_pfl.tracing.trace import trace

_TIP = (
    "run the process itself, in `tff_pfl.runtime.ProgramContext`, or simulate it by "
    "`tff_pfl.drivers.simulation_process`."
)


def compose_stateless_view(
    process: PersonalizedProcess,
) -> tff.learning.templates.LearningProcess:
    """Makes a process of `tff.learning` from a process whose clients keep nothing.

    With `S`, `D`, `W` and `M` as in `PersonalizedProcess`:

        initialize        : ( -> S@SERVER)
        next              : (<S@SERVER, {D}@CLIENTS> -> <state=S@SERVER, metrics=M'@SERVER>)
        get_model_weights : (S -> W)
        set_model_weights : (<S, W> -> S)

    `next` returns no client values, so that `tff.program.NativeFederatedContext` accepts it and
    `tff.learning.programs.train_model` can run it. `M'` has the metrics of exchanges (`train` in
    most methods) under `client_work`, where that program looks for them.

    `D` is a client's `Examples`, or the sequence of a process of `compose_with_sequence_data`.
    `NativeFederatedContext` needs the latter, as its clients may have tensors and sequences but no
    structures.

    A client's random numbers differ from `process`, because they are derived from its data.
    `ClientContext.client_id` is the client's negative id. A client that is in a cohort twice is
    not detected.

    Example:
        >>> model, local = testing.tiny_model(), testing.tiny_local()
        >>> algorithm = tff_pfl.make("fedavg", model, local)
        >>> process = tff_pfl.compose(algorithm, testing.EXAMPLES_TYPE)
        >>> view = tff_pfl.compose_stateless_view(process)
        >>> isinstance(view, tff.learning.templates.LearningProcess)
        True

    Args:
        process: The process. Its global model must be the `weights` of its server's state, as in
            `averaging`.

    Raises:
        ProcessSignatureError: Clients keep something or receive messages by id, or the global model
            is not `weights` of the server's state.
    """
    check_process(process)
    weights_type = _settable_weights_type(process)
    state_type = process.initialize.type_signature.result
    data_type = process.client_type.data
    client_state = empty_value(process.client_state_type)
    identified = trace(
        "the id of a client",
        lambda data: collections.OrderedDict(client_id=_number(data), state=client_state),
        data_type,
    )
    metrics_type = process.next.type_signature.result.metrics.member
    regrouped = trace("the metrics of a round", under_client_work, metrics_type)

    @tff.federated_computation(state_type, tff.types.FederatedType(data_type, tff.CLIENTS))
    def next_round(state, data):
        client = tff.federated_map(identified, data)
        clients = tff.federated_zip(Client(client.client_id, client.state, data))
        output = process.next(state, clients)
        return tff.learning.templates.LearningProcessOutput(
            output.state, tff.federated_map(regrouped, output.metrics)
        )

    set_weights = trace(
        "the global model of a server", _with_weights, state_type.member, weights_type
    )
    return tff.learning.templates.LearningProcess(
        process.initialize, next_round, process.global_weights, set_weights
    )


def _settable_weights_type(process: PersonalizedProcess) -> tff.types.Type:
    """Returns the type of the global model, after checks that the process can be such a one."""
    if not is_empty(process.client_state_type):
        raise ProcessSignatureError(
            "A process of tff.learning cannot keep client states between rounds; here they are\n"
            f"  {process.client_state_type}\n"
            f"Tip: {_TIP}"
        )
    if "federated_select" in process.next.to_building_block().compact_representation():
        raise ProcessSignatureError(
            "Clients of this process receive messages by their ids, which tff.learning does not "
            "know.\n"
            f"Tip: {_TIP}"
        )
    server_type = process.initialize.type_signature.result.member.algorithm
    weights_type = process.global_weights and process.global_weights.type_signature.result
    is_struct = isinstance(server_type, tff.types.StructType)
    if (
        weights_type is None
        or not is_struct
        or not tff.structure.has_field(server_type, "weights")
        or not weights_type.is_equivalent_to(server_type.weights)
    ):
        raise ProcessSignatureError(
            "A process of tff.learning needs a global model that can be set: `weights` of the "
            f"server's state.\n  the global model: {weights_type}\n"
            f"  the server's state: {server_type}\n"
            "Tip: methods of `averaging` that share the whole model have such a state."
        )
    return weights_type


def _with_weights(state, weights):
    return state._replace(algorithm=state.algorithm._replace(weights=weights))


def under_client_work(metrics: Mapping) -> Mapping:
    """Moves the metrics of exchanges, which are mappings, under `client_work`."""
    exchanges = [name for name, value in metrics.items() if isinstance(value, Mapping)]
    return collections.OrderedDict(
        client_work=collections.OrderedDict((name, metrics[name]) for name in exchanges),
        **{name: value for name, value in metrics.items() if name not in exchanges},
    )


def _number(data) -> tf.Tensor:
    """Computes a negative int32 scalar from examples, which may be a sequence."""
    if isinstance(data, tf.data.Dataset):
        digest = data.enumerate().reduce(
            tf.constant(0),
            lambda digest, row: (
                digest
                + _row_digests(tf.nest.map_structure(_as_rows, (row[1]["x"], row[1]["y"])), 1)[0]
                * _factor(tf.cast(row[0], tf.int32))
            ),
        )
    else:
        number = num_rows(data)
        rows = tf.range(number)
        digests = _row_digests((data.x, data.y), number) * _factor(rows)
        digest = tf.reduce_sum(tf.where(rows < data.size, digests, 0))  # without padding
    return -1 - tf.bitwise.bitwise_and(digest, 0x7FFFFFFF)


def _as_rows(leaf) -> tf.Tensor:
    return leaf[tf.newaxis]


def _row_digests(examples, number) -> tf.Tensor:
    """Computes weighted sums of the bits of each example, modulo 2^32: int32 `[number]`."""
    digests = tf.zeros([number], tf.int32)
    for leaf in tf.nest.flatten(examples):
        if leaf.dtype.is_floating:
            leaf = tf.bitcast(tf.cast(leaf, tf.float32), tf.int32)
        bits = tf.reshape(tf.cast(leaf, tf.int32), [number, math.prod(leaf.shape[1:])])
        digests = 31 * digests + tf.reduce_sum(bits * _factor(tf.range(bits.shape[1])), axis=1)
    return digests


def _factor(place) -> tf.Tensor:
    """Returns an odd factor, which loses no bits, and a different one for each of many places."""
    return 0x3C6EF362 * place + 0x1B873593
