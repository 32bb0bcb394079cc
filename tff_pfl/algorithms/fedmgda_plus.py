"""FedMGDA+: Hu et al., "Federated learning meets multi-objective optimization", IEEE TNSE 2022.

FedAvg whose server takes each client for an objective of its own: it steps along a common direction
of their updates, which are normalised, so that no client counts more because its update is long. A
round:

    down    w
    client  w_i = LocalTraining(w)
    up      w_i - w
    server  u_i = (w - w_i) / ||w - w_i||,  of the clients whose update is not 0
            lambda = argmin ||sum_i lambda_i u_i||^2
                     with lambda >= 0,  sum_i lambda_i = 1,  |lambda_i - lambda0_i| <= eps
            w <- w - server_lr sum_i lambda_i u_i

Where `lambda` is free to (eps = 1), no client's update is opposed to the step; with a smaller `eps`
some may be. The step has the length `server_lr ||d||` for the direction `d`, of length 1 at most,
whatever clients' updates are.

There is no personal model; what is evaluated as one is as in FedAvg, by default the client's model
just before the last aggregation it took part in.

eps = 0: normalised updates averaged with the weights lambda0. eps = 1: MGDA on normalised updates.
"""

import collections
import dataclasses

import tensorflow as tf

from tff_pfl.aggregators import StackFactory
from tff_pfl.algorithms.fedavg import fedavg
from tff_pfl.algorithms.registry import ALGORITHMS
from tff_pfl.local import LocalTraining, trees
from tff_pfl.models import Model
from tff_pfl.names import check_names
from tff_pfl.numerics.box_min_norm import bounded_min_norm_weights
from tff_pfl.ranges import above, between, takes
from tff_pfl.templates import Algorithm, extends
from tff_pfl.templates.averaging import WEIGHTINGS


@ALGORITHMS.register("fedmgda_plus")
@extends(fedavg, without=["weighting", "aggregator"])
@takes(eps=between(0, 1), server_lr=above(0))
def fedmgda_plus(
    model: Model,
    local: LocalTraining,
    *,
    eps: float = 0.1,
    lambda0: str = "num_examples",
    server_lr: float | None = 1.0,
    personalized: str = "local",
    **options,
) -> Algorithm:
    """FedMGDA+.

    The process measures, at the server, the length of the direction, how many updates are 0, and
    how many are opposed to the step.

    The server's search for `lambda` takes seconds where hundreds of clients take part: see
    `tff_pfl.numerics.box_min_norm`.

    Args:
        model: The model, of weights `W`.
        local: The local training.
        eps: How far `lambda` may be from `lambda0`; comparisons have 0.1, or 0, 0.1, 0.5 and 1.
        lambda0: "num_examples", in proportion to clients' examples, or "uniform".
        server_lr: Length of the step for a direction of length 1, in all rounds; to be tuned.
            `None`: the learning rate of the clients in the round, as in FedPG's comparison.
        personalized: See `fedavg`.
        **options: Those of FedAvg, but for the aggregator; a server optimizer takes the step in
            place of the change.
    """
    check_names("lambda0", [lambda0], WEIGHTINGS)
    algorithm = fedavg(model, local, personalized=personalized, weighting=lambda0, **options)
    (exchange,) = algorithm.exchanges

    def step_length(round_num):
        if server_lr is None:
            return tf.cast(local.learning_rate(round_num), tf.float64)
        return server_lr

    def finalize(server, stack, round_num):
        gram = trees.gram(stack.value)
        norms = tf.sqrt(tf.linalg.diag_part(gram))
        live = norms > 0.0
        to_unit = tf.math.divide_no_nan(tf.constant(1.0, tf.float64), norms)
        gram *= to_unit[:, tf.newaxis] * to_unit
        prior = tf.where(live, tf.cast(stack.weight, tf.float64), 0.0)
        prior = tf.math.divide_no_nan(prior, tf.reduce_sum(prior))
        lower = tf.maximum(prior - eps, 0.0)
        upper = tf.where(live, tf.minimum(prior + eps, 1.0), 0.0)
        weights = bounded_min_norm_weights(gram, lower, upper)
        slopes = tf.linalg.matvec(gram, weights)
        change = trees.combine(step_length(round_num) * weights * to_unit, stack.value)
        server, metrics = exchange.finalize(server, change, round_num)
        measured = collections.OrderedDict(
            metrics,
            direction_norm=tf.sqrt(tf.maximum(tf.reduce_sum(weights * slopes), 0.0)),
            num_zero_updates=trees.count((stack.weight > 0.0) & ~live),
            num_in_conflict=trees.count(live & (slopes < 0.0)),
        )
        return server, measured

    exchange_of_all = dataclasses.replace(exchange, aggregator=StackFactory(), finalize=finalize)
    return dataclasses.replace(algorithm, exchanges=[exchange_of_all])
