"""The clients of each round: who takes part, with which state and which data."""

import collections
import copy
import hashlib
import operator
import weakref
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
import tensorflow_federated as tff

from tff_pfl.clients.errors import ForeignStateError
from tff_pfl.clients.padding import pad_examples, shared_capacity
from tff_pfl.clients.participation import EVERYBODY_REPORTS, Participants, Participation
from tff_pfl.clients.serialization import deserialize, serialize
from tff_pfl.clients.state_store import ClientStateStore
from tff_pfl.local.examples import Examples
from tff_pfl.ranges import whole
from tff_pfl.templates.blocks import is_empty
from tff_pfl.templates.process import Client

_CAPACITY = whole(1)
# `from_bytes` gets bytes alone; the data and the store are those of the source of this process.
_SOURCES: "weakref.WeakValueDictionary[bytes, CohortDataSource]" = weakref.WeakValueDictionary()


class UnknownCohortSourceError(LookupError):
    """An iterator was restored before the data source it belongs to was constructed."""


class CohortDataSource(tff.program.FederatedDataSource):
    """The clients of a federation, with their states and data, as a `tff.program` data source.

    Its federated type is `{<client_id=int32,state=C,data=D>}@CLIENTS`, what
    `PersonalizedProcess.next` takes.

    A source can be found by the bytes of its iterators as long as it lives; of two with the same
    data set, type, seed and participation, the one constructed last is.
    """

    def __init__(
        self,
        dataset: Any,
        store: ClientStateStore,
        client_type: tff.types.StructType,
        *,
        seed: int,
        capacity: int | Literal["cohort"] | None = None,
        participation: Participation = EVERYBODY_REPORTS,
    ):
        """Makes the source of a run.

        Args:
            dataset: A `tff_pfl.data.FederatedDataset`: `num_clients`, `examples(client_id, split)`
                and `fingerprint`.
            store: The states of the clients, of type `C`.
            client_type: `<client_id=int32,state=C,data=D>` with `D` an `Examples`.
            seed: Seed of the cohorts, not negative.
            capacity: Rows of a client's examples. `None`: each client's own number, which saves
                work where clients are computed one by one. "cohort": the `shared_capacity` of the
                clients selected together, which lets the graph runtime compute them all at once.
                An int: that many.
            participation: The clients that are selected in a round, and that report.

        Raises:
            TypeError: If `client_type` is not as above, its `C` is not the store's, or its `D` not
                what the data are.
            ValueError: If `seed` is negative, or `capacity` is none of these, or not that of `D`.
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
        if str(client_type.state) != str(store.state_type):
            raise TypeError(
                "The process and the store have different client states.\n"
                f"Process: {client_type.state}\nStore:   {store.state_type}"
            )
        _check_inputs(dataset, client_type.data.x)
        if not (capacity in (None, "cohort") or _CAPACITY.contains(capacity)):
            raise ValueError(
                f"The capacity must be None, 'cohort' or {_CAPACITY.text}, got {capacity!r}."
            )
        rows = client_type.data.x.shape[0]
        if rows is not None and capacity != rows:
            raise ValueError(
                f"The examples of the client type have {rows} rows, the capacity is {capacity!r}. "
                f"Give the capacity {rows}, or a type with an unknown number of rows."
            )
        if seed < 0:
            raise ValueError(f"The seed of the cohorts is 0 or greater, found {seed}.")
        self._dataset = dataset
        self._store = store
        self._seed = seed
        self._capacity = capacity
        self._federated_type = tff.types.FederatedType(client_type, tff.CLIENTS)
        self._participation = participation
        identity = repr((dataset.fingerprint, str(client_type), seed))
        if participation != EVERYBODY_REPORTS:
            identity += repr(participation)
        self._fingerprint = hashlib.sha256(identity.encode()).digest()
        _SOURCES[self._fingerprint] = self

    @property
    def federated_type(self) -> tff.types.FederatedType:
        """`{<client_id=int32,state=C,data=D>}@CLIENTS`."""
        return self._federated_type

    @property
    def num_clients(self) -> int:
        """Number of clients in the federation."""
        return self._dataset.num_clients

    @property
    def seed(self) -> int:
        """Seed of the cohorts."""
        return self._seed

    @property
    def participation(self) -> Participation:
        """The clients that are selected in a round, and that report."""
        return self._participation

    @property
    def store(self) -> ClientStateStore:
        """The states of the clients."""
        return self._store

    @property
    def fingerprint(self) -> bytes:
        """32 bytes that tell apart sources with other data, types, seeds or participation."""
        return self._fingerprint

    def iterator(self) -> "CohortIterator":
        """Returns an iterator at round 0."""
        return CohortIterator(self)

    @classmethod
    def of_fingerprint(cls, fingerprint: bytes) -> "CohortDataSource":
        """Returns the source of this process with a `fingerprint`.

        Raises:
            UnknownCohortSourceError: If no such source was constructed in this process.
        """
        source = _SOURCES.get(fingerprint)
        if source is None:
            raise UnknownCohortSourceError(
                "The iterator belongs to a CohortDataSource that this process does not have. First "
                "construct the CohortDataSource of this run, with the same data set, client type, "
                "seed and participation, and keep it."
            )
        return source

    def participants(self, round_num: int, k: int | None = None) -> Participants:
        """Draws the clients that take part in a round; see `CohortIterator.select`."""
        k = self.num_clients if k is None else k
        return self._participation.participants(self._seed, round_num, self.num_clients, k)

    def select_clients(self, client_ids: Iterable[int], split: str = "train") -> list[Client]:
        """Returns clients of one's own choice, with their states and their data of a split.

        Raises:
            ValueError: If an id occurs twice, or a client has more examples than the capacity.
            TypeError: If an id is no integer.
        """
        client_ids = list(client_ids)
        examples, states = self.select_examples(client_ids, split), self._store.get(client_ids)
        return list(map(Client, map(np.int32, client_ids), states, examples))

    def select_examples(self, client_ids: Iterable[int], split: str) -> list[Examples]:
        """Returns the data of a split of these clients, with as many rows as the capacity says.

        Raises:
            ValueError: If a client has more examples than the capacity.
            TypeError: If an id is no integer.
        """
        client_ids = list(map(operator.index, client_ids))
        examples = [self._dataset.examples(client_id, split) for client_id in client_ids]
        sizes = [int(data.size) for data in examples]
        capacities = sizes
        if self._capacity is not None:
            rows = shared_capacity(sizes) if self._capacity == "cohort" else self._capacity
            capacities = [rows] * len(sizes)
        for client_id, size, capacity in zip(client_ids, sizes, capacities, strict=True):
            if size > capacity:
                raise ValueError(
                    f"Client {client_id} has {size} {split} examples, more than the capacity of "
                    f"{capacity}. Give a capacity of {max(sizes)} or more."
                )
        return list(map(pad_examples, examples, capacities))


def _names(type_signature) -> tuple:
    if not isinstance(type_signature, tff.types.StructType):
        return ()
    return tuple(tff.structure.name_list_with_nones(type_signature))


# A `CohortIterator` as a structure of tensors.
_POSITION_TYPE = tff.types.to_type(
    collections.OrderedDict(
        source=(np.uint8, [32]),  # the fingerprint of the source; it covers the seed
        round_num=np.int64,  # the round selected next
        cohort=(np.int32, [None]),  # the clients that reported last
        outstanding=np.bool_,  # whether `update` is due for them
        digest=np.int64,  # the digest of the store
        client_ids=(np.int64, [None]),  # the clients with a state, for a store in memory
        states=(np.str_, [None]),  # their states
    )
)


class CohortIterator(tff.program.FederatedDataSourceIterator):
    """The rounds of a run: `select` gives a round's cohort, `update` takes its new states back.

    The iterators of a source share its store. The bytes of an iterator carry its position and, for
    a store in memory, every state. A store on disk has its states itself, and the bytes have their
    digest: they belong into the attachments of the `commit` that makes the states of the same
    round durable.
    """

    def __init__(self, source: CohortDataSource):
        """Makes the iterator of `source` at round 0."""
        self._source = source
        self._round_num = 0
        self._cohort = np.zeros([0], np.int32)
        self._participants = None
        self._outstanding = False

    def __deepcopy__(self, memo: Any) -> "CohortIterator":
        """Returns a copy with a position of its own, of the same source."""
        del memo
        return copy.copy(self)

    @classmethod
    def from_bytes(cls, buffer: bytes) -> "CohortIterator":
        """Restores an iterator, and the states of a store in memory.

        Raises:
            UnknownCohortSourceError: If no such source was constructed in this process.
            CorruptStateError: If the bytes are damaged.
            ForeignStateError: If the store has other states than those of the iterator.
        """
        position = deserialize(buffer, _POSITION_TYPE)
        source = CohortDataSource.of_fingerprint(position["source"].tobytes())
        store, digest = source.store, int(position["digest"])
        has_states = bool(len(position["client_ids"]))
        if store.path is None and (has_states or not digest):
            states = zip(position["client_ids"].tolist(), position["states"], strict=True)
            store.restore(dict(states), digest)
        elif has_states or digest != store.digest:
            raise ForeignStateError(
                f"The iterator was saved with client states{' in memory' * has_states} of digest "
                f"{digest:08x}, but those in {store.path or 'memory'} have {store.digest:08x}: "
                "load what was saved together with these states."
            )
        iterator = cls(source)
        iterator._round_num = int(position["round_num"])
        iterator._cohort = position["cohort"]
        iterator._outstanding = bool(position["outstanding"])
        return iterator

    def to_bytes(self) -> bytes:
        """Serializes the position and, for a store in memory, all states, pending ones too."""
        store = self._source.store
        states = store.snapshot() if store.path is None else {}
        position = dict(
            source=np.frombuffer(self._source.fingerprint, np.uint8),
            round_num=self._round_num,
            cohort=self._cohort,
            outstanding=self._outstanding,
            digest=store.digest,
            client_ids=np.array(list(states), np.int64),
            states=np.array(list(states.values()), object),
        )
        return serialize(position, _POSITION_TYPE)

    @property
    def federated_type(self) -> tff.types.FederatedType:
        """`{<client_id=int32,state=C,data=D>}@CLIENTS`."""
        return self._source.federated_type

    @property
    def round_num(self) -> int:
        """The round that `select` gives next, from 0."""
        return self._round_num

    @property
    def cohort(self) -> np.ndarray:
        """int32 ids of the clients that reported last, none before the first round."""
        return self._cohort.copy()

    @property
    def participants(self) -> Participants | None:
        """How the cohort came about that reported last; `None` before, or once restored."""
        return self._participants

    def select(self, k: int | None = None) -> list[Client]:
        """Returns the clients that report in this round, with their train examples.

        The iterator goes on to the next round.

        Args:
            k: Size of the cohort, see `Participation`; `None` for all clients.

        Raises:
            RuntimeError: If the states of the cohort before are to be stored, and were not.
            ValueError: If `k` is no integer, or not positive, or the federation has fewer clients,
                or a client has more examples than the capacity. The iterator stays at this round.
        """
        source = self._source
        if self._outstanding and not is_empty(source.store.state_type):
            raise RuntimeError(
                "The cohort that was selected last has no new states yet: `update` takes them, "
                "before `select` gives the next cohort."
            )
        found = source.participants(self._round_num, k)
        clients = source.select_clients(found.reported)
        self._cohort, self._participants = found.reported, found
        self._outstanding = True
        self._round_num += 1
        return clients

    def update(self, clients: Iterable[Any]) -> None:
        """Takes the new states of the cohort selected last, in its order, into the store.

        They are pending there until its `commit`.

        Raises:
            RuntimeError: If no cohort was selected since the last update.
            ValueError: If there are not as many states as clients in the cohort.
            TypeError: If a state is not of type `C`.
        """
        clients = list(clients)
        if not self._outstanding:
            raise RuntimeError(
                "No cohort waits for new states: `select` comes first, and `update` once after it."
            )
        if len(clients) != len(self._cohort):
            raise ValueError(
                f"Expected a new state for each of the {len(self._cohort)} clients of the cohort, "
                f"found {len(clients)}."
            )
        self._source.store.put(self._cohort, clients)
        self._outstanding = False

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CohortIterator):
            return NotImplemented
        return (
            self._source.fingerprint == other._source.fingerprint
            and self._round_num == other._round_num
            and np.array_equal(self._cohort, other._cohort)
            and self._outstanding == other._outstanding
        )


def _check_inputs(dataset: Any, expected: tff.types.TensorType) -> None:
    """Checks that the inputs of a data set are of a type, by those of its first client."""
    x = np.asarray(dataset.examples(0, "train").x)
    wanted = tff.types.TensorType(expected.dtype, expected.shape[1:])
    found = tff.types.TensorType(x.dtype.type, x.shape[1:])
    if not wanted.is_assignable_from(found):
        raise TypeError(
            f"The process takes inputs of {wanted}, but those of the data are {found}. Compose it "
            f"with examples_type({x.shape[1:]}, np.{x.dtype}), or convert the data."
        )
