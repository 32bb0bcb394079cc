"""FedDBE: FedAvg whose clients add a bias of their own to features, whose mean is a common one.

Zhang et al., "Eliminating domain bias for federated learning in representation space", NeurIPS 2023
(FedAvg with their domain bias eliminator, DBE).

Each client keeps a vector `v_i`, its bias, which is added to the features `f(x)`, the inputs of the
last layer `h`. It takes up what differs between clients in the mean of features, because a pull
keeps the running mean `r` of each client near a mean `m` that all share. A round, with
`p_i = n_i / sum n_j` over the cohort (or uniform):

    down    w, m
    client  w_i, v_i <- LocalTraining(w, v_i), with the loss of a batch
                            CE(h(f(x) + v_i), y) + kappa / d ||r - m||^2,  of features of d numbers
                            r <- (1 - mu) r + mu mean f(x),  from r = 0 in each round
    up      w_i - w
    server  w <- w + sum_i p_i (w_i - w)

The first round finds `m`, and has neither bias nor pull:

    client  w_i = LocalTraining(w),   m_i = mean f(x) of its examples under w_i
    up      w_i - w,  m_i
    server  w <- w + sum_i p_i (w_i - w),   m = sum_i p_i m_i

In later rounds, clients send zeros for `m_i`. In the paper, all clients find `m` before the first
round; the authors' code takes `r` for `m_i`, drops the models that were trained then, and has half
the pull.

The personal model is the current `w` with `v_i`, which starts at 0. It is the same model whose last
layer, of the kernel `K` and the bias `b`, has the bias `b + K^T v_i`. A client that never took part
has `w`, the global model.

kappa = 0 and bias=False: FedAvg.
"""

import collections
import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf

from tff_pfl.algorithms.registry import ALGORITHMS
from tff_pfl.arguments.extension import extends
from tff_pfl.arguments.ranges import at_least, between, takes
from tff_pfl.local import Examples, LocalTraining, sum_over, trees
from tff_pfl.models import Model, Weights
from tff_pfl.templates import Algorithm, ClientOutput, averaging


class CommonMean(NamedTuple):
    """The mean of features that clients share.

    Attributes:
        value: float32 `[d]`, `m`; 0 if it is unknown.
        known: float32 scalar, 0 until the first round has found it, then 1.
    """

    value: tf.Tensor
    known: tf.Tensor


class Server(NamedTuple):
    """Server state: a `SharedPart`, the model; and the `mean` of features."""

    weights: Weights
    optimizer: Any
    mean: CommonMean


class Upload(NamedTuple):
    """The upload of a client.

    Attributes:
        weights: `W`, the change of the model.
        mean: float32 `[d]`, `m_i` in the first round, then 0.
    """

    weights: Weights
    mean: tf.Tensor


class OwnBias(NamedTuple):
    """Client state.

    Attributes:
        bias: float32 `[d]`, `v_i`.
        optimizer: The client's optimizer state, of the model and the bias; `()` unless it persists.
    """

    bias: tf.Tensor
    optimizer: tuple


@ALGORITHMS.register("feddbe")
@extends(averaging)
@takes(kappa=at_least(0), momentum=between(0, 1))
def feddbe(
    model: Model,
    local: LocalTraining,
    *,
    kappa: float = 50.0,
    momentum: float = 1.0,
    bias: bool = True,
    **options,
) -> Algorithm:
    """Makes FedDBE.

    Args:
        model: The model, whose last layer is linear, with a bias.
        local: The local training of the model and of the bias.
        kappa: The pull of the running mean towards the common one; 50 in the authors' script.
        momentum: `mu`, the share of a batch in the running mean; 1 in the authors' script, which is
            the mean of each batch by itself.
        bias: Whether clients have a bias; without it, only the pull is left.
        **options: Options of `averaging`.

    Raises:
        ValueError: The model has no features (see `Model`), or its last layer has no bias.
    """
    model.check_features("feddbe")
    head = model.layers[-1]
    if "bias" not in model.init(0)[head]:
        raise ValueError(
            f"feddbe adds to the bias of the last layer, but that of model {model.name!r} has no "
            "bias. Build the layer with use_bias=True."
        )
    dim = model.num_features

    def with_bias(parts):
        weights, own = parts
        added = tf.linalg.matvec(weights[head]["kernel"], own, transpose_a=True)
        layer = collections.OrderedDict(weights[head], bias=weights[head]["bias"] + added)
        return collections.OrderedDict(weights, **{head: layer})

    def init(seed):
        return model.init(seed), tf.zeros([dim])

    personal = model.in_terms_of(init, with_bias)

    def client_init(client_id, seed):
        parts = init(seed)
        return OwnBias(parts[1], local.optimizer_state(parts))

    def client_work(message, state, examples, context):
        received, mean = message

        def gradient(parts, batch, running):
            found = []  # the next running mean, of the pass that the gradient makes

            def pull(forward, batch):
                of_batch = tf.math.divide_no_nan(*feature_sums(model, forward.features, batch))
                found.append((1.0 - momentum) * running + momentum * of_batch)
                distance = tf.reduce_mean(tf.square(found[0] - mean.value))
                return kappa * mean.known * distance * tf.ones_like(batch.weight)

            (direction, own), totals, _ = personal.training_gradient(parts, batch, term=pull)
            return (direction, own * (mean.known if bias else 0.0)), totals, found[0]

        trained = local.train(
            personal,
            (received, state.bias),
            examples,
            context,
            gradient=gradient,
            carry=tf.zeros([dim]),
            assign=lambda parts, batch, running: (model.assigned(parts[0], batch), parts[1]),
            optimizer_state=state.optimizer,
        )
        weights, own = trained.weights
        own_mean = tf.cond(
            mean.known > 0.0,
            lambda: tf.zeros([dim]),
            lambda: mean_of_features(model, weights, examples),
        )
        return ClientOutput(
            state=OwnBias(own, trained.optimizer_state),
            upload=Upload(trees.subtract(weights, received), own_mean),
            metrics=trained.totals,
        )

    base = averaging(
        model.init,
        client_work,
        lambda weights, state, examples, context: with_bias((weights, state.bias)),
        client_init,
        global_weights=lambda weights: weights,
        **options,
    )
    (exchange,) = base.exchanges

    def server_init(seed):
        return Server(*base.server_init(seed), CommonMean(tf.zeros([dim]), tf.constant(0.0)))

    def finalize(server, mean, round_num):
        new, metrics = exchange.finalize(server, mean.weights, round_num)
        first = CommonMean(mean.mean, tf.constant(1.0))
        return new._replace(mean=trees.select(server.mean.known > 0.0, server.mean, first)), metrics

    train = dataclasses.replace(
        exchange,
        distribute=lambda server: (server.weights, server.mean),
        finalize=finalize,
        averaged=lambda server: Upload(server.weights, server.mean.value),
    )
    return dataclasses.replace(base, server_init=server_init, exchanges=[train])


def feature_sums(model: Model, features: tf.Tensor, batch: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Adds up the features of a batch, and the weights of its rows."""
    weight = model.example_weight(batch)
    rows = tf.where(weight[:, tf.newaxis] > 0.0, features * weight[:, tf.newaxis], 0.0)
    return tf.reduce_sum(rows, axis=0), tf.reduce_sum(weight)


def mean_of_features(model: Model, weights: Weights, examples: Examples) -> tf.Tensor:
    """Computes the mean of a client's features, without training behaviour; 0 without examples."""
    assert model.features is not None

    def sums(batch):
        features = model.features(weights, batch.x, training=False, seed=batch.seed)
        return feature_sums(model, features, batch)

    start = (tf.zeros([model.num_features]), tf.constant(0.0))
    return tf.math.divide_no_nan(*sum_over(examples, sums, start=start))
