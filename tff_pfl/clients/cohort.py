"""A data source of the clients of each round, with their states and data."""

import collections
import copy
import hashlib
import operator
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Literal

import numpy as np
import tensorflow_federated as tff

from tff_pfl.arguments.digests import described
from tff_pfl.arguments.ranges import whole
from tff_pfl.clients.client_type import check_client_type
from tff_pfl.clients.errors import ForeignStateError
from tff_pfl.clients.padding import Ladder, capacities_of, pad_examples
from tff_pfl.clients.participation import EVERYBODY_REPORTS, Participants, Participation
from tff_pfl.clients.selectors import History, KnownClients, Losses, no_losses
from tff_pfl.clients.serialization import deserialize, serialize
from tff_pfl.clients.state_store import ClientStateStore
from tff_pfl.local.examples import Examples
from tff_pfl.templates.values import Client
from tff_pfl.tracing.structures import is_empty

_CAPACITY = whole(1)
# `from_bytes` gets only bytes, and finds the source with the data and the store here.
_SOURCES: "weakref.WeakValueDictionary[bytes, CohortDataSource]" = weakref.WeakValueDictionary()


class UnknownCohortSourceError(LookupError):
    """An error for an iterator that is restored before its data source was constructed."""


class CohortDataSource(tff.program.FederatedDataSource):
    """A `tff.program` data source of the clients of a federation, with their states and data.

    Its federated type is `{<client_id=int32,state=C,data=D>}@CLIENTS`, the type of the clients in
    `PersonalizedProcess.next`.

    The bytes of an iterator are restored with a source that exists in the process. If several
    sources have the same data set, type, seed and participation, the last one constructed is used.

    Attributes:
        store: The store of the clients' states.
        seed: The seed of the cohorts.
        participation: The rule by which clients are selected and report.
        fingerprint: A digest of data, client type, seed and participation, 32 bytes.
    """

    def __init__(
        self,
        dataset: Any,
        store: ClientStateStore,
        client_type: tff.types.StructType,
        *,
        seed: int,
        capacity: int | Literal["cohort"] | Ladder | None = None,
        participation: Participation = EVERYBODY_REPORTS,
    ):
        """Makes the source of a run.

        Args:
            dataset: A `tff_pfl.data.FederatedDataset`, or an object with `num_clients`,
                `examples(client_id, split)`, `fingerprint` and, for selectors that are not uniform,
                `sizes()`; if its clients have names, also `ids_of(clients)`.
            store: The store of the clients' states, of type `C`.
            client_type: `<client_id=int32,state=C,data=D>`; `D` is the type of an `Examples`.
            seed: The seed of the cohorts, not negative.
            capacity: The number of rows of a client's examples, padding included. `None`: no
                padding, which saves work if clients are computed one by one or side by side. A
                `Ladder`: the capacity of each client, with which the graph runtime computes groups
                of clients at once on CPUs. "cohort": the `shared_capacity` of the cohort, with
                which it computes all clients at once. An int: this number of rows.
            participation: The rule by which clients are selected and report.

        Raises:
            TypeError: `client_type` has another form, its `C` is not the store's type, or its `D`
                is not the data's type.
            ValueError: `seed` is negative, or `capacity` is invalid or differs from the rows of
                `D`.
        """
        check_client_type(client_type, store.state_type, dataset)
        is_rule = capacity in (None, "cohort") or isinstance(capacity, Ladder)
        if not (is_rule or _CAPACITY.contains(capacity)):
            raise ValueError(
                f"capacity must be None, a Ladder, 'cohort' or {_CAPACITY.text}, got {capacity!r}."
            )
        rows = tff.structure.flatten(client_type.data)[0].shape[0]
        if rows is not None and capacity != rows:
            raise ValueError(
                f"The examples of client_type have {rows} rows, but capacity is {capacity!r}. Set "
                f"capacity={rows}, or give a type with an unknown number of rows."
            )
        if seed < 0:
            raise ValueError(f"seed must be 0 or greater, found {seed}.")
        self._dataset = dataset
        self.store = store
        self.seed = seed
        self._capacity = capacity
        self._federated_type = tff.types.FederatedType(client_type, tff.CLIENTS)
        self.participation = participation
        identity = repr((dataset.fingerprint, str(client_type), seed))
        if participation != EVERYBODY_REPORTS:
            identity += repr(described(participation))
        self.fingerprint = hashlib.sha256(identity.encode()).digest()
        _SOURCES[self.fingerprint] = self

    @property
    def federated_type(self) -> tff.types.FederatedType:
        """`{<client_id=int32,state=C,data=D>}@CLIENTS`."""
        return self._federated_type

    @property
    def num_clients(self) -> int:
        """The number of clients in the federation."""
        return self._dataset.num_clients

    def iterator(self) -> "CohortIterator":
        """Returns an iterator at round 0."""
        return CohortIterator(self)

    @classmethod
    def of_fingerprint(cls, fingerprint: bytes) -> "CohortDataSource":
        """Returns the source with this fingerprint that was constructed in this process.

        Raises:
            UnknownCohortSourceError: The source was not constructed, or does not exist any more.
        """
        source = _SOURCES.get(fingerprint)
        if source is None:
            raise UnknownCohortSourceError(
                "The iterator's CohortDataSource does not exist in this process. First construct "
                "the CohortDataSource of this run, with the same data set, client type, seed and "
                "participation, and keep a reference to it."
            )
        return source

    def participants(
        self,
        round_num: int,
        k: int | None = None,
        *,
        history: History | None = None,
        losses: Losses = no_losses,
    ) -> Participants:
        """Draws the clients that take part in a round; see `CohortIterator.select`.

        Args:
            round_num: The round, from 0.
            k: The size of the cohort, see `Participation`; `None` for all clients.
            history: The history before the round; only for selectors that are not uniform.
            losses: See `KnownClients`.
        """
        num_clients, known = self.num_clients, None
        if self.participation.selects and history is not None:
            known = KnownClients(np.arange(num_clients), self._dataset.sizes(), *history, losses)
        k = num_clients if k is None else k
        return self.participation.participants(self.seed, round_num, num_clients, k, known)

    def select_clients(self, clients: Iterable[int | str], split: str = "train") -> list[Client]:
        """Returns the given clients, with their states and their examples of a split.

        Args:
            clients: The names of clients, or their ids if they have no names.
            split: "train", "validation" or "test".

        Raises:
            UnknownNameError: A client does not exist, or is a number although names are text.
            ValueError: A client occurs twice, or has more examples than the capacity.
            TypeError: A client is neither text nor an integer.
        """
        ids_of: Callable = getattr(self._dataset, "ids_of", list)
        return self.clients_of_ids(ids_of(clients), split)

    def clients_of_ids(self, client_ids: Iterable[int], split: str = "train") -> list[Client]:
        """Returns the clients with these ids; see `select_clients`."""
        client_ids = list(client_ids)
        examples, states = self.select_examples(client_ids, split), self.store.get(client_ids)
        return list(map(Client, map(np.int32, client_ids), states, examples))

    def sizes(self, split: str) -> np.ndarray:
        """Returns int64 `[N]`, the number of examples of each client of a split."""
        return self._dataset.sizes(split)

    def select_examples(self, client_ids: Iterable[int], split: str) -> list[Examples]:
        """Returns the examples of a split of the given clients, padded to the capacity.

        Raises:
            ValueError: A client has more examples than the capacity.
            TypeError: An id is not an integer.
        """
        client_ids = list(map(operator.index, client_ids))
        examples = [self._dataset.examples(client_id, split) for client_id in client_ids]
        sizes = [int(data.size) for data in examples]
        capacities = capacities_of(sizes, self._capacity)
        for client_id, size, capacity in zip(client_ids, sizes, capacities, strict=True):
            if size > capacity:
                raise ValueError(
                    f"Client {client_id} has {size} {split} examples, more than the capacity of "
                    f"{capacity}. Set capacity to {max(sizes)} or more."
                )
        return list(map(pad_examples, examples, capacities))


# The TFF type of a `CohortIterator` as a structure of tensors.
_POSITION_TYPE = tff.types.to_type(
    collections.OrderedDict(
        source=(np.uint8, [32]),  # the fingerprint of the source, which covers the seed
        round_num=np.int64,  # the next round
        cohort=(np.int32, [None]),  # the last cohort
        outstanding=np.bool_,  # whether `update` must still be called for it
        num_rounds=(np.int32, [None]),  # the history; empty if clients are drawn uniformly
        last_round=(np.int32, [None]),
        digest=np.int64,  # the digest of the store
        client_ids=(np.int64, [None]),  # the clients with a state, for a store in memory
        states=(np.str_, [None]),  # the states of `client_ids`
    )
)


class CohortIterator(tff.program.FederatedDataSourceIterator):
    """An iterator over rounds: `select` returns a cohort, `update` stores its new states.

    `choose` returns a cohort that the caller chooses.

    The iterators of a source share its store. The bytes of an iterator contain its position. For a
    store in memory they also contain every state, for a store on disk only the digest of the
    states: save them as an attachment of the `commit` of the states of the same round.
    """

    def __init__(self, source: CohortDataSource):
        """Makes the iterator of `source` at round 0."""
        self._source = source
        self._round_num = 0
        self._cohort = np.zeros([0], np.int32)
        self._participants = None
        self._outstanding = False
        remembered = source.num_clients if source.participation.selects else 0
        self._history = History.before_training(remembered)

    def __deepcopy__(self, memo: Any) -> "CohortIterator":
        """Returns a copy with its own position, of the same source."""
        return copy.copy(self)

    @classmethod
    def from_bytes(cls, buffer: bytes) -> "CohortIterator":
        """Restores an iterator and, if its store is in memory, the client states.

        Raises:
            UnknownCohortSourceError: The source was not constructed in this process.
            CorruptStateError: The bytes are damaged.
            ForeignStateError: The store has other states than the iterator was saved with.
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
                f"{digest:08x}, but the states in {store.path or 'memory'} have digest "
                f"{store.digest:08x}. Load an iterator that was saved together with these states."
            )
        iterator = cls(source)
        iterator._round_num = int(position["round_num"])
        iterator._cohort = position["cohort"]
        iterator._outstanding = bool(position["outstanding"])
        iterator._history = History(position["num_rounds"], position["last_round"])
        return iterator

    def to_bytes(self) -> bytes:
        """Serializes the position and, for a store in memory, all stored and pending states."""
        store = self._source.store
        states = store.snapshot() if store.path is None else {}
        position = dict(
            source=np.frombuffer(self._source.fingerprint, np.uint8),
            round_num=self._round_num,
            cohort=self._cohort,
            outstanding=self._outstanding,
            **self._history._asdict(),
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
        """The next round, from 0."""
        return self._round_num

    @property
    def cohort(self) -> np.ndarray:
        """The int32 ids of the last cohort, empty before the first round."""
        return self._cohort.copy()

    @property
    def participants(self) -> Participants | None:
        """The participants of this object's last `select`; `None` before it or after `choose`."""
        return self._participants

    def select(self, k: int | None = None, *, losses: Losses = no_losses) -> list[Client]:
        """Returns the clients that report in this round, with their training examples.

        The iterator advances to the next round.

        Args:
            k: The size of the cohort, see `Participation`; `None` for all clients.
            losses: See `KnownClients`; for selectors that need them.

        Raises:
            RuntimeError: `update` was not called for the last cohort, and clients have states.
            ValueError: `k` is not an integer in 1..num_clients, the selector needs `losses`, or a
                client has more examples than the capacity. The iterator stays at this round.
        """
        self._check_updated()
        participants = self._source.participants(
            self._round_num, k, history=self._history, losses=losses
        )
        clients = self._source.clients_of_ids(participants.reported)
        self._advance(participants.reported, participants)
        return clients

    def choose(self, clients: Iterable[int | str]) -> list[Client]:
        """Returns the given clients, in their order, as the cohort of this round.

        The iterator advances to the next round, unless there is an error.

        Args:
            clients: Names or ids, see `CohortDataSource.select_clients`.

        Raises:
            RuntimeError: `update` was not called for the last cohort, and clients have states.
            ValueError, TypeError: See `CohortDataSource.select_clients`.
        """
        self._check_updated()
        cohort = self._source.select_clients(clients)
        self._advance(np.array([client.client_id for client in cohort], np.int32), None)
        return cohort

    def _check_updated(self) -> None:
        if self._outstanding and not is_empty(self._source.store.state_type):
            raise RuntimeError(
                "The last cohort has no new states yet. Call `update` with them before the next "
                "`select`."
            )

    def _advance(self, cohort, participants) -> None:
        """Goes to the next round, after a cohort of this round."""
        if self._source.participation.selects:
            self._history = self._history.after(self._round_num, cohort)
        self._cohort, self._participants = cohort, participants
        self._outstanding = True
        self._round_num += 1

    def update(self, clients: Iterable[Any]) -> None:
        """Puts the new states of the last cohort, in its order, into the store.

        The states are pending until the store's `commit`.

        Raises:
            RuntimeError: No cohort was selected since the last update.
            ValueError: The number of states differs from the number of clients in the cohort.
            TypeError: A state is not of type `C`.
        """
        clients = list(clients)
        if not self._outstanding:
            raise RuntimeError(
                "No cohort waits for new states. Call `select` first, then `update` once."
            )
        if len(clients) != len(self._cohort):
            raise ValueError(
                f"Expected a new state for each of the {len(self._cohort)} clients of the cohort, "
                f"found {len(clients)}."
            )
        self._source.store.put(self._cohort, clients)
        self._outstanding = False

    def __eq__(self, other: object) -> bool:
        """Returns whether both have the same source, position and last cohort."""
        if not isinstance(other, CohortIterator):
            return NotImplemented
        return (
            self._source.fingerprint == other._source.fingerprint
            and self._round_num == other._round_num
            and np.array_equal(self._cohort, other._cohort)
            and self._outstanding == other._outstanding
            and all(map(np.array_equal, self._history, other._history))
        )
