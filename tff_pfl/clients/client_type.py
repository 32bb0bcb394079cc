"""Checks that the type of a source's clients fits its data and the store of client states."""

from typing import Any

import numpy as np
import tensorflow_federated as tff

from tff_pfl.local.examples import Examples
from tff_pfl.templates.process import Client


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
            "Expected a client type <client_id=int32,state=C,data=<x=T[?,...],y=int32[?],"
            f"size=int32>>, found {client_type}. Tip: it is the member type of the second "
            "argument of `process.next`."
        )
    if str(client_type.state) != str(state_type):
        raise TypeError(
            "The process and the store have different client states.\n"
            f"Process: {client_type.state}\nStore:   {state_type}"
        )
    _check_inputs(dataset, client_type.data.x)


def _names(type_signature) -> tuple:
    if not isinstance(type_signature, tff.types.StructType):
        return ()
    return tuple(tff.structure.name_list_with_nones(type_signature))


def _check_inputs(dataset: Any, expected: tff.types.TensorType) -> None:
    """Checks that the inputs of the first client have the expected type."""
    x = np.asarray(dataset.examples(0, "train").x)
    wanted = tff.types.TensorType(expected.dtype, expected.shape[1:])
    found = tff.types.TensorType(x.dtype.type, x.shape[1:])
    if not wanted.is_assignable_from(found):
        raise TypeError(
            f"The process takes inputs of {wanted}, but the data have inputs of {found}. Compose "
            f"it with examples_type({x.shape[1:]}, np.{x.dtype}), or convert the data."
        )
