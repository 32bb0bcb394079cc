"""The process every algorithm of this library is."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.local import Examples
from tff_pfl.models import Model
from tff_pfl.templates.federation import ANY_FEDERATION, Federation


class Client(NamedTuple):
    """One client of a cohort, as `PersonalizedProcess.next` takes it.

    Attributes:
        client_id: int32 scalar in `0 .. num_clients - 1`, not that of another of the cohort; or a
            negative number, of a client without an id, see `compose_stateless_view`.
        state: What the client keeps between rounds, of the algorithm's type `C`.
        data: The client's `tff_pfl.local.Examples`, of type `D`.
    """

    client_id: tf.Tensor
    state: Any
    data: Examples


class ServerState(NamedTuple):
    """The server's state between rounds.

    Attributes:
        round_num: int32 scalar, the number of rounds done.
        algorithm: The algorithm's own state, what its `server_init` returns.
        aggregators: The state of each exchange's aggregator, by the exchange's name.
    """

    round_num: tf.Tensor
    algorithm: Any
    aggregators: Any


class ProcessOutput(NamedTuple):
    """The result of a round.

    Attributes:
        state: The `ServerState` after the round, placed at the server.
        clients: The new state of each client of the cohort, in its order, placed at the clients.
        metrics: Measurements of the round, placed at the server.
    """

    state: Any
    clients: Any
    metrics: Any


@dataclasses.dataclass(eq=False, kw_only=True)
class PersonalizedProcess(tff.templates.IterativeProcess):
    """A federated algorithm with a model for every client.

    With `S` the type of the server's state, `C` that of a client's, `D` that of its examples, `W`
    that of a model's weights, `M` that of the metrics and `V` that of a mapping of tensors:

        initialize        : ( -> S@SERVER)
        next              : (<S@SERVER, {<client_id=int32, state=C, data=D>}@CLIENTS>
                             -> <state=S@SERVER, clients={C}@CLIENTS, metrics=M@SERVER>)
        initialize_client : (int32 -> C), and for a cohort
        initialize_clients: ({int32}@CLIENTS -> {C}@CLIENTS)
        personalize       : (<S@SERVER, {<client_id=int32, state=C, data=D>}@CLIENTS>
                             -> {W}@CLIENTS)
        further_models    : mapping of names to computations of the type of `personalize`
        global_weights    : (S -> W), or None
        snapshot          : (S -> V), or None
        client_snapshot   : ({C}@CLIENTS -> {V}@CLIENTS), or None

    An algorithm whose clients keep nothing has an empty structure as `C`. `compose` makes a
    process; `dataclasses.replace` makes one with other parts.

    Attributes:
        initialize_fn: `initialize`.
        next_fn: `next`.
        initialize_client: The state of a client that was never seen, from its id.
        personalize: The weights to evaluate as each client's own model.
        further_models: Models that are evaluated beside each client's own, by name; see `compose`.
        global_weights: The global model, or `None` for an algorithm without one.
        snapshot: The parts of the server's state that people may want to look at, or `None`.
        client_snapshot: Likewise the parts of clients' states, or `None`.
        evaluated_model: The model of the weights `W`, if it is not the algorithm's; see
            `Algorithm`.
        made_for: The federation, as far as the algorithm computes with its numbers.
        noise_multiplier: The noise multiplier of its differential privacy, or `None` without any;
            see `Algorithm`.
        takes_new_clients: Whether `personalize` makes models for clients that the server was not
            made for. It does not if the server keeps something for each client id.
    """

    initialize_fn: tff.Computation
    next_fn: tff.Computation
    initialize_client: tff.Computation
    personalize: tff.Computation
    further_models: Mapping[str, tff.Computation] = dataclasses.field(default_factory=dict)
    global_weights: tff.Computation | None = None
    snapshot: tff.Computation | None = None
    client_snapshot: tff.Computation | None = None
    evaluated_model: Model | None = None
    made_for: Federation = ANY_FEDERATION
    noise_multiplier: float | None = None
    takes_new_clients: bool = True

    def __post_init__(self):
        super().__init__(self.initialize_fn, self.next_fn, next_is_multi_arg=True)

    @property
    def client_type(self) -> tff.types.StructType:
        """`<client_id=int32, state=C, data=D>`, what `next` takes of each client."""
        return self.next.type_signature.parameter[1].member

    @property
    def client_state_type(self) -> tff.types.Type:
        """`C`, what a client keeps between rounds."""
        return self.client_type.state

    @functools.cached_property
    def initialize_clients(self) -> tff.Computation:
        """`({int32}@CLIENTS -> {C}@CLIENTS)`: the states of many clients, in one call.

        Random numbers and what is common to all clients are those of `initialize_client` bit for
        bit. In the graph runtime, vectorized functions of them may round otherwise, as in rounds.
        """

        @tff.federated_computation(tff.types.FederatedType(np.int32, tff.CLIENTS))
        def initialize_clients(client_ids):
            return tff.federated_map(self.initialize_client, client_ids)

        return initialize_clients
