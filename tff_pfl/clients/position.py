"""The form in which a `CohortIterator` is serialized."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow_federated as tff


class Position(NamedTuple):
    """A `CohortIterator` as a structure of tensors.

    Attributes:
        source: uint8 `[32]`, the fingerprint of the source; it covers the seed.
        round_num: int64 scalar, the round selected next.
        cohort: int32 `[?]`, the clients that reported last.
        outstanding: bool scalar, whether `update` is due for them.
        client_ids: int64 `[?]`, the clients with a state, for a store in memory; else empty.
        lengths: int64 `[?]`, the number of bytes of each one's state.
        states: uint8 `[?]`, the bytes of their states, one after the other.
    """

    source: Any
    round_num: Any
    cohort: Any
    outstanding: Any
    client_ids: Any
    lengths: Any
    states: Any


POSITION_TYPE = tff.types.StructWithPythonType(
    [
        ("source", tff.types.TensorType(np.uint8, [32])),
        ("round_num", tff.types.TensorType(np.int64)),
        ("cohort", tff.types.TensorType(np.int32, [None])),
        ("outstanding", tff.types.TensorType(np.bool_)),
        ("client_ids", tff.types.TensorType(np.int64, [None])),
        ("lengths", tff.types.TensorType(np.int64, [None])),
        ("states", tff.types.TensorType(np.uint8, [None])),
    ],
    Position,
)
