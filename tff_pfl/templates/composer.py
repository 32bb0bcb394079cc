"""Composes blocks into a `PersonalizedProcess`, so that algorithms contain no federated code.

The composer does the tasks that all algorithms share: it derives seeds, rejects clients whose
results are not finite, and counts clients, examples and bytes.
"""

import collections
import dataclasses
import types
from collections.abc import Mapping

import numpy as np
import tensorflow_federated as tff

from tff_pfl.aggregators import is_secure, quiet_secure_sums, sums_securely
from tff_pfl.arguments.kinds import check_kind
from tff_pfl.arguments.ranges import takes, whole
from tff_pfl.local.examples import readable
from tff_pfl.local.seeds import FINE_TUNING, client_seed, run_seed
from tff_pfl.models.inputs import check_inputs
from tff_pfl.templates import acceptance, blocks, errors
from tff_pfl.templates.algorithm import Algorithm
from tff_pfl.templates.exchange import Exchange
from tff_pfl.templates.process import Client, PersonalizedProcess, ProcessOutput, ServerState
from tff_pfl.templates.report import secure_report_bytes, sum_of_reports
from tff_pfl.tracing.structures import empty_value, is_empty
from tff_pfl.tracing.trace import trace


@takes(seed=whole(0, 2**63 - 1))
def compose(
    algorithm: Algorithm,
    examples_type: tff.types.Type,
    seed: int = 0,
    *,
    further_models: Mapping[str, Algorithm] = types.MappingProxyType({}),
) -> PersonalizedProcess:
    """Composes an algorithm into a process.

    Rejected clients: A client is rejected if it has no examples; if its upload, new state, weight,
    metrics or carry are not finite; if its weight is negative; or if `Examples.size` is not in
    0 .. rows (its work then reads no examples). It counts with weight 0 and an upload of zeros, and
    keeps the state from before the exchange. It stays rejected in later exchanges of the round, but
    `metrics` count it only in exchanges where it fails. If an exchange accepts no client, or the
    server's new state is not finite, the server keeps its state and its aggregator's state.

    Metrics: Each exchange has metrics under its name: the means of the metrics of client work,
    `num_clients` (accepted), `num_examples` (of accepted clients), `num_empty` (clients without
    examples), `num_nonfinite` (clients rejected for other reasons), `server_kept` (1 if the server
    kept its state) and, if there are any, `aggregator` (measurements of the aggregator) and
    `server` (metrics of `finalize`). The whole round has `bytes_down_per_client` and
    `bytes_up_per_client`, from the types of messages and uploads. The latter includes the weight,
    if the aggregator takes one, and the report, if it is sent by secure sums. Neither includes
    other data that TFF sends, such as `round_num` and broadcasts of aggregators.

    Reports: `algorithm.report` says how these counts and means are sent. With "secure", all uploads
    must use secure sums, too, and the numbers are rounded, see `templates.report`. With "none",
    metrics lack them, and the server does not know whether any client was accepted.

    Ids: With the report "clear", a round fails with `tf.errors.InvalidArgumentError` if its cohort
    has a client twice, or an id that is not in 0 .. `made_for.num_clients` - 1. With other reports,
    the server must not see ids, and does not check them. `personalize` fails with an id outside
    this range, too, if it selects by id.

    Example:
        >>> model, local = testing.tiny_model(), testing.tiny_local()
        >>> algorithm = tff_pfl.make("ditto", model, local, lambda_=0.5)
        >>> process = tff_pfl.compose(algorithm, testing.EXAMPLES_TYPE, seed=1)
        >>> isinstance(process, tff.templates.IterativeProcess)
        True

    Args:
        algorithm: The algorithm.
        examples_type: The TFF type of a client's `Examples`; see `tff_pfl.local.examples_type`.
        seed: The seed of the initial states, and of all randomness of client work.
        further_models: Models to evaluate for each client besides `personalized`, by name:
            algorithms that differ from this one only in `personalize`. `locally_trained` and
            `fine_tuned` of `tff_pfl.evaluation` make such algorithms.

    Raises:
        TemplateError: Blocks do not fit each other; see `tff_pfl.templates.errors`.
        ValueError: The model of `tff_pfl.make` takes inputs of other shapes.
        LabelsError: Labels do not fit the task or the model's outputs.
    """
    tip = "A method makes one from a model and a LocalTraining."
    check_kind("The algorithm", algorithm, Algorithm, tip)
    if algorithm.made_of is not None:
        check_inputs(algorithm.made_of.model, examples_type.x)
    server_init = trace("server_init", lambda: algorithm.server_init(seed))
    client_init = trace(
        "client_init", lambda client_id: algorithm.client_init(client_id, seed), np.int32
    )
    server_type = server_init.type_signature.result
    client_type = tff.types.StructWithPythonType(
        [
            ("client_id", tff.types.TensorType(np.int32)),
            ("state", client_init.type_signature.result),
            ("data", examples_type),
        ],
        Client,
    )
    exchanges: list[_TracedExchange] = []
    for index, exchange in enumerate(algorithm.exchanges):
        carry_type = exchanges[-1].carry_type if exchanges else None
        exchanges.append(
            _TracedExchange(exchange, server_type, client_type, carry_type, (seed, index))
        )
    report = algorithm.report or _report_of(exchanges)
    if algorithm.report == "secure":
        _check_secure(exchanges)
    for traced in exchanges:
        traced.trace_finalize(report)
    initialize = _initialize(server_init, exchanges)
    state_type = initialize.type_signature.result

    def trace_server_function(block, fn):
        if fn is None:
            return None
        return trace(block, lambda state: fn(state.algorithm), state_type.member)

    personalize = _personalize(algorithm, state_type, client_type, seed)
    further = {
        name: _personalize(other, state_type, client_type, seed)
        for name, other in further_models.items()
    }
    global_weights = trace_server_function("global_weights", algorithm.global_weights)
    models = {
        f"the further models {name!r}": other.type_signature.result.member
        for name, other in further.items()
    }
    if global_weights is not None:
        models["global_weights"] = global_weights.type_signature.result
    _check_models(personalize.type_signature.result.member, models)
    return PersonalizedProcess(
        initialize_fn=initialize,
        next_fn=_next(
            algorithm.made_for, state_type, client_type, exchanges, sees_cohort=report == "clear"
        ),
        initialize_client=client_init,
        personalize=personalize,
        algorithm=dataclasses.replace(algorithm, report=report),
        further_models=further,
        global_weights=global_weights,
        snapshot=trace_server_function("snapshot", algorithm.snapshot),
        client_snapshot=_client_snapshot(algorithm.client_snapshot, client_type.state),
    )


def _report_of(exchanges) -> str:
    """Returns "secure" if all uploads use secure sums, else "clear"."""
    secure = [exchange.is_secure for exchange in exchanges if exchange.has_aggregator]
    return "secure" if secure and all(secure) else "clear"


def _check_secure(exchanges) -> None:
    for exchange in exchanges:
        if exchange.has_aggregator and not exchange.is_secure:
            raise errors.AggregatorError(
                f"The algorithm has report='secure', but exchange {exchange.name!r} aggregates "
                "uploads in the clear. Use an aggregator with only secure sums, or report='clear'."
            )


def _initialize(server_init, exchanges) -> tff.Computation:
    @tff.federated_computation
    def initialize():
        state = ServerState(
            round_num=tff.federated_value(np.int32(0), tff.SERVER),
            algorithm=tff.federated_eval(server_init, tff.SERVER),
            aggregators=collections.OrderedDict(
                (exchange.name, exchange.aggregation.initialize())
                for exchange in exchanges
                if exchange.aggregation is not None
            ),
        )
        return tff.federated_zip(state)

    return initialize


def _next(made_for, state_type, client_type, exchanges, *, sees_cohort: bool) -> tff.Computation:
    @tff.federated_computation(state_type, tff.types.FederatedType(client_type, tff.CLIENTS))
    def next_round(state, clients):
        if sees_cohort:
            round_num = blocks.round_of_checked_cohort(
                state.round_num, clients.client_id, made_for, distinct=True
            )
            state = ServerState(round_num, state.algorithm, state.aggregators)
        algorithm, client_states, carry = state.algorithm, clients.state, None
        aggregators, metrics = collections.OrderedDict(), collections.OrderedDict()
        for exchange in exchanges:
            finalized, client_states, carry = exchange.run(
                algorithm, state, clients, client_states, carry
            )
            algorithm = finalized.state
            metrics[exchange.name] = finalized.metrics
            if exchange.aggregation is not None:
                aggregators[exchange.name] = finalized.aggregator
        for name in ("down_bytes", "up_bytes"):
            total = np.int64(sum(getattr(exchange, name) for exchange in exchanges))
            direction = name.removesuffix("_bytes")
            metrics[f"bytes_{direction}_per_client"] = tff.federated_value(total, tff.SERVER)
        new_state = ServerState(
            round_num=tff.federated_map(_increment, state.round_num),
            algorithm=algorithm,
            aggregators=aggregators,
        )
        return ProcessOutput(
            tff.federated_zip(new_state), client_states, tff.federated_zip(metrics)
        )

    return next_round


def _personalize(algorithm, state_type, client_type, seed) -> tff.Computation:
    personalize = algorithm.personalize

    def client_work(message, client, context):
        examples, _ = readable(client.data)
        known = context.of_evaluation()
        weights = personalize.client_work(message, client.state, examples, known)
        if personalize.fine_tune is not None:
            drawn = client_seed(run_seed(seed, FINE_TUNING), context.round_num, context.client_id)
            weights = personalize.fine_tune(weights, examples, known._replace(seed=drawn))
        return weights

    block = blocks.ClientBlock(
        "personalize",
        client_work,
        distribute=personalize.distribute,
        select=personalize.select,
        server_type=state_type.member.algorithm,
        client_type=client_type,
        # No exchange has this index: evaluation and training draw independent numbers.
        seed=(seed, len(algorithm.exchanges)),
    )

    @tff.federated_computation(state_type, tff.types.FederatedType(client_type, tff.CLIENTS))
    def personalize_clients(state, clients):
        round_num = state.round_num
        if personalize.select is not None:
            round_num = blocks.round_of_checked_cohort(
                round_num, clients.client_id, algorithm.made_for, distinct=False
            )
        return block.map(state.algorithm, round_num, clients, clients.state)

    return personalize_clients


def _check_models(weights_type, others):
    for name, found in others.items():
        errors.check_same_type(
            f"personalize gives models of another type than {name}",
            found,
            weights_type,
            "the same model is evaluated with both; return the weights of all layers, by layer.",
        )


def _client_snapshot(client_snapshot, client_state_type) -> tff.Computation | None:
    if client_snapshot is None:
        return None
    of_client = trace("client_snapshot", client_snapshot, client_state_type)

    @tff.federated_computation(tff.types.FederatedType(client_state_type, tff.CLIENTS))
    def snapshot_clients(states):
        return tff.federated_map(of_client, states)

    return snapshot_clients


@tff.tensorflow.computation(np.int32)
def _increment(round_num):
    return round_num + 1


def _flattened(computation: tff.Computation) -> tff.Computation:
    """Flattens a computation, because protocol buffers allow only 100 levels of nesting."""
    block = tff.framework.to_call_dominant(computation.to_building_block())
    return tff.framework.ConcreteComputation.from_building_block(block)


class _TracedExchange:
    """An exchange with its traced computations."""

    def __init__(self, exchange: Exchange, server_type, client_type, carry_type, seed):
        self.name = exchange.name
        self._label = f"Exchange {exchange.name!r}"
        self._block = blocks.ClientBlock(
            f"{self._label}: client_work",
            acceptance.accepting(exchange, client_type.state),
            distribute=exchange.distribute,
            select=exchange.select,
            server_type=server_type,
            client_type=client_type,
            carry_type=carry_type,
            seed=seed,
        )
        output_type = self._block.work.type_signature.result
        self.carry_type = output_type.carry
        self._weighted = isinstance(exchange.aggregator, tff.aggregators.WeightedAggregationFactory)
        self.down_bytes = self._block.down_bytes
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

    def trace_finalize(self, report: str) -> None:
        """Traces the finalizer, once the report of all exchanges is decided.

        Args:
            report: See `Algorithm.report`.
        """
        output_type, nothing = self._output_type, None
        inputs = collections.OrderedDict(server=self._server_type, round_num=np.int32)
        self._report = sum_of_reports(output_type.report, report)
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
        self._finalize = trace(
            f"{self._label}: finalize",
            lambda inputs: acceptance.guarded(self._exchange, self._server_type)(
                inputs | {"aggregate": inputs.get("aggregate", nothing)}
            ),
            tff.types.to_type(inputs),
        )

    def run(self, algorithm, state, clients, client_states, carry):
        """Writes the exchange into the federated computation that is being built.

        Returns:
            `(<state, metrics, aggregator> at the server, client states, carry)`; `aggregator` is
            the aggregator's state, if there is an aggregator.
        """
        outputs = self._block.map(algorithm, state.round_num, clients, client_states, carry)
        inputs = collections.OrderedDict(server=algorithm, round_num=state.round_num)
        if self._report is not None:
            inputs["report"] = self._report(outputs.report)
        if self.aggregation is not None:
            uploads = [outputs.upload, outputs.weight] if self._weighted else [outputs.upload]
            aggregated = self._aggregate(state.aggregators[self.name], *uploads)
            inputs["aggregate"] = aggregated.result
            inputs["measurements"] = aggregated.measurements
            inputs["aggregators"] = [state.aggregators[self.name], aggregated.state]
        finalized = tff.federated_map(self._finalize, tff.federated_zip(inputs))
        return finalized, outputs.state, outputs.carry

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
