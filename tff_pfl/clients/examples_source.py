"""The data of clients without their ids and states: what processes of `tff.learning` take."""

import collections

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.clients.cohort import CohortDataSource, CohortIterator
from tff_pfl.local.examples import Examples


class ExamplesDataSource(tff.program.FederatedDataSource):
    """The clients' data of a `CohortDataSource`, `{D}@CLIENTS`, in the same cohorts.

    It is for processes that know no clients but their data, as `compose_stateless_view` and
    `compose_global_evaluation` make them.
    """

    def __init__(
        self, source: CohortDataSource, split: str = "train", *, as_sequences: bool = False
    ):
        """Makes the source.

        Args:
            source: Of cohorts and examples.
            split: Of the examples: "train", "test" or "validation".
            as_sequences: Whether a client's data are a sequence of examples, `<x=..., y=...>*`, in
                the place of `Examples`.
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


class ExamplesIterator(CohortIterator):
    """The rounds of an `ExamplesDataSource`: `select` gives the data of a round's cohort."""

    def __init__(self, source: CohortDataSource, split: str = "train", as_sequences: bool = False):
        """Makes the iterator at round 0; see `ExamplesDataSource`."""
        super().__init__(source)
        self._split = split
        self._as_sequences = as_sequences

    @classmethod
    def from_bytes(cls, buffer: bytes) -> "ExamplesIterator":
        """Restores an iterator; see `CohortIterator.from_bytes`."""
        split, as_sequences, position = bytes(buffer).split(b"\n", 2)
        iterator = super().from_bytes(position)
        iterator._split = split.decode()
        iterator._as_sequences = as_sequences == b"sequences"
        return iterator

    def to_bytes(self) -> bytes:
        """Serializes the split, the form of the data and the position."""
        form = b"sequences" if self._as_sequences else b"examples"
        return b"\n".join([self._split.encode(), form, super().to_bytes()])

    @property
    def federated_type(self) -> tff.types.FederatedType:
        """`{D}@CLIENTS`."""
        data_type = super().federated_type.member.data
        if self._as_sequences:
            data_type = tff.types.SequenceType(
                collections.OrderedDict(x=_row(data_type.x), y=_row(data_type.y))
            )
        return tff.types.FederatedType(data_type, tff.CLIENTS)

    def select(self, k: int | None = None) -> list:
        """Returns the data of the clients of this round; goes on to the next round.

        Args:
            k: Size of the cohort, `None` for all clients.

        Raises:
            ValueError: See `CohortIterator.select`.
        """
        data = [client.data for client in super().select(k)]
        if self._split != "train":
            data = self._source.select_examples(self._cohort, self._split)
        return list(map(_as_sequence, data)) if self._as_sequences else data

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ExamplesIterator):
            return NotImplemented
        form, other_form = [(i._split, i._as_sequences) for i in (self, other)]
        return form == other_form and super().__eq__(other)


def _row(rows_type: tff.types.TensorType) -> tff.types.TensorType:
    return tff.types.TensorType(rows_type.dtype, rows_type.shape[1:])


def _as_sequence(examples: Examples) -> tf.data.Dataset:
    size = int(examples.size)
    rows = collections.OrderedDict(x=examples.x[:size], y=examples.y[:size])
    return tf.data.Dataset.from_tensor_slices(rows)
