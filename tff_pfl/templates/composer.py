"""Composes blocks into a `PersonalizedProcess`, so that algorithms contain no federated code.

The composer does the tasks that all algorithms share: it derives seeds, rejects clients whose
results are not finite, and counts clients, examples and bytes.
"""

import collections
import dataclasses
import types
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow_federated as tff

from tff_pfl.arguments.kinds import check_kind
from tff_pfl.arguments.ranges import takes, whole
from tff_pfl.local.examples import readable
from tff_pfl.local.seeds import FINE_TUNING, client_seed, run_seed
from tff_pfl.models.inputs import check_inputs
from tff_pfl.templates import blocks, errors
from tff_pfl.templates.algorithm import Algorithm
from tff_pfl.templates.composed_exchange import ComposedExchange, run_in_turn
from tff_pfl.templates.federation import ANY_FEDERATION
from tff_pfl.templates.process import PersonalizedProcess
from tff_pfl.templates.values import Client, ProcessOutput, ServerState
from tff_pfl.tracing.trace import trace


@takes(seed=whole(0, 2**63 - 1))
def compose(
    algorithm: Algorithm,
    examples_type: Any,
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
    the server must not see ids: a client with such an id is rejected instead, and one that is twice
    in a cohort is not detected. `personalize` fails with an id outside this range if it selects by
    id.

    Example:
        >>> model, local = testing.tiny_model(), testing.tiny_local()
        >>> algorithm = tff_pfl.make("ditto", model, local, lambda_=0.5)
        >>> process = tff_pfl.compose(algorithm, testing.EXAMPLES_TYPE, seed=1)
        >>> isinstance(process, tff.templates.IterativeProcess)
        True

    Args:
        algorithm: The algorithm.
        examples_type: The TFF type of a client's `Examples`, see `tff_pfl.local.examples_type`; or
            a data set that has it.
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
    examples_type = getattr(examples_type, "examples_type", examples_type)
    tip = "A FederatedDataset has it as its examples_type."
    check_kind("The type of a client's examples", examples_type, tff.types.StructType, tip)
    if algorithm.made_of is not None:
        check_inputs(algorithm.made_of.model, examples_type.x)
    name = algorithm.name
    server_init = trace(f"server_init of {name}", lambda: algorithm.server_init(seed))
    client_init = trace(
        f"client_init of {name}",
        lambda client_id: algorithm.client_init(client_id, seed),
        np.int32,
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
    exchanges: list[ComposedExchange] = []
    for index, exchange in enumerate(algorithm.exchanges):
        carry_type = exchanges[-1].carry_type if exchanges else None
        exchanges.append(
            ComposedExchange(
                *(algorithm.label(exchange), exchange, server_type, client_type, carry_type),
                made_for=algorithm.made_for,
                seed=(seed, index),
                is_last=index == len(algorithm.exchanges) - 1,
            )
        )
    report = algorithm.report or _report_of(exchanges)
    if algorithm.report == "secure":
        _check_secure(exchanges)
    for index, composed in enumerate(exchanges):
        sees_cohort = report == "clear" and index == 0
        composed.trace_finalize(report, cohort=algorithm.made_for if sees_cohort else None)
    initialize = _initialize(server_init, exchanges)
    state_type = initialize.type_signature.result

    def trace_server_function(block, fn):
        if fn is None:
            return None
        return trace(f"{block} of {name}", lambda state: fn(state.algorithm), state_type.member)

    personalize, personalization = _personalize(algorithm, state_type, client_type, seed)
    further = {
        name: _personalize(other, state_type, client_type, seed)[0]
        for name, other in further_models.items()
    }
    global_weights = trace_server_function("global_weights", algorithm.global_weights)
    models = {
        f"the further models {name!r}": other.type_signature.result.member
        for name, other in further.items()
        if further_models[name].evaluated_model is algorithm.evaluated_model
    }
    if global_weights is not None and algorithm.global_model is None:
        models["global_weights"] = global_weights.type_signature.result
    _check_models(personalize.type_signature.result.member, models)
    return PersonalizedProcess(
        initialize_fn=initialize,
        next_fn=_next(state_type, client_type, exchanges),
        initialize_client=client_init,
        personalize=personalize,
        algorithm=dataclasses.replace(algorithm, report=report),
        exchanges=tuple(exchanges),
        personalization=personalization,
        further_models=further,
        global_weights=global_weights,
        snapshot=trace_server_function("snapshot", algorithm.snapshot),
        client_snapshot=_client_snapshot(algorithm, client_type.state),
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


def _next(state_type, client_type, exchanges) -> tff.Computation:
    @tff.federated_computation(state_type, tff.types.FederatedType(client_type, tff.CLIENTS))
    def next_round(state, clients):
        new_state, client_states, _, metrics = run_in_turn(
            exchanges, range(len(exchanges)), state, clients
        )
        for name in ("down_bytes", "up_bytes"):
            total = np.int64(sum(getattr(exchange, name) for exchange in exchanges))
            direction = name.removesuffix("_bytes")
            metrics[f"bytes_{direction}_per_client"] = tff.federated_value(total, tff.SERVER)
        return ProcessOutput(
            tff.federated_zip(new_state), client_states, tff.federated_zip(metrics)
        )

    return next_round


def _personalize(
    algorithm, state_type, client_type, seed
) -> tuple[tff.Computation, blocks.ClientBlock]:
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
        f"personalize of {algorithm.name}",
        client_work,
        distribute=personalize.distribute,
        select=personalize.select,
        server_type=state_type.member.algorithm,
        client_type=client_type,
        made_for=ANY_FEDERATION if personalize.select is None else algorithm.made_for,
        # No exchange has this index: evaluation and training draw independent numbers.
        seed=(seed, len(algorithm.exchanges)),
    )

    @tff.federated_computation(state_type, tff.types.FederatedType(client_type, tff.CLIENTS))
    def personalize_clients(state, clients):
        round_num = state.round_num
        if personalize.select is not None:
            round_num = blocks.round_of_known_clients(
                round_num, clients.client_id, algorithm.made_for
            )
        return block.map(state.algorithm, round_num, clients, clients.state)

    return personalize_clients, block


def _check_models(weights_type, others):
    for name, found in others.items():
        errors.check_same_type(
            f"personalize gives models of another type than {name}",
            found,
            weights_type,
            "the same model is evaluated with both; return the weights of all layers, by layer.",
        )


def _client_snapshot(algorithm, client_state_type) -> tff.Computation | None:
    if algorithm.client_snapshot is None:
        return None
    block = f"client_snapshot of {algorithm.name}"
    of_client = trace(block, algorithm.client_snapshot, client_state_type)

    @tff.federated_computation(tff.types.FederatedType(client_state_type, tff.CLIENTS))
    def snapshot_clients(states):
        return tff.federated_map(of_client, states)

    return snapshot_clients
