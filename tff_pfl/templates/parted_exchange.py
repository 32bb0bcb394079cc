"""Splits an exchange where TFF does: clients in parts, sums of parts, and the server's part."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.templates.blocks import IDS
from tff_pfl.templates.composed_exchange import ComposedExchange, in_parts
from tff_pfl.templates.process import PersonalizedProcess
from tff_pfl.templates.values import Client, ProcessOutput, ServerState

_NOTHING = np.int32(0)  # the state of an aggregator that does not exist


class Downlink(NamedTuple):
    """The things that all clients of an exchange get.

    Attributes:
        shared: The message that is broadcast; `()` without one.
        round_num: int32 scalar, the number of completed rounds.
        aggregator: The broadcast of the aggregator, such as a norm to clip to.
    """

    shared: Any
    round_num: Any
    aggregator: Any


class PartClient(NamedTuple):
    """A client of a part.

    Attributes:
        client: The `Client`.
        own: The message to this client only; `()` without one.
        carry: The value that it kept from the exchange before; `()` at the first.
    """

    client: Client
    own: Any = ()
    carry: Any = ()


class PartOutput(NamedTuple):
    """The result of a part of a cohort.

    Attributes:
        states: The new states of its clients, in order.
        carry: The values that they keep for the next exchange, in order.
        sums: The sums of their uploads and reports, which `merge` adds.
    """

    states: Any
    carry: Any
    sums: Any


class PartedExchange:
    """An exchange whose cohort is computed in parts, by any processes.

        down = parted.downlink(state)
        a, b = parted.part(down, some), parted.part(down, others)       # anywhere
        state, metrics = parted.finish(state, parted.merge(a.sums, b.sums), client_ids)

    The aggregation is split as TFF's `MapReduceForm` splits it, which TFF also compiles for
    production. Where TFF has no such form, sums are the uploads themselves.

    Attributes:
        exchange: The exchange.
    """

    def __init__(self, process: PersonalizedProcess, index: int):
        """Compiles the aggregation of an exchange of a process."""
        self.exchange: ComposedExchange = process.exchanges[index]
        self._process = process
        self._state_type = process.initialize.type_signature.result.member
        self._carry_type = process.exchanges[index - 1].carry_type if index else ()
        self._form = _form_of(self.exchange)

    @property
    def sums_uploads(self) -> bool:
        """Whether parts send sums of uploads, and not all of them."""
        return self._form is not None

    def downlink(self, state: ServerState) -> Downlink:
        """Returns what all clients get from the server's state before the exchange."""
        block, aggregator, name = self.exchange.block, (), self.exchange.name
        if self._form is not None:
            has_state = self.exchange.aggregation is not None
            aggregator = self._form.prepare(state.aggregators[name] if has_state else _NOTHING)
        shared = block.distribute(state.algorithm) if block.broadcasts else ()
        return Downlink(shared, state.round_num, aggregator)

    def own_messages(self, state: ServerState, client_ids: Sequence[int]) -> list[Any]:
        """Returns the messages to single clients; `()` for each without any."""
        if not self.exchange.block.selects:
            return [()] * len(client_ids)
        return list(self._select(state, [np.int32(i) for i in client_ids]))

    def part(self, down: Downlink, clients: Sequence[PartClient]) -> PartOutput:
        """Computes the clients of a part, of which there is at least one."""
        found = self._part(down, list(clients))
        sums = list(found.sums) if self._form is None else found.sums
        return PartOutput(list(found.states), list(found.carry), sums)

    def merge(self, sums: Any, others: Any) -> Any:
        """Adds the sums of two parts, in this order."""
        return [*sums, *others] if self._form is None else self._merge(sums, others)

    def finish(self, state: ServerState, sums: Any, client_ids: Sequence[int]) -> tuple[Any, Any]:
        """Returns the server's state after the exchange, and its metrics.

        Args:
            state: The state before.
            sums: The merged sums of all parts; `None` if nobody reported.
            client_ids: The ids of the cohort.
        """
        if sums is None:
            sums = [] if self._form is None else self._no_sums()
        found = self._finish(state, sums, np.asarray(client_ids, np.int32))
        return found.state, found.metrics

    @functools.cached_property
    def _select(self) -> tff.Computation:
        block = self.exchange.block

        @tff.federated_computation(
            tff.types.FederatedType(self._state_type, tff.SERVER),
            tff.types.FederatedType(np.int32, tff.CLIENTS),
        )
        def select(state, client_ids):
            round_num = tff.federated_broadcast(state.round_num)
            return block.select(state.algorithm, client_ids, round_num)

        return select

    @functools.cached_property
    def _part(self) -> tff.Computation:
        block, form, gather = self.exchange.block, self._form, self._process.gather
        inputs = block.work.type_signature.parameter
        down_type = Downlink(
            inputs.shared if block.broadcasts else (),
            np.int32,
            () if form is None else form.prepare.type_signature.result,
        )
        own_type = inputs.own if block.selects else ()
        client_type = PartClient(self._process.client_type, own_type, self._carry_type)

        @tff.federated_computation(
            tff.types.FederatedType(tff.types.to_type(down_type), tff.SERVER),
            tff.types.FederatedType(tff.types.to_type(client_type), tff.CLIENTS),
        )
        def part(down, clients):
            received, client = tff.federated_broadcast(down), clients.client
            data = client.data if gather is None else tff.federated_map(gather, client.data)
            outputs = block.map_received(
                received.shared,
                clients.own,
                received.round_num,
                Client(client.client_id, client.state, data),
                client.state,
                clients.carry if self._carry_type else None,
            )
            sent = outputs
            if form is not None:
                updates = tff.federated_map(form.work, (outputs, received.aggregator))
                sums = tff.federated_aggregate(
                    updates[0], form.zero(), form.accumulate, form.merge, _same(form)
                )
                sent = [sums, *(tff.federated_sum(updates[i]) for i in (1, 2, 3))]
            return PartOutput(outputs.state, outputs.carry, sent)

        return part

    @functools.cached_property
    def _sums_type(self) -> tff.types.Type:
        if self._form is None:
            return tff.types.FederatedType(
                self.exchange.block.work.type_signature.result, tff.CLIENTS
            )
        _, *secure = self._form.work.type_signature.result
        return tff.types.to_type([self._form.merge.type_signature.result, *secure])

    @functools.cached_property
    def _merge(self) -> tff.Computation:
        form = self._form

        @tff.tensorflow.computation(self._sums_type, self._sums_type)
        def merge(a, b):
            return [form.merge(a[0], b[0]), *map(_add, list(a)[1:], list(b)[1:])]

        return merge

    @functools.cached_property
    def _no_sums(self) -> tff.Computation:
        form = self._form

        @tff.tensorflow.computation
        def no_sums():
            specs = tff.types.type_to_tf_tensor_specs(self._sums_type)
            zeros = tf.nest.map_structure(lambda it: tf.zeros(it.shape, it.dtype), specs[1:])
            return [form.zero(), *zeros]

        return no_sums

    @functools.cached_property
    def _finish(self) -> tff.Computation:
        exchange, exchanges, form = self.exchange, self._process.exchanges, self._form
        sums_type = self._sums_type
        if form is not None:
            sums_type = tff.types.FederatedType(sums_type, tff.SERVER)

        @tff.federated_computation(
            tff.types.FederatedType(self._state_type, tff.SERVER),
            sums_type,
            tff.types.FederatedType(IDS, tff.SERVER),
        )
        def finish(state, sums, ids):
            parts = in_parts(exchanges, state)
            if form is None:
                new, found = exchange.aggregate(parts.aggregators, sums)
            else:
                has_state = exchange.aggregation is not None
                before = (
                    parts.aggregators[exchange.name]
                    if has_state
                    else tff.federated_value(_NOTHING, tff.SERVER)
                )
                modular = tff.federated_map(_modulo(form), sums[3])
                reported = tff.federated_map(form.report, sums[0])
                total = tff.federated_map(
                    form.update, (before, tff.federated_zip([reported, sums[1], sums[2], modular]))
                )
                new, results = total
                names = tff.structure.name_list(results.type_signature.member)
                found = {name: results[name] for name in names}
            new_state, metrics = exchange.finalize(parts, ids, new, found)
            return _Finished(tff.federated_zip(new_state), metrics)

        return finish


def next_in_parts(
    process: PersonalizedProcess, state: ServerState, parts: Sequence[Sequence[Client]]
) -> ProcessOutput:
    """Computes a round as `next` of a process does, but for rounding, one part after the other.

    Args:
        process: The process.
        state: The server's state before.
        parts: The clients of each part, of which there is at least one.
    """
    ids = [int(client.client_id) for clients in parts for client in clients]
    states = [[client.state for client in clients] for clients in parts]
    carries: list[Sequence[Any]] = [[()] * len(clients) for clients in parts]
    metrics = {}
    for index, composed in enumerate(process.exchanges):
        exchange, sums = PartedExchange(process, index), None
        down = exchange.downlink(state)
        for number, clients in enumerate(parts):
            own = exchange.own_messages(state, [int(client.client_id) for client in clients])
            now = [it._replace(state=its) for it, its in zip(clients, states[number], strict=True)]
            output = exchange.part(down, list(map(PartClient, now, own, carries[number])))
            states[number], carries[number] = output.states, output.carry
            sums = output.sums if sums is None else exchange.merge(sums, output.sums)
        state, metrics[composed.name] = exchange.finish(state, sums, ids)
    return ProcessOutput(state, [state for part in states for state in part], metrics)


class _Finished(NamedTuple):
    state: Any
    metrics: Any


def _form_of(exchange: ComposedExchange) -> tff.backends.mapreduce.MapReduceForm | None:
    """Returns the form of the aggregation alone; `None` if TFF has no such form."""
    if not exchange.aggregates:
        return None
    state_type = tff.types.TensorType(np.int32)
    if exchange.aggregation is not None:
        state_type = exchange.aggregation.next.type_signature.parameter[0].member
    outputs_type = exchange.block.work.type_signature.result

    @tff.federated_computation(
        tff.types.FederatedType(state_type, tff.SERVER),
        tff.types.FederatedType(outputs_type, tff.CLIENTS),
    )
    def aggregate(state, outputs):
        new, found = exchange.aggregate({exchange.name: state}, outputs)
        return state if new is None else new, tff.federated_zip(found)

    try:
        return tff.backends.mapreduce.get_map_reduce_form_for_computation(aggregate)
    except Exception:  # TFF has no error of its own for what it cannot compile
        return None


def _same(form) -> tff.Computation:
    return tff.tensorflow.computation(lambda sums: sums, form.merge.type_signature.result)


def _elementwise(function, a, b):
    """Applies a function to the tensors of two values, in a TensorFlow computation."""
    a, b = (
        it if tf.is_tensor(it) else tff.structure.from_container(it, recursive=True)
        for it in (a, b)
    )
    pairs = zip(tff.structure.flatten(a), tff.structure.flatten(b), strict=True)
    return tff.structure.pack_sequence_as(a, [function(x, y) for x, y in pairs])


def _add(a, b):
    return _elementwise(tf.add, a, b)


def _modulo(form) -> tff.Computation:
    """Makes `(sums -> sums)`, the remainders of secure modular sums."""

    @tff.tensorflow.computation(form.work.type_signature.result[3])
    def modulo(sums):
        return _elementwise(tf.math.floormod, sums, form.secure_modular_sum_modulus())

    return modulo
