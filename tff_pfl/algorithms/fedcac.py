"""FedCAC: clients share their critical weights with similar clients, and the others with all.

Wu et al., "Bold but cautious: unlocking the potential of personalized federated learning through
cautiously aggressive collaboration", ICCV 2023.

The critical weights of a client are those on which its loss depends most: in each tensor of its
model, the share `tau` with the largest `|(w_i - start) w_i|`. The server keeps a global model `w`,
and for each client a mask `M_i` of its critical weights, 1 or 0, and a customised model `c_i`. A
round, with `p_i = n_i / sum n_j` over the cohort (or uniform):

    down    start = M_i c_i + (1 - M_i) w
    client  w_i   = LocalTraining(start)
            M_i   = its critical weights
    up      w_i,  M_i
    server  w    <- sum_i p_i w_i
            O_ij  = the number of weights that are critical to both i and j
            c_i  <- the mean of w_i and of all w_j of the cohort with
                        O_ij >= mean O + t / beta (max O - mean O),    in round t = 1, 2, ..

Mean and maximum are over the pairs of the cohort. In early rounds, pairs above the mean
collaborate; in round `beta` those of the maximum; and later none, unless all pairs are alike. The
paper divides `O_ij` by the number of critical weights, which is the same for all pairs.

A client that is absent keeps `M_i` and `c_i`; one that never took part has no critical weights. The
personal model is the `start` of a round that began now (personalized="initialized"), or `w_i` of
the client's last participation ("last").

As in the authors' code, a weight that did not move is never critical. Moving statistics of batch
normalisation are not critical, either: they are those of `w`.

tau = 0: FedAvg.
"""

import collections
from typing import Any, NamedTuple

import tensorflow as tf

from tff_pfl.aggregators import Stack, StackFactory
from tff_pfl.aggregators.robust_rules import weighted_mean
from tff_pfl.algorithms.fedavg import fedavg
from tff_pfl.algorithms.registry import ALGORITHMS, idle_where
from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.ranges import between, takes, whole
from tff_pfl.local import LocalTraining, trees
from tff_pfl.models import Model, Weights
from tff_pfl.models.statistics import without_statistics
from tff_pfl.numerics.order_statistics import kth_largest
from tff_pfl.templates import Algorithm, Exchange, Federation, Personalization, Weighting

_PERSONALIZED = {"initialized": "global", "last": "local"}  # as options of `fedavg`


class FedCACState(NamedTuple):
    """Server state.

    Attributes:
        weights: `W`, the global model.
        customized: `W` with a leading axis of `num_clients` in each tensor, `c_i`.
        critical: bool tensors of the same shapes, `M_i`.
    """

    weights: Weights
    customized: Weights
    critical: Weights


class OwnUpload(NamedTuple):
    """The upload of a client.

    Attributes:
        client_id: int32 scalar.
        model: `W`, `w_i`.
        critical: bool tensors of the same shapes, `M_i`.
    """

    client_id: tf.Tensor
    model: Weights
    critical: Weights


@ALGORITHMS.register("fedcac")
@idle_where("beta", tau=0)
@takes(num_clients=whole(1), tau=between(0, 1), beta=whole(1))
def fedcac(
    model: Model,
    local: LocalTraining,
    *,
    num_clients: int,
    tau: float = 0.5,
    beta: int = 100,
    personalized: str = "initialized",
    weighting: Weighting = "num_examples",
) -> Algorithm:
    """Makes FedCAC.

    The server's metric is the mean number of clients in a `c_i` of the cohort, itself included.

    Args:
        model: The model, of weights `W`.
        local: The local training.
        num_clients: The number of clients of the federation; ids are below it. The server's state
            has `5 n num_clients` bytes for a model of `n` weights.
        tau: The share of critical weights in each tensor, rounded down to a number of weights; the
            authors' code has 0.5.
        beta: The round in which only the most similar clients still collaborate; the authors' code
            has 100, of 300 rounds.
        personalized: The model that is evaluated as the client's own: "initialized" or "last".
        weighting: The weights of clients in the global model: their "num_examples", "uniform", or a
            function of their examples; see `weighing`.
    """
    check_names("personalized", [personalized], _PERSONALIZED)
    base = fedavg(model, local, personalized=_PERSONALIZED[personalized], weighting=weighting)
    (exchange,) = base.exchanges

    def server_init(seed):
        weights = model.init(seed)
        copies = trees.copies(weights, num_clients)
        nothing = tf.nest.map_structure(lambda leaf: tf.zeros(leaf.shape, tf.bool), copies)
        return FedCACState(weights, copies, nothing)

    def start(server, client_id):
        own, critical = trees.row((server.customized, server.critical), client_id)
        return tf.nest.map_structure(tf.where, critical, own, server.weights)

    def client_work(message, state, examples, context):
        output = exchange.client_work(message.own, state, examples, context)
        trained = trees.add(message.own, output.upload)
        critical = critical_weights(trained, output.upload, tau)
        return output._replace(upload=OwnUpload(context.client_id, trained, critical))

    def personalize(message, state, examples, context):
        return base.personalize.client_work(message.own, state, examples, context)

    def finalize(server, uploads, round_num):
        is_known = tf.reduce_sum(uploads.weight) > 0.0
        mean = weighted_mean(Stack(uploads.value.model, uploads.weight))
        ids, models, critical = uploads.accepted(uploads.value.client_id)
        groups = collaborators(critical, round_num + 1, beta)
        sizes = tf.reduce_sum(groups, axis=1, keepdims=True)
        state = FedCACState(
            trees.select(is_known, mean, server.weights),
            trees.put_rows(server.customized, ids, trees.combine(groups / sizes, models)),
            trees.put_rows(server.critical, ids, critical),
        )
        size = tf.math.divide_no_nan(tf.reduce_sum(sizes), tf.cast(tf.size(ids), tf.float32))
        return state, collections.OrderedDict(collaborators=size)

    return Algorithm(
        server_init=server_init,
        client_init=base.client_init,
        exchanges=[
            Exchange(
                select=start,
                client_work=client_work,
                aggregator=StackFactory(),
                finalize=finalize,
            )
        ],
        personalize=Personalization(select=start, client_work=personalize),
        global_weights=lambda server: server.weights,
        made_for=Federation(num_clients),
    )


def critical_weights(trained: Weights, change: Weights, tau: float) -> Any:
    """Returns the masks of a client's critical weights, bool tensors of the shapes of its model.

    Args:
        trained: The weights after training.
        change: Their change in training.
        tau: The share of critical weights in each tensor, at most; fewer if others did not move.
    """

    def mask(weight, change):
        sensitivity = tf.abs(weight * change)
        number = int(tau * weight.shape.num_elements())
        if not number:
            return tf.zeros(weight.shape, tf.bool)
        least = kth_largest(sensitivity, number)
        return (sensitivity >= least) & (sensitivity > 0.0)

    return tf.nest.map_structure(mask, trained, without_statistics(change))


def collaborators(critical: Any, t: tf.Tensor, beta: int) -> tf.Tensor:
    """Returns the clients that are averaged for each client, in rows: float32 `[k, k]` of 1 and 0.

    Args:
        critical: The masks of `k` clients, stacked along a leading axis.
        t: int32 scalar, the round, counted from 1.
        beta: The round from which on only the most similar clients collaborate.
    """
    overlaps = trees.gram(critical)
    is_self = tf.eye(tf.shape(overlaps)[0], dtype=tf.float64)
    overlaps -= is_self * overlaps
    # Integers, which do not round: both sides are multiplied by `beta` and by the number of pairs.
    num_pairs = tf.cast(tf.size(overlaps), tf.float64) - tf.reduce_sum(is_self)
    above_mean = num_pairs * overlaps - tf.reduce_sum(overlaps)
    is_similar = beta * above_mean >= tf.cast(t, tf.float64) * tf.reduce_max(above_mean)
    return tf.cast(is_similar | (is_self > 0.0), tf.float32)
