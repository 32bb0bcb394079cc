"""Traces the blocks of an exchange, and writes exchanges into federated computations."""

import collections
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.aggregators import is_secure, quiet_secure_sums, sums_securely
from tff_pfl.templates import acceptance, blocks, errors
from tff_pfl.templates.exchange import Exchange
from tff_pfl.templates.federation import Federation
from tff_pfl.templates.report import secure_report_bytes, sum_of_reports
from tff_pfl.templates.values import Client, ServerState
from tff_pfl.tracing.structures import empty_value, is_empty
from tff_pfl.tracing.trace import trace


class ComposedExchange:
    """An exchange whose blocks are traced.

    Attributes:
        name: The name of the exchange.
        block: The client work with its messages.
        carry_type: The type of what a client keeps for the next exchange.
        aggregation: The `tff.templates.AggregationProcess` of uploads; `None` without uploads.
        down_bytes: The number of bytes of a client's message.
        up_bytes: The number of bytes of a client's upload.
        checks_cohort: Whether the server receives and checks the ids of the cohort.
    """

    def __init__(
        self,
        label: str,
        exchange: Exchange,
        server_type: tff.types.Type,
        client_type: tff.types.StructType,
        carry_type: tff.types.Type | None,
        made_for: Federation,
        seed: tuple[int, int],
        *,
        is_last: bool,
    ):
        """Traces the client work and the aggregation; `trace_finalize` traces the rest.

        Args:
            label: The name of the exchange in errors.
            exchange: The exchange.
            server_type: `S`, the type of the algorithm's server state.
            client_type: `<client_id=int32, state=C, data=D>`.
            carry_type: The type of what a client kept from the exchange before; `None`: nothing.
            made_for: The federation that the algorithm was made for.
            seed: The seed of the run, and the index of the exchange.
            is_last: Whether it is the last exchange of a round, which counts the round.
        """
        self.name, self._label, self._is_last = exchange.name, label, is_last
        self.block = blocks.ClientBlock(
            f"{self._label}: client_work",
            acceptance.accepting(label, exchange, client_type.state),
            distribute=exchange.distribute,
            select=exchange.select,
            server_type=server_type,
            client_type=client_type,
            carry_type=carry_type,
            made_for=made_for,
            seed=seed,
        )
        output_type = self.block.work.type_signature.result
        self.carry_type = output_type.carry
        self._weighted = isinstance(exchange.aggregator, tff.aggregators.WeightedAggregationFactory)
        self.down_bytes = self.block.down_bytes
        self.up_bytes = blocks.payload_bytes(f"{self._label}: the upload", output_type.upload)
        self.aggregation = None
        if not is_empty(output_type.upload):
            self.aggregation = self._create_aggregation(exchange.aggregator, output_type)
            self._aggregate = _flattened(self.aggregation.next)
            self.up_bytes += 4 if self._weighted else 0
        self._exchange, self._server_type, self._output_type = exchange, server_type, output_type

    @property
    def has_aggregator(self) -> bool:
        """Whether the exchange has an aggregator, even if nothing is uploaded to it."""
        return self._exchange.aggregator is not None

    @property
    def is_secure(self) -> bool:
        """Whether uploads are aggregated only by secure sums, or would be."""
        if self.aggregation is None:
            return is_secure(self._exchange.aggregator)
        return sums_securely(self._aggregate)

    def trace_finalize(self, report: str, cohort: Federation | None = None) -> None:
        """Traces the finalizer, once the report of all exchanges is decided.

        Args:
            report: See `Algorithm.report`.
            cohort: The federation for which the ids of the cohort are checked; `None`: they are not
                sent.
        """
        output_type, nothing = self._output_type, None
        inputs = collections.OrderedDict(server=self._server_type, round_num=np.int32)
        self._report = sum_of_reports(output_type.report, report)
        self.checks_cohort = cohort is not None
        if self.checks_cohort:
            inputs["cohort"] = blocks.IDS
        if report == "secure":
            self.up_bytes += secure_report_bytes(output_type.report)
        if self._report is not None:
            inputs["report"] = self._report.type_signature.result.member
        if self.aggregation is None:
            nothing = empty_value(output_type.upload)
        else:
            aggregated_type = self.aggregation.next.type_signature.result  # with containers
            inputs["aggregate"] = aggregated_type.result.member
            inputs["measurements"] = aggregated_type.measurements.member
            inputs["aggregators"] = [aggregated_type.state.member] * 2  # old and new
        guarded = acceptance.guarded(self._label, self._exchange, self._server_type)

        def finalize(inputs):
            checks = blocks.check_ids(inputs["cohort"], cohort, distinct=True) if cohort else []
            with tf.control_dependencies(checks):
                return guarded({"aggregate": nothing} | inputs)

        self._finalize = trace(f"{self._label}: finalize", finalize, tff.types.to_type(inputs))

    def finish(self, state: ServerState, client_ids, outputs, checks: bool = True):
        """Writes what follows the client work into the federated computation that is being built.

        Args:
            state: The server's state before, whose parts are at the server.
            client_ids: The ids of the cohort, at the clients.
            outputs: The results of `block`, at the clients; its `upload`, `weight` and `report`
                are used.
            checks: Whether the ids are gathered and checked, if the report allows it.

        Returns:
            `(ServerState, metrics)`, whose parts are at the server.
        """
        cohort = None
        if self.checks_cohort:
            cohort = blocks.ids_of_cohort(client_ids) if checks else blocks.no_ids()
        return self.finalize(state, cohort, *self.aggregate(state.aggregators, outputs))

    @property
    def aggregates(self) -> bool:
        """Whether anything is sent to the server: uploads, or a report."""
        return self.aggregation is not None or self._report is not None

    def aggregate(self, aggregators, outputs):
        """Aggregates the results of client work, inside a federated computation.

        Args:
            aggregators: The states of the aggregators, at the server.
            outputs: See `finish`.

        Returns:
            The new state of the aggregator, or `None`; and a mapping of `report`, `aggregate` and
            `measurements`, if there are any, at the server.
        """
        found, state = collections.OrderedDict(), None
        if self._report is not None:
            found["report"] = self._report(outputs.report)
        if self.aggregation is not None:
            uploads = [outputs.upload, outputs.weight] if self._weighted else [outputs.upload]
            aggregated = self._aggregate(aggregators[self.name], *uploads)
            found["aggregate"] = aggregated.result
            found["measurements"] = aggregated.measurements
            state = aggregated.state
        return state, found

    def finalize(self, state: ServerState, cohort, aggregator, aggregated):
        """Finalizes the exchange, inside a federated computation.

        Args:
            state: The server's state before, whose parts are at the server.
            cohort: The ids to check, at the server; unused unless `checks_cohort`.
            aggregator: The new state of the aggregator; see `aggregate`.
            aggregated: The mapping of `aggregate`.

        Returns:
            See `finish`.
        """
        round_num, aggregators = state.round_num, state.aggregators
        inputs = collections.OrderedDict(server=state.algorithm, round_num=round_num)
        if self.checks_cohort:
            inputs["cohort"] = cohort
        inputs |= aggregated
        if self.aggregation is not None:
            inputs["aggregators"] = [aggregators[self.name], aggregator]
        finalized = tff.federated_map(self._finalize, tff.federated_zip(inputs))
        if self.aggregation is not None:
            aggregators = aggregators | {self.name: finalized.aggregator}
        if self._is_last:
            round_num = tff.federated_map(_increment, round_num)
        return ServerState(round_num, finalized.state, aggregators), finalized.metrics

    def _create_aggregation(self, factory, output_type):
        if factory is None:
            raise errors.AggregatorError(
                f"{self._label}: client_work uploads\n  {output_type.upload}\nbut the exchange has "
                "no aggregator.\nTip: tff.aggregators.MeanFactory() averages uploads."
            )
        try:
            with quiet_secure_sums():
                if self._weighted:
                    return factory.create(output_type.upload, output_type.weight)
                return factory.create(output_type.upload)
        except Exception as error:
            raise errors.AggregatorError(
                f"{self._label}: the aggregator {factory!r} cannot aggregate uploads of type\n"
                f"  {output_type.upload}\n{type(error).__name__}: {error}\n"
                "Tip: aggregator must be a factory of tff.aggregators or tff.learning."
            ) from error


def _flattened(computation: tff.Computation) -> tff.Computation:
    """Flattens a computation, because protocol buffers allow only 100 levels of nesting."""
    block = tff.framework.to_call_dominant(computation.to_building_block())
    return tff.framework.ConcreteComputation.from_building_block(block)


def run_in_turn(
    exchanges: Sequence[ComposedExchange],
    chosen: Sequence[int],
    state: ServerState,
    clients: Client,
    carry=None,
    *,
    selects=True,
    checks=True,
):
    """Writes exchanges of a round, one after another, into a federated computation.

    Args:
        exchanges: All exchanges of the round.
        chosen: The indices of those to write, in order.
        state: The server's state before, whose parts are at the server.
        clients: The clients with their states before.
        carry: The values that clients kept from the exchange before the first; `None`: nothing.
        selects: See `ClientBlock.map`.
        checks: See `ComposedExchange.finish`.

    Returns:
        `(ServerState, client states, carry, metrics)`, whose parts are federated values.
    """
    state, client_states = in_parts(exchanges, state), clients.state
    metrics = collections.OrderedDict()
    for exchange in (exchanges[index] for index in chosen):
        outputs = exchange.block.map(
            state.algorithm, state.round_num, clients, client_states, carry, selects=selects
        )
        state, metrics[exchange.name] = exchange.finish(state, clients.client_id, outputs, checks)
        client_states, carry = outputs.state, outputs.carry
    return state, client_states, carry, metrics


def in_parts(exchanges: Sequence[ComposedExchange], state) -> ServerState:
    """Splits a server's state into its parts, in a federated computation."""
    aggregators = collections.OrderedDict(
        (exchange.name, state.aggregators[exchange.name])
        for exchange in exchanges
        if exchange.aggregation is not None
    )
    return ServerState(state.round_num, state.algorithm, aggregators)


@tff.tensorflow.computation(np.int32)
def _increment(round_num):
    return round_num + 1
