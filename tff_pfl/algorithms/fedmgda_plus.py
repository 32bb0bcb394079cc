"""FedMGDA+: the server steps along a common descent direction of normalised updates.

Hu et al., "Federated learning meets multi-objective optimization", IEEE TNSE 2022.

FedAvg whose server treats each client as an objective. It steps along a common direction of the
clients' updates, which are normalised so that a long update does not count more. A round:

    down    w
    client  w_i = LocalTraining(w)
    up      w_i - w
    server  u_i = (w - w_i) / ||w - w_i||,  of the clients whose update is not 0
            lambda = argmin ||sum_i lambda_i u_i||^2
                     with lambda >= 0,  sum_i lambda_i = 1,  |lambda_i - lambda0_i| <= eps
            w <- w - server_lr sum_i lambda_i u_i

With eps = 1, which leaves `lambda` free, no client's update opposes the step; with a smaller `eps`
some may. The step has length `server_lr ||d||`, where the direction `d = sum_i lambda_i u_i` has
length 1 at most, however long the updates are.

There is no personal model. The option `personalized` is FedAvg's, but the default is the client's
model just before the last aggregation it took part in.

eps = 0: normalised updates averaged with the weights lambda0. eps = 1: MGDA on normalised updates.
"""

import collections
import dataclasses

import tensorflow as tf

from tff_pfl.aggregators import StackFactory
from tff_pfl.algorithms.fedavg import fedavg
from tff_pfl.algorithms.registry import ALGORITHMS
from tff_pfl.arguments.extension import extends
from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.ranges import above, between, takes
from tff_pfl.local import LocalTraining, trees
from tff_pfl.models import Model
from tff_pfl.numerics.box_min_norm import bounded_min_norm_weights
from tff_pfl.numerics.host import on_host
from tff_pfl.templates import Algorithm
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
    """Builds the FedMGDA+ algorithm.

    The server reports, as metrics, the length of the direction, the number of zero updates, and the
    number of updates that oppose the step.

    The server's search for `lambda` takes seconds in rounds with hundreds of clients: see
    `tff_pfl.numerics.box_min_norm`.

    Args:
        model: The model, of weights `W`.
        local: The local training.
        eps: The largest distance of `lambda_i` from `lambda0_i`; comparisons have 0.1, or 0, 0.1,
            0.5 and 1.
        lambda0: The weights `lambda0_i`: "num_examples", as in FedPG's comparison, or "uniform", as
            in Ditto's.
        server_lr: The length of the step for a direction of length 1, in all rounds; needs tuning.
            `None` is the learning rate of the clients in the round, as in FedPG's comparison.
        personalized: The model that is evaluated as the client's own: "global", or "local", the
            client's model at the end of its last training.
        **options: Options of `fedavg`, except the aggregator. A server optimizer gets the negative
            change as its gradient.
    """
    model.check_no_batch_normalization("fedmgda_plus")
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
        is_nonzero = norms > 0.0
        inverse_norms = tf.math.divide_no_nan(tf.constant(1.0, tf.float64), norms)
        gram *= inverse_norms[:, tf.newaxis] * inverse_norms
        prior = tf.where(is_nonzero, tf.cast(stack.weight, tf.float64), 0.0)
        prior = tf.math.divide_no_nan(prior, tf.reduce_sum(prior))
        lower = tf.maximum(prior - eps, 0.0)
        upper = tf.where(is_nonzero, tf.minimum(prior + eps, 1.0), 0.0)
        with on_host():
            weights = bounded_min_norm_weights(gram, lower, upper)
        slopes = tf.linalg.matvec(gram, weights)
        change = trees.combine(step_length(round_num) * weights * inverse_norms, stack.value)
        server, metrics = exchange.finalize(server, change, round_num)
        measured = collections.OrderedDict(
            metrics,
            direction_norm=tf.sqrt(tf.maximum(tf.reduce_sum(weights * slopes), 0.0)),
            num_zero_updates=trees.count((stack.weight > 0.0) & ~is_nonzero),
            num_in_conflict=trees.count(is_nonzero & (slopes < 0.0)),
        )
        return server, measured

    stacked_exchange = dataclasses.replace(exchange, aggregator=StackFactory(), finalize=finalize)
    return dataclasses.replace(algorithm, exchanges=[stacked_exchange])
