"""The blocks an algorithm is written in."""

import collections
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tff_pfl.aggregators import Aggregator
from tff_pfl.local import ClientContext, trees
from tff_pfl.models.model import Mean


class Message(NamedTuple):
    """The message of an exchange that both broadcasts and selects.

    Attributes:
        shared: What every client receives, from `Exchange.distribute`.
        own: What this client alone receives, from `Exchange.select`.
    """

    shared: Any
    own: Any


class ClientOutput(NamedTuple):
    """The result of client work.

    Attributes:
        state: The client's new state, of the type of its old one.
        upload: What is sent to the aggregator; any structure of tensors, of floats where it is
            averaged, or empty.
        weight: Scalar float32, the client's weight in a weighted aggregation.
        metrics: Mapping from name to `Mean`; summed over clients and divided once, at the server.
        carry: What the client keeps for its next exchange in this round, and no longer; any
            structure of tensors. It gets it as `ClientContext.carry`.
    """

    state: Any
    upload: Any = ()
    weight: tf.Tensor | float = 1.0
    metrics: Mapping[str, Mean] = collections.OrderedDict()
    carry: Any = ()


def no_message(server_state) -> tuple:
    """Returns the message of an exchange that sends nothing down."""
    del server_state
    return ()


def keep_server_state(server_state, aggregate, round_num):
    """Finalizes an exchange that leaves the server's state as it is."""
    del aggregate, round_num
    return server_state, collections.OrderedDict()


@dataclasses.dataclass(frozen=True)
class Exchange:
    """One exchange of a round: messages down, client work, an aggregate up, a new server state.

    All blocks are pure TensorFlow functions; `S` is the algorithm's server state, `C` its client
    state, `D` the client's `Examples`. Their types are found by tracing.

    Attributes:
        client_work: `(message, C, D, ClientContext) -> ClientOutput`.
        distribute: `(S -> B)`, broadcast to every client.
        select: `(<S, int32> -> P)`, a message of each client's own, by its id. It travels by
            `federated_select`, so that a client receives its own and nothing else.
            `message` is `B` without `select`, and `Message(shared=B, own=P)` with it.
        aggregator: Any `tff.aggregators` factory, or `None` where clients upload nothing. A
            weighted one receives `ClientOutput.weight`. To an unweighted one, a rejected client is
            an upload of zeros: upload changes, not models, or weight by 1.
        finalize: `(<S, A, round_num> -> <S, metrics>)` at the server, where `A` is what the
            aggregator returns (`()` if nothing was uploaded) and `metrics` a mapping.
        averaged: `(S -> U)`, what of the server's state uploads are changes of, or, of several
            fields, the averaged one is: it has the type of these changes before there are any.
            `None`: it is not known, and uploads cannot be compressed.
        send: `(<upload, seed: int32[2]> -> M)`, what a client sends in the place of its upload,
            zeros in the place of one that cannot be used included; the seed is the client's of
            this exchange. `None`, or where the upload is empty: the upload itself.
        name: Under which the exchange's metrics and its aggregator's state are kept.
    """

    client_work: Callable[[Any, Any, Any, ClientContext], ClientOutput]
    distribute: Callable[[Any], Any] = no_message
    select: Callable[[Any, Any], Any] | None = None
    aggregator: Aggregator | None = None
    finalize: Callable[[Any, Any, Any], tuple[Any, Mapping[str, Any]]] = keep_server_state
    averaged: Callable[[Any], Any] | None = None
    send: Callable[[Any, tf.Tensor], Any] | None = None
    name: str = "train"


@dataclasses.dataclass(frozen=True)
class Personalization:
    """Makes the model that is evaluated as a client's own; nothing of it is kept.

    Attributes:
        client_work: `(message, C, D, ClientContext) -> W`.
        distribute: `(S -> B)`, as in `Exchange`.
        select: `(<S, int32> -> P)`, as in `Exchange`.
        fine_tune: `(W, D, ClientContext) -> W`, a training of that model before it is evaluated,
            whose randomness is its own; or `None`.
        of_known_clients: Whether it makes a model of those clients alone that the server was made
            for, as it does by `select`.
    """

    client_work: Callable[[Any, Any, Any, ClientContext], Any]
    distribute: Callable[[Any], Any] = no_message
    select: Callable[[Any, Any], Any] | None = None
    fine_tune: Callable[[Any, Any, ClientContext], Any] | None = None
    of_known_clients: bool = False

    @property
    def takes_new_clients(self) -> bool:
        """Whether it makes models for clients that the server was not made for."""
        return self.select is None and not self.of_known_clients


class OwnModel(NamedTuple):
    """A client's state where it keeps the model of the last round it took part in.

    Attributes:
        model: `W`, that model.
        participations: int32 scalar, rounds the client took part in.
        optimizer: What persists of the client's optimizer; a pair, if it trains two models.
    """

    model: Any
    participations: tf.Tensor
    optimizer: Any


def last_own_model(weights, state, examples, context):
    """Returns the client's model of the last round it took part in, for a `Personalization`.

    A client that never took part has the global model it receives.

    Args:
        weights: `W`, the message.
        state: An `OwnModel`, or another state with its fields `model` and `participations`.
        examples: Not used.
        context: Not used.
    """
    del examples, context
    return trees.select(state.participations > 0, state.model, weights)
