"""APPLE: each client learns how to mix the models of all clients, and trains its own of them.

Luo and Wu, "Adapt to adaptation: Learning personalization for cross-silo federated learning", IJCAI
2022.

The server keeps a core model `w_j` of each of the `N` clients. The personal model of client `i` is
`v_i = sum_j p_ij w_j`, with directed relationships `p_ij` that only the client knows. In round `r`
it minimises, by its own `w_i` and by `p_i`,

    loss(v_i) + lambda(r) mu/2 ||p_i - p_0||^2,      p_0j = n_j / sum_k n_k

A round has two exchanges:

    up      n_i
    down    all w_j,  p_0
    client  in each step of LocalTraining, with  g = grad loss(v_i; b):
                w_i  <- a step along  p_ii g
                p_ij <- p_ij - eta_p (<g, w_j> + lambda(r) mu (p_ij - p_0j))
    up      w_i

`lambda(r)` is 0 from round `L` on. Before, it falls from 1: "exponential" is `0.001^(r / L)`,
"cosine" is `(1 + cos(pi r / L)) / 2`. `p_i` starts as the `p_0` of the client's first round, in
which `n_j` is 0 for clients that never took part; all `w_j` start from a common `w_0`. The personal
model is `v_i` at the end of the client's last round. There is no global model. Moving statistics of
batch normalisation are those of `w_i`, which batches of `v_i` assign.

With `num_downloads`, a client downloads `M` models. It keeps the last version of each model that it
received, and asks in the first exchange for models that it never received, in random order; if
there are fewer than `M`, for others, drawn with probabilities proportional to
`max(1.5, r M / N)^|p_ij|`.

A core model moves by `p_ii` of a step, at first by about `1 / N`, so that learning rates have to be
larger than FedAvg's.

The authors' code starts from core models that differ, has mu instead of mu/2, moves `p_i` with the
momentum of `w_i`, and never notes that a model was received. PFLlib multiplies the learning rate by
`N`, uploads `v_i` as the core model, starts with `p_ij = 1 / N`, and computes `<g, w_j>` as a mean.

initial="own" and p_learning_rate = 0: Local, except for the order of batches.
"""

import collections
import math
from typing import NamedTuple

import tensorflow as tf

from tff_pfl.aggregators import StackFactory
from tff_pfl.algorithms.fedamp.server import OwnUpload
from tff_pfl.algorithms.registry import ALGORITHMS, idle_where
from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.ranges import at_least, takes, whole
from tff_pfl.local import ClientContext, LocalTraining, trees
from tff_pfl.models import Mean, Model, Weights, merged
from tff_pfl.models.statistics import only_statistics, with_statistics
from tff_pfl.templates import Algorithm, ClientOutput, Exchange, Federation, Personalization

_LAST_FACTOR = 0.001  # of the exponential schedule
_LEAST_BASE = 1.5
_NEW = 1000.0  # puts models that were never received before all others


class CoreModels(NamedTuple):
    """Server state.

    Attributes:
        models: `w_j`, `W` with a leading axis of `num_clients` in each tensor.
        sizes: float32 `[num_clients]`, `n_j`.
        wanted: int32 `[num_clients, M]`, the clients whose models a client asked for in its last
            round; `()` without a limit.
    """

    models: Weights
    sizes: tf.Tensor
    wanted: tf.Tensor | tuple


class Received(NamedTuple):
    """The models that a client received so far, if their number in a round is limited.

    Attributes:
        models: `W` with a leading axis of `num_clients` in each tensor, the last versions.
        ever: bool `[num_clients]`, whether the client received a model at least once.
    """

    models: Weights
    ever: tf.Tensor


class OwnCore(NamedTuple):
    """Client state.

    Attributes:
        core: `W`, `w_i`.
        model: `W`, `v_i`.
        p: float32 `[num_clients]`, `p_i`.
        participations: int32 scalar, the number of rounds in which the client took part.
        received: `Received`; `()` without a limit.
        optimizer: The client's optimizer state; `()` unless it persists.
    """

    core: Weights
    model: Weights
    p: tf.Tensor
    participations: tf.Tensor
    received: Received | tuple
    optimizer: tuple


class Arrival(NamedTuple):
    """The first upload of a client: its id, `n_i`, and whose models it asks for."""

    client_id: tf.Tensor
    size: tf.Tensor
    wanted: tf.Tensor | tuple


class Carry(NamedTuple):
    """The carry of training: `p_i`, and the moving statistics after the last step, if any."""

    p: tf.Tensor
    statistics: dict


@ALGORITHMS.register("apple")
@idle_where("mu_rounds", "mu_schedule", mu=0)
@takes(
    num_clients=whole(1),
    p_learning_rate=at_least(0),
    mu=at_least(0),
    mu_rounds=whole(1),
    num_downloads=whole(1),
)
def apple(
    model: Model,
    local: LocalTraining,
    *,
    num_clients: int,
    p_learning_rate: float = 0.001,
    mu: float = 0.1,
    mu_rounds: int = 16,
    mu_schedule: str = "exponential",
    initial: str = "num_examples",
    num_downloads: int | None = None,
) -> Algorithm:
    """Makes APPLE.

    Clients report `p_ii` at the end of the round as a metric; their snapshot is `p`.

    Args:
        model: The model, of weights `W`.
        local: The local training of core models.
        num_clients: The number of clients of the federation, `N`; ids are below it. Each client
            downloads `N` models in a round and multiplies them by `p_ij` and by `g` in each step.
        p_learning_rate: The learning rate of `p_ij`, `eta_p`.
        mu: The pull of `p_i` towards `p_0`.
        mu_rounds: `L`, the number of rounds with that pull; in the authors' code a tenth of all
            rounds, which are 160.
        mu_schedule: How the pull falls: "exponential", as in the authors' code, or "cosine".
        initial: `p_0`: the clients' shares of all examples ("num_examples"), or 1 for the client's
            "own" model and 0 for others.
        num_downloads: `M`, the number of models that a client downloads in a round, below
            `num_clients`; `None`: all. With a limit a client keeps `num_clients` models.
    """
    check_names("mu_schedule", [mu_schedule], ("exponential", "cosine"))
    check_names("initial", [initial], ("num_examples", "own"))
    if num_downloads is not None and num_downloads >= num_clients:
        raise ValueError(
            f"num_downloads must be below {num_clients}, the number of clients, got "
            f"{num_downloads}."
        )

    def server_init(seed):
        wanted = () if num_downloads is None else tf.zeros([num_clients, num_downloads], tf.int32)
        models = trees.copies(model.init(seed), num_clients)
        return CoreModels(models, tf.zeros([num_clients]), wanted)

    def client_init(client_id, seed):
        weights = model.init(seed)
        received = ()
        if num_downloads is not None:
            received = Received(
                trees.copies(weights, num_clients), tf.zeros([num_clients], tf.bool)
            )
        p, optimizer = tf.zeros([num_clients]), local.optimizer_state(weights)
        return OwnCore(weights, weights, p, tf.constant(0), received, optimizer)

    def arrive(message, state, examples, context):
        wanted = ()
        if num_downloads is not None:
            wanted = choose(state.p, state.received.ever, num_downloads, context)
        size = tf.cast(examples.size, tf.float32)
        return ClientOutput(state, Arrival(context.client_id, size, wanted), carry=wanted)

    def finalize_arrivals(server, uploads, round_num):
        del round_num
        ids, sizes, wanted = uploads.accepted(uploads.value.client_id)
        return server._replace(
            sizes=trees.put_rows(server.sizes, ids, sizes),
            wanted=trees.put_rows(server.wanted, ids, wanted),
        ), collections.OrderedDict()

    def distribute(server):
        shares = tf.math.divide_no_nan(server.sizes, tf.reduce_sum(server.sizes))
        return (shares, server.models) if num_downloads is None else shares

    def select(server, client_id):
        return trees.row(server.models, tf.gather(server.wanted, client_id))

    def client_work(message, state, examples, context):
        received = state.received
        if num_downloads is None:
            shares, models = message
        else:
            shares, wanted = message.shared, context.carry
            models = trees.put_rows(received.models, wanted, message.own)
            ever = received.ever | tf.reduce_any(tf.one_hot(wanted, num_clients, True, False), 0)
            received = Received(models, ever)
        own = tf.one_hot(context.client_id, num_clients)
        p_0 = shares if initial == "num_examples" else own
        pull = mu * falling(mu_schedule, context.round_num, mu_rounds)

        def mix(core, p):
            others = trees.combine(p * (1.0 - own), models)
            mixture = trees.add(others, trees.scale(core, tf.gather(p, context.client_id)))
            return with_statistics(mixture, core)

        def gradient(core, batch, carry):
            direction, totals, assigned = model.training_gradient(mix(core, carry.p), batch)
            slopes = tf.where(own > 0.0, trees.dot(direction, core), products(direction, models))
            p = carry.p - p_learning_rate * (slopes + pull * (carry.p - p_0))
            scaled = trees.scale(direction, tf.gather(carry.p, context.client_id))
            return scaled, totals, Carry(p, only_statistics(assigned))

        p = tf.where(state.participations > 0, state.p, p_0)
        trained = local.train(
            model,
            state.core,
            examples,
            context,
            optimizer_state=state.optimizer,
            gradient=gradient,
            carry=Carry(p, only_statistics(state.core)),
            assign=lambda core, batch, carry: carry.statistics,
        )
        core, p = trained.weights, trained.carry.p
        participations = state.participations + 1
        p_own = Mean(tf.gather(p, context.client_id), tf.constant(1.0))
        return ClientOutput(
            OwnCore(core, mix(core, p), p, participations, received, trained.optimizer_state),
            upload=OwnUpload(context.client_id, core),
            metrics=merged(trained.totals, {"p_own": p_own}),
        )

    def finalize(server, uploads, round_num):
        del round_num
        ids, cores = uploads.accepted(uploads.value.client_id)
        models = trees.put_rows(server.models, ids, cores)
        return server._replace(models=models), collections.OrderedDict()

    return Algorithm(
        server_init=server_init,
        client_init=client_init,
        exchanges=[
            Exchange(
                client_work=arrive,
                aggregator=StackFactory(),
                finalize=finalize_arrivals,
                name="arrivals",
            ),
            Exchange(
                distribute=distribute,
                select=None if num_downloads is None else select,
                client_work=client_work,
                aggregator=StackFactory(),
                finalize=finalize,
            ),
        ],
        personalize=Personalization(
            client_work=lambda message, state, examples, context: state.model
        ),
        client_snapshot=lambda state: {"p": state.p},
        made_for=Federation(num_clients),
    )


def choose(p: tf.Tensor, ever: tf.Tensor, number: int, context: ClientContext) -> tf.Tensor:
    """Draws the clients whose models a client asks for, int32 `[number]`.

    Args:
        p: float32 `[num_clients]`, `p_i`.
        ever: bool `[num_clients]`, whether the client ever received a model.
        number: `M`.
        context: The context of the client.
    """
    num_clients = p.shape[0]
    mean_downloads = tf.cast(context.round_num, tf.float32) * (number / num_clients)
    base = tf.maximum(mean_downloads, _LEAST_BASE)
    uniform = tf.random.stateless_uniform([num_clients], context.seed, minval=1e-30)
    # The largest of these keys are drawn without replacement: the Gumbel trick.
    keys = tf.abs(p) * tf.math.log(base) - tf.math.log(-tf.math.log(uniform))
    keys = tf.where(ever, keys, _NEW + keys)
    keys = tf.where(tf.equal(tf.range(num_clients), context.client_id), -_NEW, keys)
    return tf.math.top_k(keys, k=number).indices


def falling(schedule: str, round_num: tf.Tensor, rounds: int) -> tf.Tensor:
    """Returns `lambda(r)`, which falls from 1 to 0 over a number of rounds."""
    progress = tf.cast(round_num, tf.float32) / rounds
    if schedule == "cosine":
        factor = (1.0 + tf.cos(math.pi * progress)) / 2.0
    else:
        factor = _LAST_FACTOR**progress
    return tf.where(progress < 1.0, factor, 0.0)


def products(a, rows) -> tf.Tensor:
    """Computes the inner products of a structure with `k` others, stacked along axis 0: `[k]`."""
    pairs = zip(tf.nest.flatten(a), tf.nest.flatten(rows), strict=True)
    return tf.add_n(
        [
            tf.linalg.matvec(tf.reshape(leaves, [leaves.shape[0], -1]), tf.reshape(leaf, [-1]))
            for leaf, leaves in pairs
        ]
    )
