"""A data source without client ids and states, for processes of `tff.learning`."""

import collections
import copy
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.clients.cohort import CohortDataSource
from tff_pfl.clients.serialization import deserialize, serialize
from tff_pfl.local.examples import Examples
from tff_pfl.tracing.structures import type_of_row


class ExamplesDataSource(tff.program.FederatedDataSource):
    """The data `{D}@CLIENTS` of the cohorts of a `CohortDataSource`.

    For processes that take the clients' data only, such as the results of
    `compose_stateless_view` and `compose_global_evaluation`.
    """

    def __init__(
        self, source: CohortDataSource, split: str = "train", *, as_sequences: bool = False
    ):
        """Makes the source.

        Args:
            source: The source of cohorts and examples.
            split: The split of the examples: "train", "test" or "validation".
            as_sequences: Whether a client's data are a sequence of examples, `<x=..., y=...>*`,
                instead of `Examples`.
        """
        self._source = source
        self._split = split
        self._as_sequences = as_sequences

    @property
    def federated_type(self) -> tff.types.FederatedType:
        """`{D}@CLIENTS`."""
        return self.iterator().federated_type

    def iterator(self) -> "ExamplesIterator":
        """Returns an iterator at round 0."""
        return ExamplesIterator(self._source, self._split, self._as_sequences)


# The TFF type of an `ExamplesIterator` as a structure of tensors.
_POSITION_TYPE = tff.types.to_type(
    collections.OrderedDict(
        source=(np.uint8, [32]),  # the fingerprint of the `CohortDataSource`
        split=np.str_,
        as_sequences=np.bool_,
        round_num=np.int64,  # the next round
    )
)


class ExamplesIterator(tff.program.FederatedDataSourceIterator):
    """An iterator over rounds; `select` returns the data of a round's cohort.

    It neither reads nor stores client states.
    """

    def __init__(self, source: CohortDataSource, split: str = "train", as_sequences: bool = False):
        """Makes the iterator at round 0; see `ExamplesDataSource`."""
        self._source = source
        self._split = split
        self._as_sequences = as_sequences
        self._round_num = 0

    def __deepcopy__(self, memo: Any) -> "ExamplesIterator":
        """Returns a copy with its own position, of the same source."""
        del memo
        return copy.copy(self)

    @classmethod
    def from_bytes(cls, buffer: bytes) -> "ExamplesIterator":
        """Restores an iterator.

        Raises:
            UnknownCohortSourceError: The source was not constructed in this process.
            CorruptStateError: The bytes are damaged.
            ForeignStateError: The bytes are not from an `ExamplesIterator`.
        """
        position = deserialize(buffer, _POSITION_TYPE)
        source = CohortDataSource.of_fingerprint(position["source"].tobytes())
        iterator = cls(source, position["split"].decode(), bool(position["as_sequences"]))
        iterator._round_num = int(position["round_num"])
        return iterator

    def to_bytes(self) -> bytes:
        """Serializes the fingerprint of the source, the split, the data format and the position."""
        position = dict(
            source=np.frombuffer(self._source.fingerprint, np.uint8),
            split=self._split,
            as_sequences=self._as_sequences,
            round_num=self._round_num,
        )
        return serialize(position, _POSITION_TYPE)

    @property
    def federated_type(self) -> tff.types.FederatedType:
        """`{D}@CLIENTS`."""
        data_type = self._source.federated_type.member.data
        if self._as_sequences:
            data_type = tff.types.SequenceType(
                collections.OrderedDict(x=type_of_row(data_type.x), y=type_of_row(data_type.y))
            )
        return tff.types.FederatedType(data_type, tff.CLIENTS)

    @property
    def round_num(self) -> int:
        """The next round, from 0."""
        return self._round_num

    def select(self, k: int | None = None) -> list:
        """Returns the data of the cohort of this round, and advances to the next round.

        Args:
            k: The size of the cohort; `None` for all clients.

        Raises:
            ValueError: `k` is not in 1..num_clients, or a client has more examples than the
                capacity. The iterator stays at this round.
        """
        cohort = self._source.participants(self._round_num, k).reported
        data = self._source.select_examples(cohort, self._split)
        self._round_num += 1
        return list(map(_as_sequence, data)) if self._as_sequences else data

    def __eq__(self, other: object) -> bool:
        """Returns whether both have the same source, split, data format and position."""
        if not isinstance(other, ExamplesIterator):
            return NotImplemented
        return self.to_bytes() == other.to_bytes()


def _as_sequence(examples: Examples) -> tf.data.Dataset:
    size = int(examples.size)
    rows = collections.OrderedDict(x=examples.x, y=examples.y)
    rows = tf.nest.map_structure(lambda leaf: leaf[:size], rows)
    return tf.data.Dataset.from_tensor_slices(rows)
