"""Computes parts of a federation in one process, which keeps their data and states."""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tff_pfl.clients.parted_store import PartedStateStore
from tff_pfl.cluster.tree import folded
from tff_pfl.experiment.experiment import Experiment
from tff_pfl.templates import Client
from tff_pfl.templates.parted_exchange import Downlink, PartClient, PartedExchange


class Order(NamedTuple):
    """The clients of a part that a round asks for.

    Attributes:
        ids: Their ids.
        own: Their own messages by the index of the exchange: of the last one, and of all before if
            another process has computed these.
    """

    ids: Sequence[int]
    own: Mapping[int, Sequence[Any]]


class _Done(NamedTuple):
    """The results of a part after an exchange of a round."""

    round_num: int
    exchange: int
    states: Sequence[Any]
    carry: Sequence[Any]


class Site:
    """The parts of a federation that one process computes.

    Attributes:
        experiment: The experiment, made in this process.
    """

    def __init__(self, experiment: Experiment, path: str | os.PathLike, num_parts: int):
        """Composes the experiment.

        Args:
            experiment: The experiment.
            path: The checkpoint of the run.
            num_parts: The number of parts of the federation.
        """
        self.experiment, process = experiment, experiment.process
        self._exchanges = [PartedExchange(process, i) for i in range(len(process.exchanges))]
        self._store = PartedStateStore(
            process.initialize_clients, process.client_state_type, path, num_parts=num_parts
        )
        self._at_a_time = -(-experiment.cohort_size // num_parts)
        self._source = experiment.source(self._store, self._at_a_time)
        self._num_parts = num_parts
        self._done: dict[int, _Done] = {}

    def take_over(self, parts: Mapping[int, int]) -> None:
        """Forgets all that this process knows of parts; see `PartedStateStore.take_over`."""
        for part in parts:
            self._done.pop(part, None)
        self._store.take_over(parts)

    def train(
        self,
        committed: int,
        orders: Mapping[int, Order],
        round_num: int,
        downs: Sequence[Downlink],
        active: Sequence[int],
    ) -> dict[tuple[int, int], Any]:
        """Computes an exchange of a round for some parts, and those before if it has not yet.

        After the last exchange, the new states are on the disk.

        Args:
            committed: The number of rounds that the run has committed.
            orders: The clients of each part.
            round_num: The number of rounds before this one.
            downs: The things that clients get in each exchange so far.
            active: The parts that have clients in this round, here or elsewhere.

        Returns:
            The sums of these parts, merged as `folded` does.
        """
        with self._computing(round_num, committed, orders):
            last = len(downs) == len(self._exchanges)
            sums = {}
            for part, order in orders.items():
                sums[part] = self._train_part(part, order, round_num, downs)
                if last:
                    self._store.put(order.ids, self._done.pop(part).states)
            if last:
                self._store.write(orders, round_num + 1)
        merge = self._exchanges[len(downs) - 1].merge
        return folded({(1, part): it for part, it in sums.items()}, active, self._num_parts, merge)

    def _train_part(self, part, order, round_num, downs):
        done, index = self._done.get(part), len(downs) - 1
        if done is None or (done.round_num, done.exchange) != (round_num, index - 1):
            states = self._store.get(order.ids)
            done = _Done(round_num, -1, states, [()] * len(order.ids))
        examples = self._source.select_examples(order.ids, "train")
        output = None
        for number in range(done.exchange + 1, index + 1):
            clients = [
                PartClient(Client(np.int32(i), state, data), own, carry)
                for i, state, data, own, carry in zip(
                    order.ids, done.states, examples, order.own[number], done.carry, strict=True
                )
            ]
            output = self._exchanges[number].part(downs[number], clients)
            done = _Done(round_num, number, output.states, output.carry)
        self._done[part] = done
        return output.sums

    def evaluate(
        self,
        committed: int,
        orders: Mapping[int, Sequence[int]],
        round_num: int,
        server_states: Sequence[Any],
        name: str,
        arguments: Mapping[str, Any],
    ) -> dict[int, Any]:
        """Calls a method of the evaluator for the clients of some parts.

        Args:
            committed: See `train`.
            orders: The ids of clients by part.
            round_num: The number of rounds done.
            server_states: The process's `ServerState`, alone.
            name: The name of the method.
            arguments: Further arguments by name.
        """
        found, (server_state,) = {}, server_states
        with self._computing(round_num, committed, orders):
            for part, client_ids in orders.items():
                evaluator = self.experiment.evaluator.of_clients(np.array(client_ids))
                further = {"client_ids": client_ids} if name == "losses" else arguments
                found[part] = getattr(evaluator, name)(server_state, self._source, **further)
        return found

    @contextlib.contextmanager
    def _computing(self, round_num, committed, parts) -> Iterator[None]:
        """Chooses the states after a number of rounds, and computes as `tff_pfl.train` does."""
        self._store.round_num = round_num
        self._store.merge(parts, committed)
        with self.experiment.compiling(self._at_a_time):
            yield
