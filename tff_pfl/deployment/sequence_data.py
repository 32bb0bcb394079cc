"""Adapts processes to clients whose data are sequences, `{element*}@CLIENTS`."""

import dataclasses
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.arguments.ranges import takes, whole
from tff_pfl.local.examples import Examples
from tff_pfl.templates.errors import ProcessSignatureError
from tff_pfl.templates.process import PersonalizedProcess, check_process
from tff_pfl.templates.values import Client
from tff_pfl.tracing.structures import type_of_row
from tff_pfl.tracing.trace import trace


@takes(capacity=whole(1))
def compose_with_sequence_data(
    process: PersonalizedProcess, element_type: Any, capacity: int
) -> PersonalizedProcess:
    """Makes a process whose clients have sequences of examples instead of `Examples`.

    In the new process, `next`, `personalize` and `further_models` take clients of the type
    `{<client_id=int32, state=C, data=element_type*>}@CLIENTS`. Their `data` is a `tf.data.Dataset`
    of single examples, not of batches.

    Example:
        >>> model, local = testing.tiny_model(), testing.tiny_local()
        >>> algorithm = tff_pfl.make("fedavg", model, local)
        >>> process = tff_pfl.compose(algorithm, testing.EXAMPLES_TYPE)
        >>> spec = {"x": tf.TensorSpec([4, 4, 1]), "y": tf.TensorSpec([], tf.int32)}
        >>> print(tff_pfl.compose_with_sequence_data(process, spec, capacity=9).client_type.data)
        <x=float32[4,4,1],y=int32>*

    Args:
        process: The process to adapt.
        element_type: The type of an example, `<x=..., y=...>` with the inputs and labels of
            `process`; or the `element_spec` of a data set of such examples.
        capacity: The number of rows to which a client's examples are padded. A round fails if a
            client has more examples.

    Raises:
        ProcessSignatureError: `element_type` is not the type of an example of `process`, or the
            clients of `process` have sequences already.
    """
    check_process(process)
    if not isinstance(element_type, tff.types.Type):
        element_type = tff.types.tensorflow_to_type(element_type)
    _check_elements(element_type, process.client_type.data)

    def gather(sequence):
        # One row more than fits reveals that there are too many; an empty batch means no rows.
        batches = sequence.batch(capacity + 1)
        nothing = tf.nest.map_structure(
            lambda spec: tf.zeros([0, *spec.shape[1:]], spec.dtype), batches.element_spec
        )
        nothing = tf.data.Dataset.from_tensors(nothing)
        batch = batches.concatenate(nothing).take(1).get_single_element()
        size = tf.shape(tf.nest.flatten(batch)[0])[0]
        check = tf.debugging.assert_less_equal(
            size, capacity, f"A client has more examples than capacity={capacity} rows."
        )
        with tf.control_dependencies([check] if check is not None else []):
            rows = tf.nest.map_structure(lambda leaf: _pad(leaf, capacity), batch)
        return Examples(rows["x"], rows["y"], size)

    gather = trace("sequence data", gather, tff.types.SequenceType(element_type))
    client_type = tff.types.StructWithPythonType(
        [
            ("client_id", process.client_type.client_id),
            ("state", process.client_type.state),
            ("data", tff.types.SequenceType(element_type)),
        ],
        Client,
    )
    state_type = process.initialize.type_signature.result
    clients_type = tff.types.FederatedType(client_type, tff.CLIENTS)

    def gathered(clients):
        data = tff.federated_map(gather, clients.data)
        return tff.federated_zip(Client(clients.client_id, clients.state, data))

    def with_sequences(computation):
        @tff.federated_computation(state_type, clients_type)
        def on_sequences(state, clients):
            return computation(state, gathered(clients))

        return on_sequences

    return dataclasses.replace(
        process,
        gather=gather,
        next_fn=with_sequences(process.next),
        personalize=with_sequences(process.personalize),
        further_models={name: with_sequences(fn) for name, fn in process.further_models.items()},
    )


def _check_elements(element_type, data_type):
    if isinstance(data_type, tff.types.SequenceType):
        raise ProcessSignatureError(
            f"Clients of the process have sequences of {data_type.element} already. Pass the "
            "process that `compose` returned."
        )
    expected = tff.types.to_type([("x", type_of_row(data_type.x)), ("y", type_of_row(data_type.y))])
    if not expected.is_assignable_from(element_type):
        raise ProcessSignatureError(
            f"element_type must be the type of an example.\n  expected: {expected}\n"
            f"  found:    {element_type}\nTip: use data sets without batches, with the fields x, y "
            "in this order."
        )


def _pad(rows, capacity):
    paddings = [[0, capacity - tf.shape(rows)[0]]] + [[0, 0]] * (rows.shape.rank - 1)
    return tf.ensure_shape(tf.pad(rows, paddings), [capacity, *rows.shape[1:]])
