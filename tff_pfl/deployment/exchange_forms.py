"""Compiles a process into TFF's forms for production."""

import dataclasses
import functools

import tensorflow_federated as tff

from tff_pfl.templates.composed_exchange import ComposedExchange, run_in_turn
from tff_pfl.templates.process import PersonalizedProcess, check_process
from tff_pfl.templates.values import Client
from tff_pfl.tracing.errors import TemplateError
from tff_pfl.tracing.structures import tensor_sizes

mapreduce = tff.backends.mapreduce


class FormError(TemplateError):
    """TFF has no form of this kind for an exchange."""


@dataclasses.dataclass(frozen=True, eq=False)
class ExchangeForms:
    """An exchange of a round in TFF's forms. Each is compiled when it is first read.

    With `S`, `C` and `D` as in `PersonalizedProcess`, `K` what a client keeps from the exchange
    before for this one, and `M` the metrics of the exchange, a form takes clients of the type
    `<client_id=int32, state=C, data=D[, carry=K]>`. The first exchange has no carry.

    Attributes:
        exchange: The exchange.
        server: `(<S@SERVER, {client}@CLIENTS> -> <S@SERVER, {exchange: M}@SERVER>)`, the
            computation that `map_reduce` is compiled from.
        unchecked: `server` without the check of ids, for `distribute_aggregate`.
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
        """The exchange from a server's state to the next, as a `DistributeAggregateForm`.

        A client that is in a cohort twice is not detected.

        Raises:
            FormError: The aggregator uses `tff.federated_aggregate`, for instance to gather uploads
                at the server. TFF 0.87 cannot compile this operator to the form.
        """
        try:
            return mapreduce.get_distribute_aggregate_form_for_computation(self.unchecked)
        except ValueError as error:
            if "FunctionType" not in str(error):
                raise
            raise FormError(
                f"Exchange {self.name!r} has no DistributeAggregateForm: its aggregator uses "
                "tff.federated_aggregate, which TFF cannot compile to this form. Use map_reduce, "
                "or an aggregator of sums."
            ) from error

    @functools.cached_property
    def on_clients(self) -> tff.backends.mapreduce.BroadcastForm:
        """The clients' new states and carries, as a `BroadcastForm` of the same work."""
        return mapreduce.get_broadcast_form_for_computation(self.clients)

    @property
    def down_bytes(self) -> int:
        """The number of bytes that `map_reduce` broadcasts to a client.

        Tensors of a cohort, whose number of rows is not known, count 0.
        """
        return sum(tensor_sizes(self.map_reduce.prepare.type_signature.result).values())

    @property
    def up_bytes(self) -> int:
        """The number of bytes that `map_reduce` sends from a client to the server."""
        return sum(tensor_sizes(self.map_reduce.work.type_signature.result).values())


def forms(process: PersonalizedProcess) -> tuple[ExchangeForms, ...]:
    """Returns TFF's forms of a process, one for each exchange of a round.

    A round is its exchanges in order, each from the server's state to the next; the last one counts
    the round. A client keeps its state, and what it needs in the next exchange. No `MapReduceForm`
    returns these: `on_clients` computes them.

    A form has no `federated_select`. The part of the server's state that a client's own message is
    selected from is broadcast instead, and the client selects. So a client sees what the server
    keeps for others, and receives more bytes than `bytes_down_per_client`.

    Example:
        >>> model, local = testing.tiny_model(), testing.tiny_local()
        >>> process = tff_pfl.compose(tff_pfl.make("ditto", model, local), testing.EXAMPLES_TYPE)
        >>> [train] = deployment.forms(process)
        >>> isinstance(train.map_reduce, tff.backends.mapreduce.MapReduceForm)
        True

    Args:
        process: The process.

    Raises:
        KindError: `process` is something else, such as an experiment.
    """
    check_process(process)
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

    def run(state, clients, checks=True):
        data = clients.data
        if process.gather is not None:
            data = tff.federated_map(process.gather, data)
        client = tff.federated_zip(Client(clients.client_id, clients.state, data))
        carry = None if carry_type is None else clients.carry
        return run_in_turn(
            process.exchanges, [index], state, client, carry, selects=False, checks=checks
        )

    def server(checks):
        @tff.federated_computation(*parameters)
        def next_state(state, clients):
            new_state, _, _, metrics = run(state, clients, checks)
            return tff.federated_zip(new_state), tff.federated_zip(metrics)

        return next_state

    @tff.federated_computation(*parameters)
    def on_clients(state, clients):
        _, states, carry, _ = run(state, clients)
        return tff.federated_zip({"state": states, "carry": carry})

    return ExchangeForms(process.exchanges[index], server(True), server(False), on_clients)
