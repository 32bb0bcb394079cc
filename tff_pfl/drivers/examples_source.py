"""A data source without client states, for processes that keep them elsewhere or not at all."""

import collections
import copy
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.clients.cohort import CohortDataSource
from tff_pfl.clients.serialization import deserialize, serialize
from tff_pfl.evaluation.each_client import EvaluatedClient
from tff_pfl.local.examples import Examples
from tff_pfl.tracing.structures import type_of_row


class IdentifiedClient(NamedTuple):
    """One client of a cohort, as `simulation_process` takes it.

    Attributes:
        client_id: int32 scalar.
        data: The client's data, of type `D`.
    """

    client_id: Any
    data: Any


def identified_type(data_type: tff.types.Type) -> tff.types.StructWithPythonType:
    """Returns the type of an `IdentifiedClient` with data of a type."""
    fields = [("client_id", np.int32), ("data", data_type)]
    return tff.types.StructWithPythonType(fields, IdentifiedClient)


def evaluated_type(client_type: tff.types.Type) -> tff.types.StructWithPythonType:
    """Returns the type of an `EvaluatedClient` of identified clients of a type."""
    fields = [("client", client_type), ("test", client_type.data)]
    return tff.types.StructWithPythonType(fields, EvaluatedClient)


class ExamplesDataSource(tff.program.FederatedDataSource):
    """The data `{D}@CLIENTS` of the cohorts of a `CohortDataSource`.

    For processes that take the clients' data only, such as the results of
    `compose_stateless_view` and `compose_global_evaluation`; or, with ids, those of
    `simulation_process`.
    """

    def __init__(
        self,
        source: CohortDataSource,
        split: str = "train",
        *,
        as_sequences: bool = False,
        with_ids: bool = False,
        test_split: str = "",
    ):
        """Makes the source.

        Args:
            source: The source of cohorts and examples.
            split: The split of the examples: "train", "test" or "validation".
            as_sequences: Whether a client's data are a sequence of examples, `<x=..., y=...>*`,
                instead of `Examples`.
            with_ids: Whether a client is an `IdentifiedClient` instead of its data alone.
            test_split: If given, a client is an `EvaluatedClient` of the client above, with the
                examples of this split to evaluate on, as `simulation_evaluation` takes it.
        """
        self._source = source
        self._split = split
        self._as_sequences = as_sequences
        self._with_ids = with_ids
        self._test_split = test_split

    @property
    def federated_type(self) -> tff.types.FederatedType:
        """`{D}@CLIENTS`, with `<client_id=int32, data=D>` or `EvaluatedClient` instead of `D`."""
        data_type = self._source.federated_type.member.data
        if self._as_sequences:
            data_type = tff.types.SequenceType(
                collections.OrderedDict(x=type_of_row(data_type.x), y=type_of_row(data_type.y))
            )
        if self._with_ids:
            data_type = identified_type(data_type)
        if self._test_split:
            data_type = evaluated_type(data_type)
        return tff.types.FederatedType(data_type, tff.CLIENTS)

    def iterator(self) -> "ExamplesIterator":
        """Returns an iterator at round 0."""
        return ExamplesIterator(self)

    def of_round(self, round_num: int, k: int | None = None) -> list:
        """Returns the data of the cohort of a round.

        Args:
            round_num: The round, from 0.
            k: The size of the cohort; `None` for all clients.

        Raises:
            ValueError: `k` is not in 1..num_clients, or a client has more examples than the
                capacity, or cohorts depend on more than the seed and the round.
        """
        cohort = self._source.participants(round_num, k).reported
        clients: list[Any] = self._select(cohort, self._split)
        if self._with_ids:
            clients = list(map(IdentifiedClient, cohort, clients))
        if self._test_split:
            clients = list(map(EvaluatedClient, clients, self._select(cohort, self._test_split)))
        return clients

    def _select(self, cohort, split) -> list:
        data = self._source.select_examples(cohort, split)
        return list(map(_as_sequence, data)) if self._as_sequences else data

    def position(self, round_num: int) -> dict[str, Any]:
        """Returns the position of an iterator before a round."""
        return dict(
            source=np.frombuffer(self._source.fingerprint, np.uint8),
            split=self._split,
            as_sequences=self._as_sequences,
            with_ids=self._with_ids,
            test_split=self._test_split,
            round_num=round_num,
        )


# The TFF type of an `ExamplesIterator` as a structure of tensors.
_POSITION_TYPE = tff.types.to_type(
    collections.OrderedDict(
        source=(np.uint8, [32]),  # the fingerprint of the `CohortDataSource`
        split=np.str_,
        as_sequences=np.bool_,
        with_ids=np.bool_,
        test_split=np.str_,
        round_num=np.int64,  # the next round
    )
)


class ExamplesIterator(tff.program.FederatedDataSourceIterator):
    """An iterator over rounds; `select` returns the data of a round's cohort.

    It neither reads nor stores client states.
    """

    def __init__(self, source: ExamplesDataSource):
        """Makes the iterator at round 0."""
        self._source = source
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
        restored = ExamplesDataSource(
            source,
            position["split"].decode(),
            as_sequences=bool(position["as_sequences"]),
            with_ids=bool(position["with_ids"]),
            test_split=position["test_split"].decode(),
        )
        iterator = cls(restored)
        iterator._round_num = int(position["round_num"])
        return iterator

    def to_bytes(self) -> bytes:
        """Serializes the fingerprint of the source, the split, the data format and the position."""
        return serialize(self._source.position(self._round_num), _POSITION_TYPE)

    @property
    def federated_type(self) -> tff.types.FederatedType:
        """The type of the source."""
        return self._source.federated_type

    @property
    def round_num(self) -> int:
        """The next round, from 0."""
        return self._round_num

    def select(self, k: int | None = None) -> list:
        """Returns the data of the cohort of this round, and advances to the next round.

        Args:
            k: The size of the cohort; `None` for all clients.

        Raises:
            ValueError: See `ExamplesDataSource.of_round`. The iterator stays at this round.
        """
        data = self._source.of_round(self._round_num, k)
        self._round_num += 1
        return data

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
