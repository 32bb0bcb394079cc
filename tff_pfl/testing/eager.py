"""Runs algorithms eagerly by TensorFlow, to test their mathematics and to debug a round."""

import collections
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.aggregators import Stack, aggregated
from tff_pfl.local import ClientContext, trees
from tff_pfl.local.examples import readable
from tff_pfl.local.seeds import FINE_TUNING, client_seed, run_seed
from tff_pfl.templates import (
    Algorithm,
    Client,
    Exchange,
    Message,
    Personalization,
    ProcessOutput,
    ServerState,
    blocks,
)
from tff_pfl.templates.acceptance import accepting, guarded
from tff_pfl.tracing.equality import elementwise_equality
from tff_pfl.tracing.structures import type_of


class EagerProcess:
    """A process whose blocks are called one by one, client by client.

    It has the methods of a `PersonalizedProcess` and gives the same numbers from the same seed, up
    to the rounding of sums over clients. It is made at once, because nothing is composed, and its
    blocks can print and be debugged. It is slow for many clients, does not check the types of
    messages, and supports only the mean, the sum and the aggregators of `tff_pfl.aggregators`.
    """

    def __init__(self, algorithm: Algorithm, seed: int = 0):
        """Creates the process.

        Args:
            algorithm: The algorithm.
            seed: The seed of the initial states, and of all randomness of client work.
        """
        self._algorithm = algorithm
        self._seed = seed
        init = tff.tensorflow.computation(
            elementwise_equality()(lambda: algorithm.server_init(seed))
        )
        self._server_type = init.type_signature.result

    def initialize(self) -> ServerState:
        """Returns the server's state before the first round."""
        algorithm = _arrays(self._algorithm.server_init(self._seed))
        return ServerState(np.int32(0), algorithm, collections.OrderedDict())

    def initialize_client(self, client_id: int) -> Any:
        """Returns the state of a client that was never seen."""
        client_id = tf.constant(client_id, tf.int32)
        return _arrays(self._algorithm.client_init(client_id, self._seed))

    def next(self, state: ServerState, clients: Sequence[Client]) -> ProcessOutput:
        """Runs a round.

        Raises:
            ValueError: The cohort is empty. Only a composed process knows the types of uploads
                without a client.
            tf.errors.InvalidArgumentError: Client ids are invalid; see `compose`.
        """
        if not clients:
            raise ValueError(
                "A round block by block needs at least one client. Use compose() for empty cohorts."
            )
        clients, server = list(map(_tensors, clients)), _tensors(state.algorithm)
        ids = tf.stack([client.client_id for client in clients])
        blocks.check_ids(ids, self._algorithm.made_for, distinct=True)
        round_num = tf.constant(state.round_num, tf.int32)
        carries, metrics = [()] * len(clients), collections.OrderedDict()
        down = up = 0
        for index, exchange in enumerate(self._algorithm.exchanges):
            outputs = []
            client_state_type = type_of(clients[0].state)
            work = accepting(self._algorithm.label(exchange), exchange, client_state_type)
            for client, carry in zip(clients, carries, strict=True):
                message = _message(exchange, server, client.client_id)
                context = self._context(index, round_num, client.client_id)._replace(carry=carry)
                outputs.append(work(message, client, context))
            down += _bytes(message)
            up += _bytes(outputs[0]["upload"], exchange)
            finalized = self._finalize(exchange, server, round_num, outputs)
            server, metrics[exchange.name] = finalized["state"], finalized["metrics"]
            carries = [output["carry"] for output in outputs]
            clients = [
                client._replace(state=output["state"])
                for client, output in zip(clients, outputs, strict=True)
            ]
        metrics["bytes_down_per_client"], metrics["bytes_up_per_client"] = down, up
        return ProcessOutput(
            ServerState(np.int32(state.round_num + 1), _arrays(server), state.aggregators),
            [_arrays(client.state) for client in clients],
            _arrays(metrics),
        )

    def personalize(self, state: ServerState, clients: Sequence[Client]) -> list[Any]:
        """Returns each client's own model for evaluation."""
        personalization = self._algorithm.personalize
        server, round_num = _tensors(state.algorithm), tf.constant(state.round_num, tf.int32)
        index = len(self._algorithm.exchanges)
        if clients and personalization.select is not None:
            ids = tf.stack([client.client_id for client in clients])
            blocks.check_ids(ids, self._algorithm.made_for, distinct=False)
        models = []
        for client in map(_tensors, clients):
            message = _message(personalization, server, client.client_id)
            examples, _ = readable(client.data)
            context = self._context(index, round_num, client.client_id).of_evaluation()
            weights = personalization.client_work(message, client.state, examples, context)
            if personalization.fine_tune is not None:
                context = self._context(FINE_TUNING, round_num, client.client_id).of_evaluation()
                weights = personalization.fine_tune(weights, examples, context)
            models.append(_arrays(weights))
        return models

    @property
    def global_weights(self) -> Callable[[ServerState], Any] | None:
        """A function `(S -> W)` that returns the global model; `None` without a global model."""
        return self._of_server(self._algorithm.global_weights)

    @property
    def snapshot(self) -> Callable[[ServerState], Any] | None:
        """A function `(S -> V)` that returns parts of the server's state to look at, or `None`."""
        return self._of_server(self._algorithm.snapshot)

    @property
    def client_snapshot(self) -> Callable[[Sequence[Any]], list[Any]] | None:
        """A function that returns parts of the clients' states to look at, or `None`."""
        snapshot = self._algorithm.client_snapshot
        if snapshot is None:
            return None
        return lambda states: [_arrays(snapshot(_tensors(state))) for state in states]

    def _of_server(self, fn):
        return fn and (lambda state: _arrays(fn(_tensors(state.algorithm))))

    def _context(self, block, round_num, client_id) -> ClientContext:
        seed = client_seed(run_seed(self._seed, block), round_num, client_id)
        return ClientContext(round_num, client_id, seed)

    def _finalize(self, exchange, server, round_num, outputs):
        inputs = {
            "server": server,
            "round_num": round_num,
            "aggregate": outputs[0]["upload"],  # replaced below unless it is empty
        }
        if self._algorithm.report != "none":
            reports = [output["report"] for output in outputs]
            inputs["report"] = tf.nest.map_structure(lambda *leaves: tf.add_n(leaves), *reports)
        if tf.nest.flatten(outputs[0]["upload"]):
            uploads = trees.stack([output["upload"] for output in outputs])
            weights = tf.stack([output["weight"] for output in outputs])
            inputs["aggregate"] = aggregated(exchange.aggregator, Stack(uploads, weights))
        label = self._algorithm.label(exchange)
        return guarded(label, exchange, self._server_type)(inputs)


def _message(block: Exchange | Personalization, server, client_id):
    shared = block.distribute(server)
    return shared if block.select is None else Message(shared, block.select(server, client_id))


def _bytes(message, exchange=None) -> int:
    leaves = [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(message)]
    total = sum(leaf.dtype.size * int(tf.size(leaf)) for leaf in leaves)
    is_weighted = exchange is not None and isinstance(
        exchange.aggregator, tff.aggregators.WeightedAggregationFactory
    )
    return total + 4 * (is_weighted and bool(leaves))


def _tensors(value):
    return tf.nest.map_structure(tf.convert_to_tensor, value)


def _arrays(value):
    return tf.nest.map_structure(lambda leaf: tf.convert_to_tensor(leaf).numpy(), value)
