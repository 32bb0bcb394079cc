"""ConFREE: FedRep with a step of the server that helps the client which gains least.

Zheng et al., "ConFREE: conflict-free client update aggregation for personalized federated
learning", AAAI 2025.

Clients train as in FedRep, or with `personal_layers=()` as in FedAvg. From their updates, the
server takes away what works against other updates, which guides its step. Near this guide, it looks
for the best step for the client that gains least by it. A round:

    down    body
    client  head_i <- LocalTraining(head_i);  body_i = LocalTraining(body)         as in FedRep
    up      u_i = body_i - body
    server  g = mean_i (u_i - sum_j (u_i . u_j / ||u_j||^2) u_j),  over j with u_i . u_j < 0
            d = argmax min_i d . u_i     with ||d - g|| <= c ||g||
              = g + c ||g|| u_w / ||u_w||,  u_w = sum_i w_i u_i,  w_i >= 0,  sum_i w_i = 1,
                where w minimises g . u_w + c ||g|| ||u_w||
            body <- body + d

All clients have the same weight. The search around the guide is that of CAGrad (Liu et al.,
NeurIPS 2021) around the mean. Moving statistics of batch normalisation are averaged.

The authors' code finds a step for each tensor by itself (`by_tensor`), and divides it by `1 + c^2`
(`rescale`). It projects an update on the others one after the other, in random order, and without
the division by `||u_j||^2`, so that short updates stay almost as they are.

c = 0: the step is `g`; without conflicts this is FedRep with uniform weights.
"""

import functools
from collections.abc import Mapping

import tensorflow as tf

from tff_pfl.aggregators import Stack, StackRuleFactory
from tff_pfl.aggregators.robust_rules import weighted_mean
from tff_pfl.algorithms.fedrep import fedrep
from tff_pfl.algorithms.registry import ALGORITHMS
from tff_pfl.arguments.extension import extends
from tff_pfl.arguments.ranges import at_least, takes
from tff_pfl.local import LocalTraining, trees
from tff_pfl.models import Model, Weights
from tff_pfl.models.statistics import with_statistics, without_statistics
from tff_pfl.numerics.host import on_host
from tff_pfl.numerics.max_min import max_min_coefficients
from tff_pfl.templates import Algorithm


@ALGORITHMS.register("confree")
@extends(fedrep, without=["weighting", "aggregator"])
@takes(c=at_least(0))
def confree(
    model: Model,
    local: LocalTraining,
    *,
    c: float = 0.5,
    by_tensor: bool = False,
    rescale: bool = False,
    **options,
) -> Algorithm:
    """Makes ConFREE.

    The aggregator measures how many pairs of updates are in conflict, and how many updates oppose
    the step.

    Args:
        model: The model, of weights `W`.
        local: The local training of head and body.
        c: How far the step may be from `g`, relative to the length of `g`; needs tuning.
        by_tensor: Whether the server finds a step for each tensor by itself.
        rescale: Whether the step is divided by `1 + c^2`.
        **options: Options of `fedrep`, except the weights of clients and the aggregator.
    """
    rule = functools.partial(conflict_free, c=c, by_tensor=by_tensor, rescale=rescale)
    aggregator = StackRuleFactory(rule, measured=("num_conflicts", "num_in_conflict"))
    return fedrep(model, local, weighting="uniform", aggregator=aggregator, **options)


def conflict_free(
    stack: Stack, c: float, by_tensor: bool, rescale: bool
) -> tuple[Weights, Mapping[str, tf.Tensor]]:
    """Computes `d` and the measurements, as a rule of `StackRuleFactory`.

    Args:
        stack: The updates of one client or more.
        c: See `confree`.
        by_tensor: See `confree`.
        rescale: See `confree`.
    """
    updates = without_statistics(stack.value)
    parts = tf.nest.flatten(updates) if by_tensor else [updates]
    grams = [trees.gram(part) for part in parts]
    with on_host():
        found = [_coefficients(gram, c) / (1 + c**2 if rescale else 1) for gram in grams]
        slopes = tf.add_n(list(map(tf.linalg.matvec, grams, found)))
        num_conflicts = trees.count(tf.add_n(grams) < 0.0) // 2
        measured = {
            "num_conflicts": tf.cast(num_conflicts, tf.float32),
            "num_in_conflict": tf.cast(trees.count(slopes < 0.0), tf.float32),
        }
    steps = list(map(trees.combine, found, parts))
    step = tf.nest.pack_sequence_as(updates, steps) if by_tensor else steps[0]
    return with_statistics(step, weighted_mean(stack)), measured


def _coefficients(gram, c):
    """Returns the coefficients of `d` in the updates, float64 `[N]`, of their inner products."""
    squares = tf.linalg.diag_part(gram)
    away = tf.reduce_sum(tf.math.divide_no_nan(tf.minimum(gram, 0.0), squares), axis=0)
    guide = (1.0 - away) / tf.cast(tf.size(squares), gram.dtype)
    if c == 0:
        return guide
    length = tf.sqrt(tf.maximum(tf.reduce_sum(guide * tf.linalg.matvec(gram, guide)), 0.0))
    return max_min_coefficients(gram, guide, c * length)
