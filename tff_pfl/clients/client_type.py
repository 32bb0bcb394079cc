"""Checks that the type of a source's clients fits its data and the store of client states."""

from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.local.examples import Examples
from tff_pfl.templates.values import Client
from tff_pfl.tracing.structures import type_of_row


def check_client_type(
    client_type: tff.types.StructType, state_type: tff.types.Type, dataset: Any
) -> None:
    """Checks the arguments of a `CohortDataSource`.

    Args:
        client_type: The type of the clients in `PersonalizedProcess.next`.
        state_type: The type of the states in the store.
        dataset: The data set.

    Raises:
        TypeError: `client_type` has another form, its state is not of `state_type`, or its data are
            not of the data's type.
    """
    if (
        _names(client_type) != Client._fields
        or client_type.client_id != tff.types.TensorType(np.int32)
        or _names(client_type.data) != Examples._fields
    ):
        raise TypeError(
            "Expected a client type <client_id=int32,state=C,data=<x=X,y=Y,size=int32>>, found "
            f"{client_type}. Tip: it is the member type of the second argument of `process.next`."
        )
    if str(client_type.state) != str(state_type):
        raise TypeError(
            "The process and the store have different client states.\n"
            f"Process: {client_type.state}\nStore:   {state_type}"
        )
    examples = dataset.examples(0, "train")
    _check_rows("inputs", examples.x, client_type.data.x)
    _check_rows("labels", examples.y, client_type.data.y)


def _names(type_signature) -> tuple:
    if not isinstance(type_signature, tff.types.StructType):
        return ()
    return tuple(tff.structure.name_list_with_nones(type_signature))


def _check_rows(what: str, rows: Any, expected: tff.types.Type) -> None:
    """Checks that the rows of the first client have the expected type."""
    specs = tf.nest.map_structure(_spec_of_row, rows)
    wanted, found = type_of_row(expected), tff.types.tensorflow_to_type(specs)
    if not wanted.is_assignable_from(found):
        raise TypeError(
            f"The process takes {what} of {wanted}, but the data have {what} of {found}. Compose "
            "it with the data set's `examples_type`, or convert the data."
        )


def _spec_of_row(rows) -> tf.TensorSpec:
    rows = np.asarray(rows)
    return tf.TensorSpec(rows.shape[1:], rows.dtype)
