"""Where an iterator of cohorts is, as a structure of tensors, and the states that belong to it."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow_federated as tff

from tff_pfl.clients.errors import ForeignStateError
from tff_pfl.clients.state_store import ClientStateStore


class Position(NamedTuple):
    """A `CohortIterator` as a structure of tensors.

    Attributes:
        source: uint8 `[32]`, the fingerprint of the source; it covers the seed.
        round_num: int64 scalar, the round selected next.
        cohort: int32 `[?]`, the clients that reported last.
        outstanding: bool scalar, whether `update` is due for them.
        client_ids: int64 `[?]`, the clients with a state, for a store in memory; else empty.
        lengths: int64 `[?]`, the number of bytes of each one's state.
        states: uint8 `[?]`, the bytes of their states, one after the other; for a store on disk,
            its digest, which earlier versions left out.
    """

    source: Any
    round_num: Any
    cohort: Any
    outstanding: Any
    client_ids: Any
    lengths: Any
    states: Any

    @classmethod
    def of(cls, fingerprint: bytes, store: ClientStateStore, **fields: Any) -> "Position":
        """A position with the states of a store, or their digest.

        Args:
            fingerprint: Of the source.
            store: The states of the clients.
            **fields: `round_num`, `cohort` and `outstanding`.
        """
        snapshot = store.snapshot() if store.path is None else {}
        states = b"".join(snapshot.values()) or store.digest()
        return cls(
            source=np.frombuffer(fingerprint, np.uint8),
            client_ids=np.array(list(snapshot), np.int64),
            lengths=np.array([len(state) for state in snapshot.values()], np.int64),
            states=np.frombuffer(states, np.uint8),
            **fields,
        )

    def restore_states(self, store: ClientStateStore) -> None:
        """Restores the states of a store in memory; of one on disk, checks that it has them.

        Raises:
            ForeignStateError: If it has others, or the position is of a store of the other kind.
        """
        states, ends = self.states.tobytes(), np.cumsum(self.lengths)
        carried = int(self.lengths.sum())
        if store.path is None:
            if len(states) != carried:
                raise ForeignStateError(
                    "The iterator was saved with a store on disk, which has the states of its "
                    "clients, but the store here is in memory. Open the one on disk, by its path."
                )
            bounds = zip(self.client_ids, ends - self.lengths, ends, strict=True)
            store.restore({int(client_id): states[start:end] for client_id, start, end in bounds})
        elif carried:
            raise ForeignStateError(
                "The iterator was saved with a store in memory, and has the states of its clients, "
                f"but the store here is {store.path}, on disk. Open one without a path."
            )
        elif states and states != store.digest():
            raise ForeignStateError(
                f"The iterator was saved with other client states than those in {store.path}, as "
                "where a program ended after one of both was saved. Load what was saved together "
                "with these states, or restore a copy of the directory. Bytes of an iterator that "
                "are an attachment of the store's own `commit` always belong to its states."
            )


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
