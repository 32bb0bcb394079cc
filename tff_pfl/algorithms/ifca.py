"""IFCA: clients form clusters, and each cluster trains one of several models.

Ghosh et al., "An efficient framework for clustered federated learning", NeurIPS 2020.

The server has `k` models. Every client trains the model that fits its training examples best. A
round:

    down    w_1 .. w_k
    client  c = argmin_j f_i(w_j), of equal ones the first;   w_i = LocalTraining(w_c)
    up      w_i - w_c,  c
    server  w_j <- w_j + the mean of (w_i - w_c) over the clients with c = j;
            a model that nobody chose stays

With averaging of gradients, clients send the gradient of `f_i` at `w_c` instead of training:

    server  w_j <- w_j - eta sum_{i: c = j} grad f_i(w_j) / |S|

where `S` is the whole cohort. The personal model is the one of the `k` models that the client would
choose now, by its training examples, for every client, whether it took part or not. There is no
global model.

No client chooses a model that starts badly, so it stays unused. `min_share` prevents this: if a
model has a smaller share of a cohort's clients, all models restart from other initial values. The
first cohort in which every model has that share ends the restarts. (The authors restart the whole
training; they require 10 % for 4 models and 35 % for 2.)

k = 1: FedAvg with uniform weights.
"""

import collections
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tff_pfl.aggregators import StackFactory
from tff_pfl.algorithms.registry import ALGORITHMS, idle_where
from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.ranges import between, each, takes, whole
from tff_pfl.local import LocalTraining, evaluate, exact_gradient, trees
from tff_pfl.models import Model, Weights, distinct_seeds
from tff_pfl.templates import (
    Algorithm,
    ClientOutput,
    Exchange,
    Federation,
    Personalization,
    Weighting,
    no_client_state,
    weighing,
)


@ALGORITHMS.register("ifca")
@idle_where("local", averaging="gradients")
@idle_where("max_restarts", min_share=0)
@takes(
    num_clients=whole(1),
    num_clusters=whole(1),
    fixed_clusters=each(whole(0)),
    min_share=between(0, 1),
    max_restarts=whole(0),
)
def ifca(
    model: Model,
    local: LocalTraining,
    *,
    num_clients: int,
    num_clusters: int = 2,
    averaging: str = "models",
    fixed_clusters: Sequence[int] | None = None,
    min_share: float = 0.0,
    max_restarts: int = 5,
    weighting: Weighting = "uniform",
) -> Algorithm:
    """Builds the IFCA algorithm.

    The server reports, as metrics, the share of each model, `share_0` and so on, and the number of
    restarts.

    Args:
        model: The model, of weights `W`.
        local: The local training; its optimizer starts anew in each round.
        num_clients: The number of clients of the federation; ids are below it.
        num_clusters: The number of models, `k`.
        averaging: The values that are averaged: "models", or "gradients", which use only the
            learning rate of `local`.
        fixed_clusters: The known cluster of each client; by default clients choose.
        min_share: The smallest share of a cohort's clients that a model must have, at most `1 / k`;
            0 accepts any share, and is required with `fixed_clusters`.
        max_restarts: The largest number of restarts.
        weighting: The weights of clients: "uniform" as in the authors' code, "num_examples", or a
            function of their examples; see `weighing`.
    """
    weigh = weighing(weighting)
    check_names("averaging", [averaging], ("models", "gradients"))
    if averaging == "gradients":
        model.check_no_batch_normalization('ifca with averaging="gradients"')
    if min_share > 1 / num_clusters:
        raise ValueError(
            f"min_share must be at most 1 / num_clusters = {1 / num_clusters:g}, got {min_share}."
        )
    if fixed_clusters is None and num_clusters > 1:
        model.check_seeded_start("ifca")
    if fixed_clusters is not None:
        if min_share:
            raise ValueError(
                f"min_share={min_share:g} has no use with fixed_clusters, because clients do not "
                "choose their models. Set min_share=0, or leave fixed_clusters out."
            )
        fixed_clusters = tuple(fixed_clusters)
        if len(fixed_clusters) != num_clients or not all(
            0 <= cluster < num_clusters for cluster in fixed_clusters
        ):
            raise ValueError(
                f"fixed_clusters needs a cluster, 0 to {num_clusters - 1}, for each of "
                f"{num_clients} clients, got {fixed_clusters}."
            )
    server = IfcaServer(
        model.init, num_clusters, averaging, min_share, max_restarts if min_share else 0
    )

    def choose(models, examples, client_id):
        """Returns `(c, w_c)`."""
        if fixed_clusters is None:
            candidates = [trees.row(models, j) for j in range(num_clusters)]
            losses = [evaluate(model, w, examples)["loss"].mean for w in candidates]
            cluster = tf.argmin(tf.stack(losses), output_type=tf.int32)
        else:
            cluster = tf.gather(fixed_clusters, client_id)
        return cluster, trees.row(models, cluster)

    def client_work(models, state, examples, context):
        cluster, weights = choose(models, examples, context.client_id)
        if averaging == "models":
            trained = local.train(model, weights, examples, context)
            change, totals = trees.subtract(trained.weights, weights), trained.totals
        else:
            gradient, totals = exact_gradient(model, weights, examples)
            change = trees.scale(gradient, -local.learning_rate(context.round_num))
        return ClientOutput(state, OwnChoice(cluster, change), weigh(examples), totals)

    def own_model(models, state, examples, context):
        return choose(models, examples, context.client_id)[1]

    personalize = Personalization(own_model, distribute=lambda state: state.models)
    if fixed_clusters is not None:  # The server knows which model is a client's.
        personalize = Personalization(
            lambda message, state, examples, context: message.own,
            select=lambda state, client_id: choose(state.models, None, client_id)[1],
        )
    return Algorithm(
        server_init=server.init,
        client_init=no_client_state,
        exchanges=[
            Exchange(
                distribute=lambda state: state.models,
                client_work=client_work,
                aggregator=StackFactory(),
                finalize=server.finalize,
            )
        ],
        personalize=personalize,
        made_for=Federation(num_clients),
    )


class ClusterModels(NamedTuple):
    """Server state.

    Attributes:
        models: `W` with a leading axis of `k` in each tensor.
        starts: `W` with leading axes of `max_restarts` and `k` in each tensor, the initial models
            after each restart; `()` without restarts.
        restarts: int32 scalar, the number of restarts so far.
        settled: bool scalar, whether there will be no more restarts.
    """

    models: Weights
    starts: Weights | tuple
    restarts: tf.Tensor
    settled: tf.Tensor


class OwnChoice(NamedTuple):
    """The upload of a client.

    Attributes:
        cluster: int32 scalar, the cluster that the client chose.
        change: `W`, the change of that cluster's model.
    """

    cluster: tf.Tensor
    change: Weights


@dataclasses.dataclass(frozen=True)
class IfcaServer:
    """The server's part of IFCA; see `ifca` for its parameters.

    Attributes:
        init_model: `(seed -> W)`, the initial weights.
        max_restarts: The largest number of restarts; 0 without `min_share`.
    """

    init_model: Callable[[int], Any]
    num_clusters: int
    averaging: str
    min_share: float
    max_restarts: int

    def init(self, seed: int) -> ClusterModels:
        """Returns the state before the first round."""
        k = self.num_clusters
        seeds = distinct_seeds(seed, k * (1 + self.max_restarts))
        drawn = [
            trees.stack(map(self.init_model, seeds[i : i + k])) for i in range(0, len(seeds), k)
        ]
        starts = trees.stack(drawn[1:]) if self.max_restarts else ()
        return ClusterModels(drawn[0], starts, tf.constant(0), tf.constant(self.min_share == 0))

    def finalize(self, server: ClusterModels, uploads: Any, round_num: tf.Tensor):
        """Returns the state after a round, and metrics.

        Args:
            server: The state.
            uploads: A `Stack` of `OwnChoice`.
            round_num: Not used.
        """
        del round_num
        weight = uploads.weight
        sum_by_cluster = functools.partial(
            tf.math.unsorted_segment_sum,
            segment_ids=uploads.value.cluster,
            num_segments=self.num_clusters,
        )
        members = sum_by_cluster(tf.sign(weight))
        shares = members / tf.maximum(tf.reduce_sum(members), 1.0)
        divisors = sum_by_cluster(weight)
        if self.averaging == "gradients":
            divisors = tf.fill([self.num_clusters], tf.reduce_sum(weight))
        sums = tf.nest.map_structure(sum_by_cluster, trees.scale_rows(uploads.value.change, weight))
        moves = trees.scale_rows(sums, tf.math.divide_no_nan(1.0, divisors))
        models = trees.add(server.models, moves)
        settled = server.settled | (tf.reduce_min(shares) >= self.min_share)
        settled |= server.restarts >= self.max_restarts
        settled |= tf.equal(tf.reduce_sum(members), 0.0)  # no client: the state is kept
        if self.max_restarts:
            index = tf.minimum(server.restarts, self.max_restarts - 1)
            models = trees.select(settled, models, trees.row(server.starts, index))
        restarts = server.restarts + tf.cast(tf.logical_not(settled), tf.int32)
        metrics = collections.OrderedDict(
            (f"share_{j}", shares[j]) for j in range(self.num_clusters)
        )
        metrics["restarts"] = restarts
        return ClusterModels(models, server.starts, restarts, settled), metrics
