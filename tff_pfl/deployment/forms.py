"""Compiles a process into TFF's forms for production."""

import dataclasses
import functools

import tensorflow_federated as tff

from tff_pfl.templates.composed_exchange import ComposedExchange, run_in_turn
from tff_pfl.templates.process import PersonalizedProcess
from tff_pfl.templates.values import Client

mapreduce = tff.backends.mapreduce


@dataclasses.dataclass(frozen=True, eq=False)
class ExchangeForms:
    """An exchange of a round in TFF's forms. Each is compiled when it is first read.

    With `S`, `C` and `D` as in `PersonalizedProcess`, `K` what a client keeps from the exchange
    before to this one (none in the first), and `M` the metrics of the exchange under its name, a
    form takes clients of the type `<client_id=int32, state=C, data=D[, carry=K]>`.

    Attributes:
        exchange: The exchange.
        server: `(<S@SERVER, {client}@CLIENTS> -> <S@SERVER, M@SERVER>)`, the computation that
            `map_reduce` and `distribute_aggregate` are compiled from.
        clients: `(<S@SERVER, {client}@CLIENTS> -> {<state=C, carry=K>}@CLIENTS)`, what clients keep
            of the exchange.
    """

    exchange: ComposedExchange
    server: tff.Computation
    unchecked: tff.Computation
    clients: tff.Computation

    @property
    def name(self) -> str:
        """The name of the exchange."""
        return self.exchange.name

    @functools.cached_property
    def map_reduce(self) -> tff.backends.mapreduce.MapReduceForm:
        """The exchange from a server's state to the next, as a `MapReduceForm`."""
        return mapreduce.get_map_reduce_form_for_computation(self.server)

    @functools.cached_property
    def distribute_aggregate(self) -> tff.backends.mapreduce.DistributeAggregateForm:
        """The exchange from a server's state to the next, as a `DistributeAggregateForm`."""
        return mapreduce.get_distribute_aggregate_form_for_computation(self.unchecked)

    @functools.cached_property
    def on_clients(self) -> tff.backends.mapreduce.BroadcastForm:
        """What clients keep of the exchange, as a `BroadcastForm` of the same message and work."""
        return mapreduce.get_broadcast_form_for_computation(self.clients)


def forms(process: PersonalizedProcess) -> tuple[ExchangeForms, ...]:
    """Returns TFF's forms of a process, one for each exchange of a round.

    A round is its exchanges in order, each from the server's state to the next; the last one counts
    the round. What a client keeps, its state and what it needs in the next exchange, stays on the
    client, and no `MapReduceForm` returns it: `on_clients` computes it.

    A form has no `federated_select`. What a client's own message is selected from is broadcast
    instead, and the client selects; so a client sees what the server keeps for others.

    Example:
        >>> model, local = testing.tiny_model(), testing.tiny_local()
        >>> process = tff_pfl.compose(tff_pfl.make("ditto", model, local), testing.EXAMPLES_TYPE)
        >>> [train] = deployment.forms(process)
        >>> isinstance(train.map_reduce, tff.backends.mapreduce.MapReduceForm)
        True

    Args:
        process: The process.
    """
    return tuple(_forms(process, index) for index in range(len(process.exchanges)))


def _forms(process, index) -> ExchangeForms:
    state_type = process.initialize.type_signature.result
    carry_type = process.exchanges[index - 1].carry_type if index else None
    client_type = process.client_type
    if carry_type is not None:
        client_type = tff.types.StructType(
            [*tff.structure.iter_elements(client_type), ("carry", carry_type)]
        )
    parameters = state_type, tff.types.FederatedType(client_type, tff.CLIENTS)

    def run(state, clients, **options):
        data = clients.data
        if process.gather is not None:
            data = tff.federated_map(process.gather, data)
        client = tff.federated_zip(Client(clients.client_id, clients.state, data))
        carry = None if carry_type is None else clients.carry
        options["selects"] = False
        return run_in_turn(process.exchanges, [index], state, client, carry, **options)

    def server(checks):
        @tff.federated_computation(*parameters)
        def next_state(state, clients):
            new_state, _, _, metrics = run(state, clients, checks=checks)
            return tff.federated_zip(new_state), tff.federated_zip(metrics)

        return next_state

    @tff.federated_computation(*parameters)
    def on_clients(state, clients):
        _, states, carry, _ = run(state, clients)
        return tff.federated_zip({"state": states, "carry": carry})

    return ExchangeForms(process.exchanges[index], server(True), server(False), on_clients)
