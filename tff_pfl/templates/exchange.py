"""The blocks of which an algorithm consists."""

import collections
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tff_pfl.aggregators import Aggregator
from tff_pfl.local import ClientContext, trees
from tff_pfl.models.totals import Mean


class Message(NamedTuple):
    """The message of an exchange that both broadcasts and selects.

    Attributes:
        shared: The message to every client, from `Exchange.distribute`.
        own: The message to this client only, from `Exchange.select`.
    """

    shared: Any
    own: Any


class ClientOutput(NamedTuple):
    """The result of client work.

    Attributes:
        state: The client's new state, of the same type as its old state.
        upload: The value for the aggregator: any structure of tensors, or empty. Tensors that are
            averaged must be floats.
        weight: float32 scalar, the client's weight in a weighted aggregation.
        metrics: A mapping from names to `Mean`s, which are summed over clients and divided once, at
            the server.
        carry: The value that the client keeps for its next exchange in this round: any structure of
            tensors. That exchange receives it as `ClientContext.carry`.
    """

    state: Any
    upload: Any = ()
    weight: tf.Tensor | float = 1.0
    metrics: Mapping[str, Mean] = collections.OrderedDict()
    carry: Any = ()


def no_message(server_state) -> tuple:
    """Returns `()`, the message of an exchange that sends nothing to clients."""
    del server_state
    return ()


def keep_server_state(server_state, aggregate, round_num):
    """Finalizes an exchange that does not change the server's state."""
    del aggregate, round_num
    return server_state, collections.OrderedDict()


@dataclasses.dataclass(frozen=True)
class Exchange:
    """One exchange of a round: messages down, client work, an aggregate up, a new server state.

    All blocks are pure TensorFlow functions. `S` is the algorithm's server state, `C` its client
    state, `D` the client's `Examples`. The composer finds these types by tracing.

    Attributes:
        client_work: `(message, C, D, ClientContext) -> ClientOutput`. `message` is `B` without
            `select`, and `Message(shared=B, own=P)` with it.
        distribute: `(S -> B)`, the message that is broadcast to every client.
        select: `(<S, int32> -> P)`, the message to one client, by its id. It is sent by
            `federated_select`, so that a client receives its own message and no other.
        aggregator: A `tff.aggregators` factory, or `None` if clients upload nothing. A weighted one
            receives `ClientOutput.weight`. For an unweighted one, a rejected client counts as an
            upload of zeros: upload changes instead of models, or use a weight of 1.
        finalize: `(<S, A, round_num> -> <S, metrics>)` at the server, where `A` is the aggregator's
            result (`()` if nothing was uploaded) and `metrics` a mapping.
        averaged: `(S -> U)`, the part of the server's state whose changes are uploaded. If the
            upload has several fields, this is about the averaged field. It tells the type of
            the changes. `None`: unknown; uploads cannot be compressed.
        send: `(<upload, seed: int32[2]> -> M)`, the value that a client sends instead of its
            upload. The zeros of a rejected client are passed to it, too. The seed is the client's
            seed in this exchange. `None`, or with an empty upload: the upload itself is sent.
        name: The name of the exchange's metrics and of its aggregator's state.
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
    """The block that makes a client's own model for evaluation; nothing of it is kept.

    Attributes:
        client_work: `(message, C, D, ClientContext) -> W`.
        distribute: `(S -> B)`, as in `Exchange`.
        select: `(<S, int32> -> P)`, as in `Exchange`.
        fine_tune: `(W, D, ClientContext) -> W`, which trains that model before it is evaluated,
            with its own seed; or `None`.
        new_clients: How clients that the server was not made for get a model, if there is a
            `select` and no global model; or `None`.
    """

    client_work: Callable[[Any, Any, Any, ClientContext], Any]
    distribute: Callable[[Any], Any] = no_message
    select: Callable[[Any, Any], Any] | None = None
    fine_tune: Callable[[Any, Any, ClientContext], Any] | None = None
    new_clients: "NewClientModel | None" = None

    @property
    def takes_new_clients(self) -> bool:
        """Whether clients that the server was not made for can have a model."""
        return self.select is None or self.new_clients is not None


@dataclasses.dataclass(frozen=True)
class NewClientModel:
    """The model of a client that the server was not made for, in parameters that the client fits.

    All else stays as the server has it: a client that joins a hypernetwork, for example, fits an
    embedding. The parameters `P` are any structure of float32 tensors.

    Attributes:
        distribute: `(S -> B)`, the message to new clients.
        init: `(<B, seed: int> -> P)`, the parameters before they are fitted.
        weights: `(<B, P> -> W)`, the client's model.
    """

    distribute: Callable[[Any], Any]
    init: Callable[[Any, int], Any]
    weights: Callable[[Any, Any], Any]


class OwnModel(NamedTuple):
    """The state of a client that keeps the model of its last round.

    Attributes:
        model: `W`, that model.
        participations: int32 scalar, the number of rounds in which the client took part.
        optimizer: The state of the client's optimizer that persists; a pair, if the client trains
            two models.
    """

    model: Any
    participations: tf.Tensor
    optimizer: Any


def last_own_model(weights, state, examples, context):
    """Returns the model of the client's last round; the client work of a `Personalization`.

    A client that never took part has the global model that it receives.

    Example:
        >>> state = tff_pfl.templates.OwnModel(tf.ones(2), participations=0, optimizer=())
        >>> tff_pfl.last_own_model(tf.zeros(2), state, None, None).numpy()
        array([0., 0.], dtype=float32)

    Args:
        weights: `W`, the message.
        state: An `OwnModel`, or another state with the fields `model` and `participations`.
        examples: Unused.
        context: Unused.
    """
    del examples, context
    return trees.select(state.participations > 0, state.model, weights)
