"""The values that a round takes and returns."""

from typing import Any, NamedTuple

import tensorflow as tf

from tff_pfl.local import Examples


class Client(NamedTuple):
    """One client of a cohort, as `PersonalizedProcess.next` takes it.

    Attributes:
        client_id: int32 scalar in `0 .. num_clients - 1`, distinct in the cohort; or a negative
            number for a client without an id, see `compose_stateless_view`.
        state: The client's state between rounds, of the algorithm's type `C`.
        data: The client's `tff_pfl.local.Examples`, of type `D`.
    """

    client_id: tf.Tensor
    state: Any
    data: Examples


class ServerState(NamedTuple):
    """The server's state between rounds.

    Attributes:
        round_num: int32 scalar, the number of completed rounds.
        algorithm: The algorithm's own server state, of the type that `server_init` returns.
        aggregators: The state of each exchange's aggregator, by the exchange's name.
    """

    round_num: tf.Tensor
    algorithm: Any
    aggregators: Any


class ProcessOutput(NamedTuple):
    """The result of a round.

    Attributes:
        state: The `ServerState` after the round, placed at the server.
        clients: The new states of the cohort's clients, in its order, placed at the clients.
        metrics: Measurements of the round, placed at the server.
    """

    state: Any
    clients: Any
    metrics: Any
